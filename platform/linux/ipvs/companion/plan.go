// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package companion

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/ipset"
)

// plan is the change from the observed sets and chains to a snapshot.
type plan struct {
	backend      *Backend
	chains       reconcile.Plan
	create       []string // missing sets
	sets         difference
	comments     map[element]string // of the elements of changed Ports, if delta is set
	next         *installed
	delta        map[element]int // added to next.uses after Apply
	drift        []string
	otherVariant string // what the other variant of iptables contains, "" for nothing
}

// difference is what is added, deleted and renamed between two states of sets. A renamed
// element gets another comment.
type difference struct{ add, del, rename []element }

func (d *difference) empty() bool { return len(d.add)+len(d.del)+len(d.rename) == 0 }

func (d *difference) sort() {
	slices.SortFunc(d.add, element.compare)
	slices.SortFunc(d.del, element.compare)
	slices.SortFunc(d.rename, element.compare)
}

// diff returns the difference from have to want.
func diff(have, want map[element]use) difference {
	var d difference
	for e, u := range want {
		switch has := have[e]; {
		case has.count == 0:
			d.add = append(d.add, e)
		case has.comment != u.comment:
			d.rename = append(d.rename, e)
		}
	}
	for e := range have {
		if want[e].count == 0 {
			d.del = append(d.del, e)
		}
	}
	d.sort()
	return d
}

// drift describes the foreign changes that make d necessary, without the elements of
// missing sets. While the snapshot is partial, extra elements may come from an earlier
// process and are not reported.
func (d difference) drift(f service.Family, missing []string, partial bool) []string {
	var r reconcile.DriftReport
	report := func(what string, all []element) {
		for _, e := range all {
			if slices.Contains(missing, e.set) {
				continue
			}
			r.Add(func() string { return what + ": " + e.text(f) })
		}
	}
	report("missing", d.add)
	report("altered", d.rename)
	if !partial {
		report("foreign", d.del)
	}
	return r.Lines()
}

// text describes e.
func (e element) text(f service.Family) string {
	s := setOf(f, e.set)
	return fmt.Sprintf("element %s of ipset %s", s.Text(e.Entry), s.Name)
}

// Empty implements reconcile.Plan.
func (p *plan) Empty() bool {
	return len(p.create) == 0 && p.sets.empty() && p.otherVariant == "" && p.chains.Empty()
}

// Outcome implements reconcile.Plan.
func (p *plan) Outcome() reconcile.Outcome { return p.outcome(p.chains.Outcome()) }

// outcome returns the outcome of p from that of the chains, without Err. It names nothing
// as removed: the plan of package ipvs reports the frontends of deleted virtual servers.
func (p *plan) outcome(chains reconcile.Outcome) reconcile.Outcome {
	return reconcile.Outcome{Drift: slices.Concat(p.drift, chains.Drift), Suspect: chains.Suspect, Degraded: chains.Degraded, Rules: chains.Rules}
}

// Changes implements reconcile.Plan.
func (p *plan) Changes() reconcile.Changes {
	var all reconcile.Changes
	f := p.backend.family
	for _, name := range p.create {
		all.Add("+ ipset %s", setName(f, name))
	}
	for _, e := range p.sets.add {
		all.Add("+ %s", e.text(f))
	}
	for _, e := range p.sets.del {
		all.Add("- %s", e.text(f))
	}
	for _, e := range p.sets.rename {
		all.Add("~ %s has comment %q", e.text(f), p.comment(e))
	}
	all = append(all, p.chains.Changes()...)
	if p.otherVariant != "" {
		all.Add("- %s, of the other variant of iptables", p.otherVariant)
	}
	return all
}

// A set changes element by element, and independently of the chains. What is matched
// first is added first and deleted last, so that a client always meets either all old or
// all new rules. Policy Local begins when everything that it needs is present, and ends
// before any of that is deleted. All other sets are matched later, or decide alone, as
// those that drop and reject.
var (
	// addBeforeChains are filled before the chains change, in this order.
	addBeforeChains = []string{
		virtualIPSet, clusterIPSet, externalSet,
		internalDroppedSet, externalDroppedSet, droppedSet, refusedSet,
		sourcesSet, restrictedSet, healthCheckSet,
	}
	// addAfterChains are filled after the chains have changed.
	addAfterChains = []string{internalRedirectSet, externalRedirectSet, localSet}
	// deleteLast are emptied at the end.
	deleteLast = []string{
		internalRedirectSet, externalRedirectSet, externalSet,
		internalDroppedSet, externalDroppedSet, droppedSet, refusedSet,
		restrictedSet, sourcesSet, clusterIPSet, virtualIPSet, healthCheckSet,
	}
)

// Apply implements reconcile.Plan. If the kernel refuses the chains of a Port, nothing
// is redirected by them, and the error names the Port.
func (p *plan) Apply(ctx context.Context) reconcile.Outcome {
	chains := p.chains.Outcome()
	err := p.change(ctx, &chains)
	out := p.outcome(chains)
	out.Err = err
	return out
}

// change makes the changes of p, and sets the outcome of the chains.
func (p *plan) change(ctx context.Context, of *reconcile.Outcome) error {
	b := p.backend
	b.installed = nil // if anything fails, the next Plan reads the sets
	for _, name := range p.create {
		if err := b.sets.Create(setOf(b.family, name)); err != nil {
			return fmt.Errorf("make ipset %s: %w", setName(b.family, name), err)
		}
	}
	// A failure ends Apply: the next step depends on this one.
	if err := p.addElements(addBeforeChains, nil); err != nil {
		return err
	}
	narrows := func(e element) bool { return !p.liftsRestriction(e) }
	if err := p.deleteElements(narrows, sourcesSet); err != nil {
		return err
	}
	if err := p.deleteElements(anyElement, localSet); err != nil {
		return err
	}
	if !p.chains.Empty() {
		*of = p.chains.Apply(ctx)
	}
	chains := of.Err
	if !reconcile.OnlyPortErrors(chains) {
		return chains
	}
	but := p.refusedFrontends(chains)
	err := p.addElements(addAfterChains, but)
	if err == nil {
		err = p.deleteElements(func(e element) bool {
			return !but[e.frontend()] && (e.set != sourcesSet || p.liftsRestriction(e))
		}, deleteLast...)
	}
	if p.otherVariant != "" && chains == nil && err == nil {
		err = b.otherVariant.Remove(ctx)
	}
	if err = errors.Join(chains, err); err != nil {
		return err
	}
	if !p.sets.empty() || len(p.create) > 0 {
		p.next.sizes, p.next.sizesReadAt, err = b.currentSizes(nil, p.chains)
	}
	if err == nil {
		p.recordInstalled()
	}
	return err
}

// refusedFrontends returns the addresses and ports of the Ports that err is about. They
// stay as they are.
func (p *plan) refusedFrontends(err error) map[ipset.Entry]bool {
	fronts := map[ipset.Entry]bool{}
	for _, e := range reconcile.PortErrors(err) {
		if port := p.next.snapshot.Port(p.backend.family, e.Name); port != nil {
			p.next.localNode.elements(port, func(e element) { fronts[e.frontend()] = true })
		}
	}
	return fronts
}

// frontend returns the address and port of e.
func (e element) frontend() ipset.Entry {
	e.Net = netip.Prefix{}
	return e.Entry
}

// addElements adds the planned elements of sets, except those of the frontends in but.
// It adds renamed elements again: the kernel replaces the comment of an element that
// exists (kernel: net/netfilter/ipset/ip_set_hash_gen.h, mtype_add).
func (p *plan) addElements(sets []string, but map[ipset.Entry]bool) error {
	b := p.backend
	for _, name := range sets {
		var members []ipset.Member
		for _, e := range slices.Concat(p.sets.add, p.sets.rename) {
			if e.set == name && !but[e.frontend()] {
				members = append(members, ipset.Member{Entry: e.Entry, Comment: p.comment(e)})
			}
		}
		if len(members) == 0 {
			continue
		}
		if err := b.sets.Add(setOf(b.family, name), members); err != nil {
			return err
		}
	}
	return nil
}

// liftsRestriction reports whether a source is deleted because all sources are allowed
// now: the frontend is no longer restricted. Other sources are deleted before any new
// rule admits them.
func (p *plan) liftsRestriction(e element) bool {
	_, goes := slices.BinarySearchFunc(p.sets.del, element{restrictedSet, e.frontend()}, element.compare)
	return goes
}

func anyElement(element) bool { return true }

// deleteElements deletes the planned elements of sets that match.
func (p *plan) deleteElements(match func(element) bool, sets ...string) error {
	b := p.backend
	for _, name := range sets {
		var entries []ipset.Entry
		for _, e := range p.sets.del {
			if e.set == name && match(e) {
				entries = append(entries, e.Entry)
			}
		}
		if len(entries) == 0 {
			continue
		}
		if err := b.sets.Del(setOf(b.family, name), entries); err != nil {
			return err
		}
	}
	return nil
}

// element is an entry of a set. set is the name without the common prefix.
type element struct {
	set string
	ipset.Entry
}

func (e element) compare(o element) int {
	return cmp.Or(cmp.Compare(e.set, o.set), e.Entry.Compare(o.Entry))
}

// LocalNode is a node with the reservations of its own addresses.
type LocalNode struct {
	node *service.Node
	// reserved are addresses and ports of the node that are not for NodePorts, because a
	// Service has them as external ones.
	reserved map[ipset.Entry]bool
}

// NewLocalNode returns the LocalNode of s in one family.
func NewLocalNode(s *service.Snapshot, f service.Family) LocalNode {
	at := LocalNode{s.Node, map[ipset.Entry]bool{}}
	for p := range s.Ports(f) {
		for _, e := range at.reservedBy(p) {
			at.reserved[e] = true
		}
	}
	return at
}

// reservedBy returns the node addresses and ports that p, which may be nil, reserves.
func (l LocalNode) reservedBy(p *service.Port) []ipset.Entry {
	if p == nil {
		return nil
	}
	var all []ipset.Entry
	for _, f := range p.Frontends {
		if f.Kind != service.NodePort && l.hasAddr(f.Addr) {
			all = append(all, ipset.Entry{Addr: f.Addr, Protocol: p.Name.Protocol, Port: f.Port})
		}
	}
	return all
}

func (l LocalNode) hasAddr(a netip.Addr) bool { return slices.Contains(l.node.Addrs, a) }

// entries returns the addresses and ports of a frontend.
func (l LocalNode) entries(p *service.Port, f *service.Frontend) []ipset.Entry {
	var all []ipset.Entry
	for _, a := range addressesOf(p, f, l.node) {
		e := ipset.Entry{Addr: a.Addr, Protocol: a.Protocol, Port: a.Port}
		if f.Kind != service.NodePort || !l.reserved[e] {
			all = append(all, e)
		}
	}
	return all
}

// elements calls add with each set element of p. The same element may occur more than
// once.
func (l LocalNode) elements(p *service.Port, add func(element)) {
	for _, e := range l.healthChecks(p) {
		add(e)
	}
	for i := range p.Frontends {
		f := &p.Frontends[i]
		if f.Kind == service.ClusterIP {
			add(element{clusterIPSet, ipset.Entry{Addr: f.Addr}})
		}
		if f.Kind != service.NodePort && !l.hasAddr(f.Addr) {
			add(element{virtualIPSet, ipset.Entry{Addr: f.Addr}})
		}
		for _, e := range l.entries(p, f) {
			for _, set := range setsFor(p, f) {
				add(element{set, e})
			}
			if f.Sources != nil {
				addRestricted(f, e, add)
			}
		}
	}
}

// healthChecks returns the elements for health checks of p. They are answered where
// NodePorts are.
func (l LocalNode) healthChecks(p *service.Port) []element {
	if p.HealthCheck == 0 {
		return nil
	}
	var all []element
	for _, a := range addressesOf(p, &service.Frontend{Kind: service.NodePort, Port: p.HealthCheck}, l.node) {
		e := ipset.Entry{Addr: a.Addr, Protocol: service.TCP, Port: a.Port}
		all = append(all, element{healthCheckSet, e})
	}
	return all
}

// addRestricted adds the elements that admit only the sources of f at e.
func addRestricted(f *service.Frontend, e ipset.Entry, add func(element)) {
	add(element{restrictedSet, e})
	for _, s := range f.Sources {
		for _, half := range ipset.Halves(s) {
			e.Net = half
			add(element{sourcesSet, e})
		}
	}
}

// setsFor returns the sets that f belongs to, none if it needs no special treatment.
func setsFor(p *service.Port, f *service.Frontend) []string {
	switch {
	case !p.HasEndpoints():
		return []string{refusedSet}
	case f.Kind.External() && p.External == service.PolicyLocal:
		return append(localPolicySets(p), localSet)
	case len(p.Endpoints(f.Kind)) == 0:
		return []string{droppedSet}
	case f.Kind.External():
		return []string{externalSet}
	}
	return nil
}

// localPolicySets returns the sets for external policy Local, which distinguish internal
// and external clients. An external virtual server of p has one list of endpoints, see
// PreservesClientIP. Clients that need the other list are redirected to the ClusterIP,
// which has it.
func localPolicySets(p *service.Port) []string {
	var in []string
	if len(p.Cluster) == 0 {
		in = append(in, internalDroppedSet)
	}
	if len(p.Local) == 0 {
		in = append(in, externalDroppedSet)
	}
	switch {
	case !hasClusterIP(p): // all clients use the same list
	case p.Internal == service.PolicyCluster && len(p.Cluster) > 0:
		in = append(in, internalRedirectSet)
	case p.Internal == service.PolicyLocal && len(p.Local) > 0:
		in = append(in, externalRedirectSet)
	}
	return in
}

// ServerEndpoints returns the endpoints of the virtual server for frontends of kind k.
// With external policy Local these are the endpoints that its ClusterIP does not have.
func ServerEndpoints(p *service.Port, k service.Kind) []service.Endpoint {
	switch {
	case !k.External() || p.External == service.PolicyCluster:
		return p.Endpoints(k)
	case PreservesClientIP(p, k):
		return p.Local
	}
	return p.Cluster
}

// PreservesClientIP reports whether the virtual server for frontends of kind k receives
// external clients that are not masqueraded. A remote endpoint would reply to them
// directly.
func PreservesClientIP(p *service.Port, k service.Kind) bool {
	byClusterIP := hasClusterIP(p) && p.Internal == service.PolicyLocal
	return p.External == service.PolicyLocal && k.External() != byClusterIP
}

func hasClusterIP(p *service.Port) bool {
	return slices.ContainsFunc(p.Frontends, func(f service.Frontend) bool { return f.Kind == service.ClusterIP })
}
