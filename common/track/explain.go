// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package track

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"kubeproxy/common/printable"
	"kubeproxy/common/service"
)

// Listed is an address in EndpointSlices of a port. The JSON form is in answers to users.
type Listed struct {
	Address string `json:"address"`        // with its port
	Node    string `json:"node,omitempty"` // as the slice says
	Zone    string `json:"zone,omitempty"`
	Local   bool   `json:"local"` // on this node
	// State is ready, not ready, serving (terminating, but still in service) or terminating.
	State string `json:"state"`
	// Failed is set if the latest connection to it through the process failed.
	Failed *Failure `json:"failed,omitempty"`
}

// Failure is a connection that did not reach an endpoint.
type Failure struct {
	Error string    `json:"error"`
	At    time.Time `json:"at"`
}

// Candidate is a Listed address, and how it is used.
type Candidate struct {
	Listed
	Ready bool `json:"-"` // may terminate, too
	// Cluster and ForLocal say whether it gets new connections under the traffic policy
	// Cluster and Local. ForLocal is nil if neither policy of the port is Local.
	Cluster  Use  `json:"cluster"`
	ForLocal *Use `json:"forLocal,omitempty"`
}

// text returns the State of a Listed.
func (s state) text() string {
	switch {
	case s.has(terminating | serving):
		return "serving"
	case s.has(terminating):
		return "terminating"
	case s.has(ready):
		return "ready"
	}
	return "not ready"
}

// Use says whether an endpoint gets new connections, and why, as one clause.
type Use struct {
	Used bool   `json:"used"`
	Why  string `json:"why"`
}

// Choice explains which endpoints a Port got.
type Choice struct {
	Candidates []Candidate // sorted by address
	Topology   string      // how topology hints are used, one clause; "" without hints
	// Missed says, if there is no candidate, which slice has ready endpoints that are for
	// another port, protocol, family or Service, as a clause. It is empty without one.
	Missed string
	// Left are addresses of the load balancer that no proxy serves, because of ipMode Proxy.
	Left []netip.AddrPort
}

// Choice explains a Service port's endpoints in the latest snapshot, empty if it is not served.
func (t *Tracker) Choice(f service.Family, name service.PortName) Choice {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.services[types.NamespacedName{Namespace: name.Namespace, Name: name.Name}]
	if s == nil {
		return Choice{}
	}
	for _, p := range s.want {
		if p.Family == f && p.Name == name {
			index := indexOf(s)
			from := index.of(p)
			c := t.choice(s, p, from)
			if len(c.Candidates) == 0 {
				c.Missed = t.missed(s, p, from)
			}
			c.Left = t.leftOf(s, p)
			return c
		}
	}
	return Choice{}
}

// setLeft records the addresses of a Service that are left to its load balancer.
func (t *Tracker) setLeft(name types.NamespacedName, all []netip.Addr) {
	if t.left[name] = all; len(all) == 0 {
		delete(t.left, name)
	}
}

// leftOf returns those of p.
func (t *Tracker) leftOf(s *serviceState, p *service.Port) []netip.AddrPort {
	var all []netip.AddrPort
	i := slices.IndexFunc(p.Frontends, func(f service.Frontend) bool { return f.Kind != service.NodePort })
	for _, a := range t.left[s.name] {
		if i >= 0 && service.FamilyOf(a) == p.Family {
			all = append(all, netip.AddrPortFrom(a, p.Frontends[i].Port))
		}
	}
	return all
}

// LeftAlone returns the Service that leaves the address a to its load balancer, "" for none.
func (t *Tracker) LeftAlone(a netip.Addr) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	first := ""
	for name, all := range t.left {
		if slices.Contains(all, a) && (first == "" || name.String() < first) {
			first = name.String()
		}
	}
	return first
}

func (t *Tracker) choice(s *serviceState, p *service.Port, from []origin) Choice {
	c := chooser{zone: t.nodeInfo.zone, silent: t.silent, policy: t.silentPolicy(s)}
	c.gather(from)
	c.choose(p)
	at := t.interner.placesOf(from)
	out := Choice{Topology: c.topologyText()}
	for _, e := range c.candidates {
		where, but := at[e.addr.Addr()], ""
		if holder := t.claims.holder[clusterIPKey(e.addr.Addr())]; holder.serviceState != nil {
			but = fmt.Sprintf(", but its address is the ClusterIP of service %s", holder.name)
		}
		x := Candidate{
			Listed: Listed{Address: e.addr.String(), Node: where.node, Zone: where.zone, Local: e.state.has(local), State: e.state.text()},
			Ready:  e.state.has(ready), Cluster: c.use(e, c.cluster, c.wantCluster, but),
		}
		if c.wantLocal != 0 {
			use := c.use(e, c.local, c.wantLocal, but)
			x.ForLocal = &use
		}
		out.Candidates = append(out.Candidates, x)
	}
	return out
}

// placesOf returns where each address runs. Slices that list an address twice agree on it.
func (in *interner) placesOf(from []origin) map[netip.Addr]place {
	at := map[netip.Addr]place{}
	for _, s := range from {
		for i, e := range s.slice.endpoints {
			at[s.slice.addr(i)] = in.places[e.place]
		}
	}
	return at
}

// use says whether e is in list, of the candidates with all of want. The reason ends with but.
func (c *chooser) use(e candidate, list []service.Endpoint, want state, but string) Use {
	used := service.Lists(list, e.addr)
	return Use{used, c.reason(e, want, used) + but}
}

func (c *chooser) reason(e candidate, want state, used bool) string {
	missing := want &^ e.state
	silence := c.silence(e, used)
	switch {
	case !used && missing == 0 && silence != "":
		return "it " + silence
	case used && want.has(terminating|local):
		return "it still serves, none here is ready" + silence
	case used && want.has(terminating):
		return "it still serves, none is ready" + silence
	case used:
		return "it is ready" + silence
	case missing.has(local):
		return "it is not on this node"
	case missing.has(ready) && e.state.has(terminating):
		return "it terminates, and others are ready"
	case missing.has(ready):
		return "it is not ready"
	case missing.has(terminating):
		return "it is not ready, and does not terminate"
	case missing.has(serving):
		return "it terminates and serves no more"
	case missing.has(forNode):
		return "its hints are for other nodes"
	case missing.has(forZone):
		return "its hints are for other zones than " + c.zone
	}
	return fmt.Sprintf("only the first %d by address are served", maxEndpoints)
}

// topologyText says how the hints of ready endpoints are used.
func (c *chooser) topologyText() string {
	all, some := c.readyHints()
	switch preferred := c.topology(); {
	case preferred == forNode:
		return "the endpoints with a hint for this node are preferred"
	case preferred == forZone:
		return fmt.Sprintf("the endpoints with a hint for zone %s are preferred", c.zone)
	case some&(nodeHints|zoneHints) == 0:
		return ""
	case all&(nodeHints|zoneHints) == 0:
		return "the hints do not count, because not every ready endpoint has one"
	case all.has(zoneHints) && c.zone == "":
		return "the hints do not count, because the zone of this node is unknown"
	case all.has(zoneHints):
		return fmt.Sprintf("the hints do not count, because none is for zone %s", c.zone)
	}
	return "the hints do not count, because none is for this node"
}

// Claimants are the Services that claim one address and port.
type Claimants struct {
	Holder string // NAMESPACE/NAME, "" if no Service claims it
	// Others do not get it. Each has the reason as a clause: "shop/web, which ...".
	Others []string
}

// Claimants returns the Services that claim a Frontend of p's protocol and family.
func (t *Tracker) Claimants(p *service.Port, f service.Frontend) Claimants {
	t.mu.Lock()
	defer t.mu.Unlock()
	a := p.Address(f)
	holder, taken := t.claims.holder[a]
	if !taken {
		return Claimants{}
	}
	out := Claimants{Holder: holder.name.String()}
	q := t.claims.queue[a]
	if q == nil {
		return out
	}
	others := slices.Clone(q.list)
	slices.SortFunc(others, compareClaims)
	for _, x := range others {
		if x.serviceState != holder.serviceState {
			out.Others = append(out.Others, fmt.Sprintf("%s, but %s has it, %s", x.name, holder.name, holder.reason(x)))
		}
	}
	return out
}

// setReason records why a Service is not served at all, "" if it is or does not exist.
func (t *Tracker) setReason(name types.NamespacedName, reason string) {
	if reason == "" {
		delete(t.reasons, name)
		return
	}
	t.reasons[name] = reason
}

// Unproxied returns in a clause why a Service that exists is not served at all, or "".
func (t *Tracker) Unproxied(name types.NamespacedName) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.reasons[name]
}

// ServicePorts lists the ports that a Service specifies, in the snapshot or not.
func (t *Tracker) ServicePorts(name types.NamespacedName) []*service.Port {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.services[name]
	if s == nil {
		return nil
	}
	return slices.Clone(s.want)
}

// Labels returns the labels of a Service.
func (t *Tracker) Labels(name types.NamespacedName) map[string]string {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.services[name]
	if s == nil {
		return nil
	}
	set, _ := labels.ConvertSelectorToLabelsMap(s.labels) // written by SetService
	return set
}

// Names lists the Services that this proxy handles, sorted, in one namespace or in all.
func (t *Tracker) Names(namespace string) []types.NamespacedName {
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []types.NamespacedName
	for name, s := range t.services {
		if s.want != nil && (namespace == "" || name.Namespace == namespace) {
			all = append(all, name)
		}
	}
	slices.SortFunc(all, func(a, b types.NamespacedName) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	return all
}

// Kind is the kind of object that a Problem concerns.
type Kind uint8

// The kinds. EndpointSlices count as parts of their Service.
const (
	OfService Kind = iota
	OfNode         // the own Node
	OfServiceCIDR
)

// Problem is what had to be left out or interpreted. It never stops the rest.
type Problem struct {
	Kind    Kind
	Service types.NamespacedName // of kind OfService only
	Field   string               // the API's path, such as "spec.ports[1].nodePort"
	Message string
	Code    Code // "" for what needs no name
	// Refused means that an address and port is not served because that would take it
	// from another owner. ThisNode means that other nodes may decide differently.
	Refused, ThisNode bool
}

// String returns the problem on one line, the Service first.
func (p Problem) String() string {
	where := "node"
	if p.Kind == OfService {
		where = "service " + p.Service.String()
	}
	return printable.Text(where + ": " + p.Field + ": " + p.Message)
}

func compareProblems(a, b Problem) int { return strings.Compare(a.String(), b.String()) }

// maxNotes bounds what the Tracker stores and reports for one object.
const maxNotes = 20

// note is a Problem whose Service is known from its container.
type note struct {
	code              Code
	field, message    string
	refused, thisNode bool
}

// notes collects the problems of one object.
type notes struct {
	list []note
	more int // left out of list
}

func (n *notes) add(field, format string, args ...any) { n.addCoded("", field, format, args...) }

// addCoded adds a note about a common mistake.
func (n *notes) addCoded(c Code, field, format string, args ...any) {
	if len(n.list) == maxNotes {
		n.more++
		return
	}
	n.list = append(n.list, note{code: c, field: field, message: fmt.Sprintf(format, args...)})
}

// refuse adds a note about an address that is not served.
func (n *notes) refuse(field, message string, thisNode bool) {
	if len(n.list) == maxNotes {
		n.more++
		return
	}
	n.list = append(n.list, note{field: field, message: message, refused: true, thisNode: thisNode})
}

// all returns the notes. The last one sums up those that did not fit.
func (n *notes) all() []note {
	if n.more > 0 {
		return append(n.list, note{field: n.list[maxNotes-1].field, message: fmt.Sprintf("and %d more problems", n.more)})
	}
	return n.list
}

// at returns the path of element i of a list.
func at(field string, i int) string { return field + "[" + strconv.Itoa(i) + "]" }

// problemsOf turns notes about an object into sorted Problems without duplicates.
func problemsOf(kind Kind, service types.NamespacedName, lists ...[]note) []Problem {
	var all []Problem
	for _, list := range lists {
		for _, n := range list {
			all = append(all, Problem{kind, service, n.field, n.message, n.code, n.refused, n.thisNode})
		}
	}
	slices.SortFunc(all, compareProblems)
	return slices.Compact(all)
}

// misplaced finds addresses of endpoints that are ClusterIPs, or in a ServiceCIDR. An
// endpoint can be neither, see
// https://kubernetes.io/docs/concepts/services-networking/service/#services-without-selectors.
// Only addresses near ClusterIPs are kept, in claims.endpoints: in most clusters none.
type misplaced struct {
	blocks map[netip.Prefix]bool // with a ClusterIP now or earlier
	ranges []netip.Prefix        // of ServiceCIDRs
	listed []netip.Addr          // in ranges, sorted
	stale  bool                  // ranges have changed, or a block is new: all slices are read again
}

// blockBits is the length of a block. A cluster has few, so all slices are seldom read.
var blockBits = [...]int{service.IPv4: 16, service.IPv6: 64}

func blockOf(a netip.Addr) netip.Prefix {
	p, _ := a.Prefix(blockBits[service.FamilyOf(a)]) // never too long
	return p
}

// watch notes that a is a ClusterIP.
func (m *misplaced) watch(a netip.Addr) {
	if block := blockOf(a); !m.blocks[block] {
		m.blocks[block], m.stale = true, true
	}
}

func (m *misplaced) inRange(a netip.Addr) bool {
	return slices.ContainsFunc(m.ranges, func(p netip.Prefix) bool { return p.Contains(a) })
}

// in returns the addresses of endpoints in p, one of ranges.
func (m *misplaced) in(p netip.Prefix) []netip.Addr {
	first, _ := slices.BinarySearchFunc(m.listed, p.Masked().Addr(), netip.Addr.Compare)
	rest := m.listed[first:]
	n, _ := slices.BinarySearchFunc(rest, p, func(a netip.Addr, p netip.Prefix) int {
		if p.Contains(a) {
			return -1
		}
		return 1
	})
	return rest[:n]
}

// count adds the addresses of s.
func (t *Tracker) count(s *slice) {
	m := &t.misplaced
	for i := range s.endpoints {
		a := s.addr(i)
		ranged := m.inRange(a)
		if !ranged && !m.blocks[blockOf(a)] {
			continue
		}
		if k, found := slices.BinarySearchFunc(m.listed, a, netip.Addr.Compare); ranged && !found && !m.stale {
			m.listed = slices.Insert(m.listed, k, a)
		}
		t.claims.endpoints.add(clusterIPKey(a), s.owner)
		s.owner.misplaced++
	}
}

// uncount removes the addresses of s.
func (t *Tracker) uncount(s *slice) {
	m := &t.misplaced
	for i := range s.endpoints {
		a := s.addr(i)
		key := clusterIPKey(a)
		if t.claims.endpoints[key][s.owner] == 0 {
			continue
		}
		t.claims.endpoints.remove(key, s.owner)
		s.owner.misplaced--
		if k, found := slices.BinarySearchFunc(m.listed, a, netip.Addr.Compare); found && t.claims.endpoints[key] == nil {
			m.listed = slices.Delete(m.listed, k, k+1)
		}
	}
}

// recount reads all slices.
func (t *Tracker) recount() {
	m := &t.misplaced
	m.ranges, m.listed = nil, nil
	for _, r := range t.cidrs {
		m.ranges = append(m.ranges, r.prefixes...)
	}
	t.claims.endpoints = dependents{}
	for _, s := range t.services {
		s.misplaced = 0
	}
	for _, s := range t.slices {
		t.count(s)
	}
	m.stale = false
	for key, owners := range t.claims.endpoints {
		if a := key.Addr; m.inRange(a) {
			m.listed = append(m.listed, a)
		}
		if t.claims.holder[key].serviceState == nil {
			continue
		}
		for s := range owners {
			t.markDirty(s)
		}
	}
	slices.SortFunc(m.listed, netip.Addr.Compare)
}

// clusterIPs returns notes about endpoints that are ClusterIPs.
func (r *resolver) clusterIPs() []note {
	var notes notes
	if r.owner.misplaced == 0 || r.owner.want == nil {
		return nil
	}
	for _, s := range r.owner.slices {
		for i := range s.endpoints {
			a := s.addr(i)
			if holder := r.tracker.claims.holder[clusterIPKey(a)]; holder.serviceState != nil {
				notes.addCoded(ClusterIPEndpoint, "endpointslice "+s.name+" endpoints",
					"%q is the ClusterIP of service %s, and is not translated a second time; want the address of a pod", a, holder.name)
			}
		}
	}
	return notes.all()
}
