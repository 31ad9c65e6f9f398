// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package track

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"kubeproxy/common/service"
)

// service returns the state of a Service, and creates an empty one if there is none.
func (t *Tracker) service(name types.NamespacedName) *serviceState {
	s := t.services[name]
	if s == nil {
		name.Namespace = t.interner.intern(name.Namespace)
		s = &serviceState{name: name}
		t.services[name] = s
	}
	return s
}

// markDirty queues s for the next update.
func (t *Tracker) markDirty(s *serviceState) {
	if !s.dirty {
		s.dirty = true
		t.dirty = append(t.dirty, s)
	}
}

// removeService removes the Service object of s. Its slices remain.
func (t *Tracker) removeService(name types.NamespacedName) bool {
	t.setReason(name, "")
	t.setLeft(name, nil)
	s := t.services[name]
	if s == nil || s.want == nil && s.notes == nil {
		return false
	}
	t.release(s)
	s.created, s.selector, s.want, s.notes, s.choices, s.closesLeft = 0, false, nil, nil, 0, false
	t.markDirty(s)
	return true
}

func (t *Tracker) removeSlice(key types.NamespacedName) bool {
	delete(t.loose, key)
	if s := t.slices[key]; s != nil {
		t.noteDepartures(s, nil)
	}
	return t.dropSlice(key)
}

// dropSlice is removeSlice for a slice that another one replaces.
func (t *Tracker) dropSlice(key types.NamespacedName) bool {
	s := t.slices[key]
	if s == nil {
		return false
	}
	delete(t.slices, key)
	t.uncount(s)
	i := slices.Index(s.owner.slices, s)
	s.owner.slices = slices.Delete(s.owner.slices, i, i+1)
	t.markDirty(s.owner)
	return true
}

// claim adds a claim of s to every address that it specifies; release removes them.
func (t *Tracker) claim(s *serviceState) {
	add := func(a service.Address, k service.Kind) { t.claims.add(a, claim{s, k}) }
	eachClaim(s, add, t.claims.external.add)
	for _, p := range s.want {
		for _, f := range p.Frontends {
			if f.Kind == service.ClusterIP {
				t.misplaced.watch(f.Addr)
			}
		}
	}
}

func (t *Tracker) release(s *serviceState) {
	remove := func(a service.Address, k service.Kind) { t.claims.remove(a, claim{s, k}) }
	eachClaim(s, remove, t.claims.external.remove)
}

// eachClaim calls change for every address of s, and external for every key of claims.external.
func eachClaim(s *serviceState, change func(service.Address, service.Kind), external func(service.Address, *serviceState)) {
	var seen [2]bool // ClusterIPs, by family
	for _, p := range s.want {
		for _, f := range p.Frontends {
			change(p.Address(f), f.Kind)
			switch {
			case isExternalAddress(f.Kind):
				external(clusterIPKey(f.Addr), s)
				external(p.Address(f).OnNode(), s)
			case f.Kind != service.NodePort && !seen[p.Family]:
				seen[p.Family] = true
				change(clusterIPKey(f.Addr), f.Kind)
			}
		}
	}
	if n := s.healthCheckPort(); n != 0 {
		for _, k := range checkKeys(n) {
			change(k, service.NodePort)
		}
	}
}

// update makes the next snapshot if anything changed, and returns new problems.
func (t *Tracker) update() []Problem {
	if t.misplaced.stale {
		t.recount()
	}
	t.claims.resolve()
	if t.latest != nil && len(t.dirty) == 0 && !t.nodeDirty {
		return nil
	}
	node := t.options.node(t.nodeInfo)
	var rangeNotes []note
	if t.options.ProxyName == "" { // else most addresses in ranges are Services of another proxy
		rangeNotes = t.serviceCIDRs(node)
	}
	if t.latest != nil && sameNode(node, t.latest.Node) {
		node = t.latest.Node
	}
	t.chooser.zone = t.nodeInfo.zone
	none := types.NamespacedName{}
	own := append(problemsOf(OfNode, none, t.nodeInfo.notes), problemsOf(OfServiceCIDR, none, rangeNotes)...)
	slices.SortFunc(own, compareProblems)
	fresh := t.setProblems(none, own)
	var changes []service.Change
	for _, s := range t.dirty {
		s.dirty = false
		r := resolver{tracker: t, owner: s, node: node, changes: changes}
		r.resolve()
		changes = r.changes
		fresh = append(fresh, t.setProblems(s.name, r.problems())...)
		if s.want == nil && s.notes == nil && len(s.slices) == 0 {
			delete(t.services, s.name)
		}
	}
	t.dirty, t.nodeDirty = nil, false
	t.chooser.shrink()
	t.publish(node, changes)
	slices.SortFunc(fresh, compareProblems)
	return fresh
}

func (t *Tracker) publish(node *service.Node, changes []service.Change) {
	switch {
	case t.latest == nil:
		ports := make([]*service.Port, len(changes))
		for i, c := range changes {
			ports[i] = c.New
		}
		t.latest = service.New(1, node, ports)
		t.latest.Incomplete = t.unread > 0
	case len(changes) > 0 || node != t.latest.Node || t.unread > 0 != t.latest.Incomplete:
		t.latest = t.latest.With(t.latest.Generation+1, node, changes)
		t.latest.Incomplete = t.unread > 0
	}
}

// setProblems stores the present problems of a Service and returns those that are new.
func (t *Tracker) setProblems(name types.NamespacedName, now []Problem) []Problem {
	old := t.problems[name]
	if len(now) == 0 {
		delete(t.problems, name)
		return nil
	}
	t.problems[name] = now
	var fresh []Problem
	for _, p := range now {
		if !slices.Contains(old, p) {
			fresh = append(fresh, p)
		}
	}
	return fresh
}

// resolver determines the Ports of one Service.
type resolver struct {
	tracker *Tracker
	owner   *serviceState
	node    *service.Node
	changes []service.Change
	notes   notes
	// localReady counts ready endpoints on this node, if a health check needs them.
	localReady [2]int
	index      index
}

func (r *resolver) resolve() {
	s := r.owner
	r.localReady = s.localReady()
	r.index = indexOf(s)
	r.tracker.chooser.invalidate()
	r.tracker.chooser.silent, r.tracker.chooser.policy = r.tracker.silent, r.tracker.silentPolicy(s)
	have := make([]*service.Port, 0, len(s.want))
	for i, want := range s.want {
		old := find(s.have, want, i)
		p := r.port(want, old)
		if p == nil {
			continue
		}
		have = append(have, p)
		if p != old {
			r.changes = append(r.changes, service.Change{Old: old, New: p})
		}
		if p.HealthCheck == want.HealthCheck && slices.EqualFunc(p.Frontends, want.Frontends, service.Frontend.Equal) {
			s.want[i] = p
		}
	}
	for i, old := range s.have {
		if find(have, old, i) == nil {
			r.changes = append(r.changes, service.Change{Old: old})
		}
	}
	s.have = have
}

// find returns the Port in list with the name and family of p. It is usually at index i.
func find(list []*service.Port, p *service.Port, i int) *service.Port {
	if i < len(list) && list[i].Family == p.Family && list[i].Name == p.Name {
		return list[i]
	}
	for _, q := range list {
		if q.Family == p.Family && q.Name == p.Name {
			return q
		}
	}
	return nil
}

// port returns want with frontends and endpoints, old itself if unchanged, nil without frontend.
func (r *resolver) port(want, old *service.Port) *service.Port {
	p := *want
	if p.Frontends = r.frontends(want); len(p.Frontends) == 0 {
		return nil
	}
	p.HealthCheck = r.healthCheck(want)
	c := &r.tracker.chooser
	from := r.index.of(want)
	if m := mismatchOf(r.owner, want, from); m.code != "" {
		field := " ports"
		if m.code == FamilyMismatch {
			field = " addressType"
		}
		// Without the count, which changes more often than the mistake.
		r.notes.addCoded(m.code, "endpointslice "+m.slice+field, "its ready endpoints are %s", m.why)
	}
	if excess := c.fill(want, from, r.tracker.options.Listed); excess > 0 {
		r.notes.add("spec.ports", "%s port %q (%s) has %d endpoints too many: only the first %d by address are served",
			p.Family, p.Name.Port, p.Name.Protocol, excess, maxEndpoints)
	}
	p.Consistent = r.consistent(&p)
	if old == nil {
		old = &service.Port{}
	}
	p.Cluster = reuse(old.Cluster, c.cluster)
	p.Local = reuse(old.Local, c.local)
	p.Draining = reuse(old.Draining, c.draining)
	p.Listed = nil
	if r.tracker.options.Listed {
		p.Listed = reuse(old.Listed, c.listed)
	}
	if p.Direct = r.directReturn(&p, from); p.Direct != nil && old.Direct != nil && slices.Equal(p.Direct.Nodes, old.Direct.Nodes) {
		p.Direct = old.Direct
	}
	p.LocalReady = r.localReady[p.Family]
	if sameShape(old, &p) && old.Direct == p.Direct && old.Consistent == p.Consistent && old.LocalReady == p.LocalReady && sameList(old.Cluster, p.Cluster) && sameList(old.Local, p.Local) && sameList(old.Draining, p.Draining) && sameList(old.Listed, p.Listed) {
		return old
	}
	return &p
}

// reuse returns old if it equals fresh, nil if fresh is empty, and otherwise a copy of fresh.
func reuse[T comparable](old, fresh []T) []T {
	switch {
	case len(fresh) == 0:
		return nil
	case slices.Equal(old, fresh):
		return old
	}
	return slices.Clone(fresh)
}

// sameList compares lists that reuse returned, by pointer.
func sameList[T any](old, now []T) bool {
	return len(old) == len(now) && (len(old) == 0 || &old[0] == &now[0])
}

// frontends returns the frontends that the Service holds, want's own list if those are all.
func (r *resolver) frontends(want *service.Port) []service.Frontend {
	list, own := want.Frontends, true
	for i, f := range want.Frontends {
		holder := r.tracker.claims.holder[want.Address(f)]
		sources, widened := hairpin(f, r.node)
		why, thisNode := r.refused(want, f)
		if own && (holder.serviceState != r.owner || widened || why != "") {
			list, own = slices.Clone(want.Frontends[:i]), false
		}
		if why != "" {
			r.notes.refuse("spec.ports", why, thisNode)
			continue
		}
		if holder.serviceState != r.owner {
			r.notes.addCoded(AddressClaimed, "spec.ports", "%s belongs to service %s, %s", describe(want, f), holder.name, holder.reason(claim{r.owner, f.Kind}))
			continue
		}
		if !own {
			f.Sources = sources
			list = append(list, f)
		}
	}
	return list
}

// hairpin returns f's sources, with its own address if the node may connect: that is the source of
// what the node sends to a local load balancer's address.
func hairpin(f service.Frontend, node *service.Node) ([]netip.Prefix, bool) {
	if len(f.Sources) == 0 || containsAddr(f.Sources, f.Addr) {
		return f.Sources, false
	}
	for _, a := range node.Addrs {
		if containsAddr(f.Sources, a) {
			own := netip.PrefixFrom(f.Addr, f.Addr.BitLen())
			return collapse(append(slices.Clone(f.Sources), own)), true
		}
	}
	return f.Sources, false
}

// problems returns all problems of the Service. It omits slices without a Service.
func (r *resolver) problems() []Problem {
	lists := [][]note{r.owner.notes, r.notes.all(), r.clusterIPs()}
	if r.owner.want != nil {
		for _, s := range r.owner.slices {
			lists = append(lists, s.notes)
		}
	}
	return problemsOf(OfService, r.owner.name, lists...)
}

// sameShape compares everything except endpoints.
func sameShape(a, b *service.Port) bool {
	return a.Name == b.Name && a.Family == b.Family &&
		a.Internal == b.Internal && a.External == b.External && a.Affinity == b.Affinity && a.HealthCheck == b.HealthCheck && a.KeepVIP == b.KeepVIP && a.Rebalance == b.Rebalance &&
		slices.EqualFunc(a.Frontends, b.Frontends, service.Frontend.Equal)
}

// nodeInfo is what the Tracker keeps of the own Node.
type nodeInfo struct {
	zone  string
	addrs []netip.Addr
	pods  []netip.Prefix
	notes []note
}

func (n *nodeInfo) same(g *nodeInfo) bool {
	return n.zone == g.zone && slices.Equal(n.addrs, g.addrs) && slices.Equal(n.pods, g.pods) &&
		slices.Equal(n.notes, g.notes)
}

// readNode reads n in the API's order, in which a family's primary address comes first.
func readNode(n *corev1.Node) *nodeInfo {
	var notes notes
	f := &nodeInfo{zone: n.Labels[corev1.LabelTopologyZone]}
	var of [2][]netip.Addr // internal, external
	for i, a := range n.Status.Addresses {
		var to *[]netip.Addr
		switch a.Type {
		case corev1.NodeInternalIP:
			to = &of[0]
		case corev1.NodeExternalIP:
			to = &of[1]
		default:
			continue
		}
		addr, err := service.ParseAddr(a.Address)
		if err != nil || addr.Zone() != "" || addr.IsUnspecified() {
			notes.add(at("status.addresses", i)+".address", "%.80q is not an IP address of a node", a.Address)
			continue
		}
		if !slices.Contains(*to, addr) {
			*to = append(*to, addr)
		}
	}
	for _, family := range service.Families {
		of[0] = fill(of[0], of[1], family)
	}
	f.addrs = of[0]
	cidrs := n.Spec.PodCIDRs
	if len(cidrs) == 0 && n.Spec.PodCIDR != "" {
		cidrs = []string{n.Spec.PodCIDR}
	}
	for i, s := range cidrs {
		p, err := parsePrefix(s)
		if err != nil {
			notes.add(at("spec.podCIDRs", i), "%v", err)
			continue
		}
		f.pods = append(f.pods, p)
	}
	f.notes = notes.all()
	return f
}

// fill returns addrs. If addrs has none of family f, it appends those from spare.
func fill(addrs, spare []netip.Addr, f service.Family) []netip.Addr {
	if service.FirstOf(addrs, f).IsValid() {
		return addrs
	}
	for _, a := range spare {
		if service.FamilyOf(a) == f {
			addrs = append(addrs, a)
		}
	}
	return addrs
}

// Node returns the present state of the own Node, in the form that a Snapshot uses.
func (t *Tracker) Node() *service.Node {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.options.node(t.nodeInfo)
}

// node makes the Snapshot's Node from the operator's settings and the own Node.
func (o *Options) node(f *nodeInfo) *service.Node {
	n := &service.Node{
		Name:          normalize(o.NodeName),
		Addrs:         slices.Clone(o.NodeIPs),
		PodCIDRs:      f.pods,
		Pods:          o.Pods,
		NodePorts:     slices.Clone(o.NodePorts),
		MasqueradeAll: o.MasqueradeAll,

		NodePortsEverywhere: o.NodePortsEverywhere,
	}
	for _, family := range service.Families {
		n.Addrs = fill(n.Addrs, f.addrs, family)
	}
	if o.PodsFromNode {
		n.Pods = service.LocalPods{Prefixes: f.pods}
	}
	if !o.NodePortsPrimary {
		return n
	}
	for _, family := range service.Families {
		a := service.FirstOf(n.Addrs, family)
		if a.IsValid() {
			n.NodePorts = append(n.NodePorts, netip.PrefixFrom(a, a.BitLen()))
		}
		n.NodePortsPending[family] = !a.IsValid() && len(f.addrs) == 0
	}
	return n
}

func sameNode(a, b *service.Node) bool {
	return a.Name == b.Name && a.MasqueradeAll == b.MasqueradeAll &&
		slices.Equal(a.Addrs, b.Addrs) && slices.Equal(a.NodePorts, b.NodePorts) && a.NodePortsPending == b.NodePortsPending &&
		slices.Equal(a.PodCIDRs, b.PodCIDRs) && slices.Equal(a.Pods.Prefixes, b.Pods.Prefixes) &&
		slices.Equal(a.ServiceCIDRs, b.ServiceCIDRs) && slices.Equal(a.EndpointsInServiceCIDRs, b.EndpointsInServiceCIDRs) &&
		a.Pods.Interface == b.Pods.Interface && a.Pods.InterfacePrefix == b.Pods.InterfacePrefix
}
