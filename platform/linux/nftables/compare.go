// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"kubeproxy/common/service"
)

// table is what the kernel holds under our table name.
type table struct {
	dormant    bool // the kernel runs none of its chains
	otherFlags bool // it has flags that cannot be cleared
	chains     map[string]*observedChain
	sets       map[string]*observedSet
}

// observedChain holds the fingerprints of the rules, "" for those of another owner.
type observedChain struct {
	hook         string // in the format of hook.spec, "" if it is not a base chain
	policyDrop   bool   // its policy is drop
	fingerprints []string
}

// fingerprint identifies r. It is user data of the rule, and lost when others replace the rule.
func (r rule) fingerprint(f service.Family) string {
	sum := sha256.Sum256([]byte(r.text(f)))
	return string(sum[:8])
}

func (h *hook) spec() string {
	if h == nil {
		return ""
	}
	s := fmt.Sprintf("%s %d", h.name, h.priority)
	if h.filter {
		s += " " + h.typ()
	}
	return s
}

// planFull compares the table, element by element, with what want needs. have is what we
// last installed, or nil if that is unknown. It serves to report drift.
func (b *Backend) planFull(t *table, have *installed, want *service.Snapshot) *plan {
	var drift []string
	if have != nil {
		drift = b.drift(t.clone(), have)
	}
	p := b.compare(t, want)
	p.drift = drift
	return p
}

// compare plans the steps from t, nil without a table, to want. It consumes t. If a wanted name
// belongs to another kind of object, which the kernel cannot change, it replaces the table.
func (b *Backend) compare(t *table, want *service.Snapshot) *plan {
	var incompatible []string
	if t != nil {
		c := &comparison{backend: b, want: want, table: t}
		p := c.plan()
		if len(c.incompatible) == 0 {
			return p
		}
		incompatible = c.incompatible
	}
	c := &comparison{backend: b, want: want, table: &table{}, baseOps: []op{{verb: addTable, table: b.options.table()}}}
	if t != nil {
		c.baseOps = []op{{verb: delTable, table: b.options.table()}, {verb: addTable, table: b.options.table()}}
	}
	p := c.plan()
	p.incompatible = incompatible
	return p
}

// comparison is one run of compare.
type comparison struct {
	backend      *Backend
	want         *service.Snapshot
	table        *table
	baseOps      []op
	next         *installed
	units        []unit
	chains       map[string]bool // chains to keep
	sets         map[string]*set // sets to keep
	staleClients []layout
	removed      []*service.Port
	incompatible []string // objects with a wanted name that cannot be changed to what is wanted
}

func (c *comparison) plan() *plan {
	f, o := c.backend.family, c.backend.options
	c.next = &installed{snapshot: c.want, options: c.backend.effectiveOptions(), slots: map[service.PortName]slots{}, classes: baseClasses, shared: newShared()}
	c.chains, c.sets = map[string]bool{}, map[string]*set{}
	if c.table.otherFlags {
		c.incompatible = append(c.incompatible, "flags of table "+o.table())
	}
	if c.table.dormant {
		c.units = append(c.units, unit{ops: []op{{verb: clearDormant, table: o.table()}}, prerequisite: true})
	}
	var layouts []layout
	for p := range c.want.Ports(f) {
		l := c.observedLayout(p).next(p)
		layouts = append(layouts, l)
		if !l.slots.identity() {
			c.next.slots[p.Name] = l.slots
		}
		c.next.classes = c.next.classes.union(l.neededClasses())
		c.next.shared.add(p, 1)
	}
	c.next.classes = c.next.classes.union(c.observedClasses())
	for _, s := range o.sets() {
		c.addSet(&c.baseOps, s)
	}
	for _, x := range append(baseChains(f, c.want.Node, c.backend.effectiveOptions()), c.next.classes.chains(o)...) {
		c.addChain(&c.baseOps, x)
	}
	if len(c.baseOps) > 0 {
		c.units = append(c.units, unit{ops: c.baseOps, prerequisite: true})
	}
	for _, l := range layouts {
		c.port(l)
	}
	c.compareShared()
	c.deleteExtraneous()
	return &plan{backend: c.backend, next: c.next, units: c.units, staleClients: c.staleClients, removed: c.removed, fullSync: true}
}

// addSet records s as wanted, and adds it if it is missing.
func (c *comparison) addSet(ops *[]op, s *set) {
	c.sets[s.name] = s
	observed := c.table.sets[s.name]
	switch {
	case observed == nil:
		*ops = append(*ops, op{verb: addSet, set: s})
	case observed.spec != s.spec(c.backend.family):
		c.incompatible = append(c.incompatible, "set "+s.name)
	}
}

// addChain records x as wanted, and corrects its policy and rules.
func (c *comparison) addChain(ops *[]op, x *chain) {
	c.chains[x.name] = true
	observed := c.table.chains[x.name]
	if observed == nil {
		*ops = appendChain(*ops, x)
		return
	}
	if observed.hook != x.hook.spec() {
		c.incompatible = append(c.incompatible, "hook of chain "+x.name)
	}
	if observed.policyDrop {
		*ops = append(*ops, op{verb: acceptPolicy, chain: x})
	}
	var wanted []string
	for _, r := range x.rules {
		wanted = append(wanted, r.fingerprint(c.backend.family))
	}
	if !slices.Equal(wanted, observed.fingerprints) && !c.keepsPendingNodePorts(x.name, wanted, observed.fingerprints) {
		*ops = append(*ops, op{verb: flushChain, chain: x}, op{verb: addRules, chain: x})
	}
}

// keepsPendingNodePorts reports whether observed rules exceed wanted ones only by NodePorts that an
// earlier process opened on node addresses that are not known yet.
func (c *comparison) keepsPendingNodePorts(name string, wanted, observed []string) bool {
	n := len(wanted)
	return name == dispatchChain && c.want.Node.NodePortsPending[c.backend.family] &&
		len(observed) > n && slices.Equal(observed[:n], wanted) && !slices.Contains(observed, "")
}

// port adds the unit with the missing parts of l.
func (c *comparison) port(l layout) {
	if c.table.sets == nil { // nothing to compare with: Apply computes the steps later
		c.units = append(c.units, unit{to: l})
		return
	}
	var ops []op
	for _, s := range ownSets(l.port) {
		c.addSet(&ops, s)
	}
	for _, x := range ownChains(l.port, c.backend.options) {
		c.addChain(&ops, x)
	}
	if ops = c.compareElements(ops, l.elements()...); len(ops) > 0 {
		c.units = append(c.units, unit{to: l, ops: ops})
	}
	for _, w := range service.Policies {
		for _, g := range l.groups(w) {
			if c.hasStaleClients(g.clients, g.members) {
				c.staleClients = append(c.staleClients, l)
			}
		}
	}
}

// hasStaleClients reports whether a client is recorded for an endpoint that was removed.
func (c *comparison) hasStaleClients(clients *set, members map[string]bool) bool {
	observed := c.table.sets[clients.name]
	if observed == nil {
		return false
	}
	for _, e := range observed.elements {
		if !members[e.value] {
			return true
		}
	}
	return false
}

// compareElements appends the ops for missing and different elements of want. It removes those it
// finds from the observed sets, where only extraneous ones remain.
func (c *comparison) compareElements(ops []op, want ...element) []op {
	for _, e := range want {
		observed := c.table.sets[e.in.name]
		if observed == nil {
			ops = append(ops, op{verb: addElement, element: e})
			continue
		}
		k := elementKey(e)
		x, found := observed.elements[k]
		if !found || !x.same(e) {
			if old, found := observed.get(k); found {
				old.in = e.in
				ops = append(ops, op{verb: delElement, element: old})
			}
			ops = append(ops, op{verb: addElement, element: e})
		}
		delete(observed.elements, k)
	}
	return ops
}

// deleteExtraneous adds units that delete everything in the table that is not wanted.
func (c *comparison) deleteExtraneous() {
	if c.want.Incomplete {
		return
	}
	var ops, deletions []op
	for _, name := range slices.Sorted(maps.Keys(c.table.sets)) {
		observed, s := c.table.sets[name], c.sets[name]
		if s == nil {
			deletions = append(deletions, op{verb: delSet, set: &set{name: name}})
			continue
		}
		if s.timeout != 0 {
			continue
		}
		for _, k := range slices.Sorted(maps.Keys(observed.elements)) {
			e, _ := observed.get(k)
			e.in = s
			ops = append(ops, op{verb: delElement, element: e})
			c.recordRemovedFrontend(e)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.table.chains)) {
		if !c.chains[name] {
			deletions = appendChainDelete(deletions, &chain{name: name})
		}
	}
	for part := range slices.Chunk(ops, chunk) {
		c.units = append(c.units, unit{ops: part})
	}
	if len(deletions) > 0 {
		c.units = append(c.units, unit{ops: deletions})
	}
}

// recordRemovedFrontend records the frontend that is removed with e, if e describes one.
func (c *comparison) recordRemovedFrontend(e element) {
	if e.catchAll {
		return
	}
	f := service.Frontend{Kind: service.NodePort}
	key := e.key
	switch e.in {
	case services, externalLocal:
		n := daddr.size(c.backend.family)
		f.Kind = service.ExternalIP // or another kind with an address
		f.Addr, _ = netip.AddrFromSlice(key[:n])
		key = key[n:]
	case nodePorts, nodePortLocal:
	default:
		return
	}
	f.Port = binary.BigEndian.Uint16(key[4:])
	c.removed = append(c.removed, &service.Port{
		Name:   service.PortName{Protocol: service.Protocol(key[0])},
		Family: c.backend.family, Frontends: []service.Frontend{f},
	})
}

// observedClasses returns the classes whose chains exist, and stay: the list may grow again.
func (c *comparison) observedClasses() classes {
	var observed classes
	for i, p := range pickers {
		for class := uint32(1); class <= maxClass; class <<= 1 {
			if c.table.chains[classChain(p.name, class)] != nil {
				observed[i] |= class
			}
		}
	}
	return observed
}

// observedLayout reads the current slots of the endpoints of p from the table, so that
// endpoints can keep them. All frontends agree, so any of them serves.
func (c *comparison) observedLayout(p *service.Port) layout {
	l := layout{port: &service.Port{Name: p.Name, Family: p.Family}}
	b := &builder{layout: layout{port: p}, family: p.Family}
	for i := range p.Frontends {
		f := &p.Frontends[i]
		main, in := endpoints, internalEndpoints
		if f.Kind == service.NodePort {
			main, in = nodePortEndpoints, nodePortInternalEndpoints
		}
		w := p.Policy(f.Kind)
		if w == service.PolicyLocal {
			c.readEndpointList(&l, service.PolicyCluster, in, func(n int) []byte { return b.key(f, n) })
		}
		c.readEndpointList(&l, w, main, func(n int) []byte { return b.key(f, n) })
	}
	for _, w := range service.Policies {
		if p.Affinity > 0 && p.Consistent.Slots == 0 {
			c.readEndpointList(&l, w, choiceSet(p, w), func(n int) []byte { return appendSlot(nil, uint32(n)) })
		}
	}
	return l
}

// readEndpointList reads one list of l from a map, unless it was read before. The list
// stays in slot order, which arrange accepts.
func (c *comparison) readEndpointList(l *layout, w service.Policy, in *set, key func(int) []byte) {
	observed := c.table.sets[in.name]
	if observed == nil || l.len(w) > 0 {
		return
	}
	var found []service.Endpoint
	for n := range maxClass {
		e, ok := observed.get(string(key(n)))
		if !ok {
			break
		}
		found = append(found, service.Endpoint{Addr: targetOf(e.value)})
	}
	if w == service.PolicyLocal {
		l.port.Local = found
	} else {
		l.port.Cluster = found
	}
}

// targetOf decodes an address and port as a targetMap stores them.
func targetOf(value []byte) netip.AddrPort {
	if len(value) < 8 {
		return netip.AddrPort{}
	}
	n := len(value) - 4
	a, _ := netip.AddrFromSlice(value[:n])
	return netip.AddrPortFrom(a, binary.BigEndian.Uint16(value[n:]))
}

// clone copies those parts of t that a comparison changes. t may be nil.
func (t *table) clone() *table {
	if t == nil {
		return nil
	}
	sets := map[string]*observedSet{}
	for name, s := range t.sets {
		sets[name] = &observedSet{s.spec, maps.Clone(s.elements)}
	}
	return &table{dormant: t.dormant, otherFlags: t.otherFlags, chains: t.chains, sets: sets}
}
