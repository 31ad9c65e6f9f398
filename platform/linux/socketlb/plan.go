// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package socketlb

import (
	"context"
	"fmt"
	"iter"
	"math/bits"
	"net/netip"
	"slices"
	"strings"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

// plan implements reconcile.Plan.
type plan struct {
	backend *Backend
	want    *service.Snapshot
	remove  bool
	// rebuild is why new tables are needed, if they are. Then changes does not count.
	rebuild string
	moved   string // as Driver.Moved says
	evict   bool   // what an earlier process attached
	changes []change
	drift   []string
}

// change is a ClusterIP and port with its endpoints. Without any it is not taken any more.
type change struct {
	addr      netip.AddrPort
	endpoints []service.Endpoint
	port      *service.Port // nil if the snapshot does not have it
}

func (c change) String() string { return c.describe("+ ", "- ") }

// describe describes c after the word for what it does.
func (c change) describe(add, del string) string {
	if len(c.endpoints) == 0 {
		return del + fmt.Sprintf("take no connection to %s", c.addr)
	}
	var all []string
	for _, e := range c.endpoints {
		all = append(all, e.Addr.String())
	}
	return add + fmt.Sprintf("take connections to %s, %s: %s", c.addr, c.port.Name, strings.Join(all, " "))
}

// compare finds what differs from the tables. If an earlier process wrote them, nothing is drift.
func (p *plan) compare(first bool) {
	b := p.backend
	if err := b.driver.Attached(); err != nil {
		p.rebuild = err.Error()
		if !first {
			p.drift = append(p.drift, p.rebuild)
		}
		return
	}
	if n := b.tables.unplaced; n > 0 {
		p.rebuild = fmt.Sprintf("%d addresses have no place in these", n)
		return
	}
	var err error
	if p.moved, err = b.driver.Moved(); err != nil {
		p.rebuild = fmt.Sprintf("look for the cgroups of pods: %v", err)
		return
	}
	p.evict = b.lookAround().Strays > 0
	if !first {
		var r reconcile.DriftReport
		for _, c := range b.tables.differences(b.have, b.family) {
			r.Add(func() string { return c.describe("altered: ", "altered: ") })
		}
		p.drift = r.Lines()
	}
	p.changes = b.tables.differences(p.want, b.family)
}

// follow finds what differs between the last snapshot and this one.
func (p *plan) follow() {
	b := p.backend
	if !takes(p.want.Node) {
		return
	}
	set := map[netip.AddrPort]bool{}
	var released []change
	for c := range service.Diff(b.have, p.want, b.family) {
		for f := range frontendsOf(c.New) {
			set[f.addr] = true
			p.changes = append(p.changes, f)
		}
		for f := range frontendsOf(c.Old) {
			released = append(released, change{addr: f.addr})
		}
	}
	for _, c := range released {
		if !set[c.addr] { // another Service may have the address now
			p.changes = append(p.changes, c)
		}
	}
}

func (p *plan) Empty() bool {
	return !p.remove && p.rebuild == "" && p.moved == "" && !p.evict && len(p.changes) == 0
}

func (p *plan) Changes() reconcile.Changes {
	var all reconcile.Changes
	switch {
	case p.remove:
		all.Add("- remove socket acceleration of %s", p.backend.family)
		return all
	case p.rebuild != "":
		all.Add("+ make tables of socket acceleration of %s: %s", p.backend.family, p.rebuild)
		return all
	}
	if p.moved != "" {
		all.Add("+ take connections of other pods: %s", p.moved)
	}
	if p.evict {
		all.Add("- detach programs of socket acceleration of %s that an earlier process left", p.backend.family)
	}
	for _, c := range p.changes {
		x := reconcile.Change{Text: c.String(), Named: true}
		if c.port != nil {
			x.Port = c.port.Name
		}
		all = append(all, x)
	}
	return all
}

func (p *plan) Outcome() reconcile.Outcome {
	o := reconcile.Outcome{Drift: p.drift}
	switch b := p.backend; {
	case b.fault != "" && b.others != "":
		o.Degraded = fmt.Sprintf("socket acceleration of %s cannot be kept up to date: %s; %s", b.family, b.fault, b.others)
	case b.fault != "":
		o.Degraded = fmt.Sprintf("socket acceleration of %s is off, and all its connections meet the rules: %s", b.family, b.fault)
	case b.tables != nil && b.tables.unplaced > 0:
		o.Degraded = fmt.Sprintf("socket acceleration of %s has no place for %d addresses, which the rules serve", b.family, b.tables.unplaced)
	case b.others != "" && b.off:
		o.Degraded = fmt.Sprintf("socket acceleration of %s, which is off, may be in force, with old lists: %s", b.family, b.others)
	case b.others != "":
		o.Degraded = fmt.Sprintf("socket acceleration of %s may not be what decides: %s", b.family, b.others)
	case b.tables != nil && b.missed.text != "":
		o.Degraded = fmt.Sprintf("socket acceleration of %s takes no connection of pods: %s", b.family, b.missed.text)
	}
	return o
}

func (p *plan) Apply(context.Context) reconcile.Outcome {
	b := p.backend
	if p.remove {
		err := b.driver.Remove()
		if known(err) != nil {
			return reconcile.Outcome{Err: fmt.Errorf("remove socket acceleration that an earlier process left: %w", err)}
		}
		b.have, b.others = p.want, suspicion(err)
		return p.Outcome()
	}
	b.have, b.fault = p.want, ""
	err := p.write()
	if err == nil {
		return p.Outcome()
	}
	// Tables with old lists are worse than none.
	b.tables, b.fault = nil, err.Error()
	err = b.driver.Remove()
	b.others = suspicion(err)
	o := p.Outcome()
	if err := known(err); err != nil {
		b.have = nil
		o.Err = fmt.Errorf("remove socket acceleration of %s, which could not be changed: %w", b.family, err)
	}
	return o
}

// write brings the tables up to date.
func (p *plan) write() error {
	b := p.backend
	if p.rebuild != "" {
		return p.build()
	}
	if p.moved != "" {
		if err := b.driver.Follow(); err != nil {
			return err
		}
	}
	if p.evict {
		if err := b.evict(); err != nil {
			return err
		}
	}
	for _, c := range p.changes {
		ok, err := b.tables.set(c, b.driver.Barrier)
		if err != nil {
			return err
		}
		if !ok || b.tables.unplaced > 0 {
			return p.build()
		}
	}
	return nil
}

// seeds is how many tables are tried for a place for each name: one, unless its seed was guessed.
const seeds = 3

// build makes new tables with room to grow, and puts them in force.
func (p *plan) build() error {
	b := p.backend
	t, err := p.fill()
	for range seeds - 1 {
		if err == nil && t.unplaced > 0 {
			t, err = p.fill()
		}
	}
	if err != nil {
		return err
	}
	if err := b.driver.Activate(); err != nil {
		return err
	}
	b.tables = t
	return b.evict()
}

// fill makes tables, with another seed each time.
func (p *plan) fill() (*tables, error) {
	b := p.backend
	frontends, slots := 0, 0
	for f := range allFrontends(p.want, b.family) {
		frontends++
		slots += runFor(len(f.endpoints))
	}
	m, err := b.driver.Build(entriesFor(frontends), slotsFor(slots))
	if err != nil {
		return nil, err
	}
	t := newTables(m)
	for f := range allFrontends(p.want, b.family) {
		if ok, err := t.set(f, b.driver.Barrier); err != nil {
			return nil, err
		} else if !ok {
			return nil, fmt.Errorf("new tables have no room for %s", f.addr)
		}
	}
	return t, nil
}

// evict leaves no lists in force but those of the tables.
func (b *Backend) evict() error {
	if err := b.driver.Evict(); err != nil {
		return fmt.Errorf("detach programs that an earlier process left: %w", err)
	}
	b.lookAround()
	return nil
}

// lookAround looks for what else may decide.
func (b *Backend) lookAround() Others {
	o, err := b.driver.Others()
	if err != nil {
		o.Text = err.Error()
	}
	b.others = o.Text
	return o
}

// frontendsOf yields the frontends of p that mean the same at connect(2) as in a rule: not UDP,
// whose sockets would stay at an endpoint that left; session affinity, whose clients the rules
// keep; consistent selection; and lists without endpoint, which the rules refuse.
func frontendsOf(p *service.Port) iter.Seq[change] {
	return func(yield func(change) bool) {
		if p == nil || p.Name.Protocol != service.TCP || p.Affinity != 0 || p.SelectsConsistently(service.ClusterIP) || len(p.Endpoints(service.ClusterIP)) == 0 {
			return
		}
		for _, f := range p.Frontends {
			if f.Kind == service.ClusterIP && !yield(change{netip.AddrPortFrom(f.Addr, f.Port), p.Endpoints(service.ClusterIP), p}) {
				return
			}
		}
	}
}

// takes reports whether anything is taken on a node. With masqueradeAll, an endpoint must
// see the address of the node, which connect cannot arrange for a pod.
func takes(n *service.Node) bool { return !n.MasqueradeAll }

// allFrontends yields what is taken of s in family f.
func allFrontends(s *service.Snapshot, f service.Family) iter.Seq[change] {
	return func(yield func(change) bool) {
		if !takes(s.Node) {
			return
		}
		for p := range s.Ports(f) {
			for x := range frontendsOf(p) {
				if !yield(x) {
					return
				}
			}
		}
	}
}

// allocator hands out slots. A run that was given back may still be read by a program, so it cools
// until the driver's barrier, after which no such program runs.
type allocator struct {
	next, size int // the slots from next on were never used
	live       int
	free       map[int][]int // first slots, by length
	cooling    map[int][]int
	cold       bool // the slots from next on may be in use by a program, too
}

func newAllocator(size int) *allocator {
	return &allocator{size: size, free: map[int][]int{}, cooling: map[int][]int{}}
}

// runFor returns the length of the run for a list of n, often the same for about as many.
func runFor(n int) int {
	step := 1 << max(bits.Len(uint(n))-3, 0)
	return (n + step - 1) &^ (step - 1)
}

// take returns the first slot of a run for n, or false if there is none without a barrier.
func (a *allocator) take(n int) (first int, ok bool) {
	run := runFor(n)
	if same := a.free[run]; len(same) > 0 {
		first = same[len(same)-1]
		a.free[run] = same[:len(same)-1]
		a.live += run
		return first, true
	}
	if a.cold || a.next+run > a.size {
		return 0, false
	}
	first, a.next = a.next, a.next+run
	a.live += run
	return first, true
}

// give takes back the run of l.
func (a *allocator) give(l list) {
	if l.len() == 0 {
		return
	}
	run := runFor(l.len())
	a.live -= run
	a.cooling[run] = append(a.cooling[run], l.first())
}

// hopeful reports whether a barrier is worth its time: it frees many of the slots.
func (a *allocator) hopeful() bool { return a.cold || a.live <= a.size/2 && len(a.cooling) > 0 }

// cool frees what was given back. It follows a barrier.
func (a *allocator) cool() {
	for run, firsts := range a.cooling {
		a.free[run] = append(a.free[run], firsts...)
	}
	clear(a.cooling)
	a.cold = false
}

// adopt returns the allocator of m, which another process has filled.
func adopt(m *Memory) (a *allocator, live int) {
	a = newAllocator(m.size())
	a.cold = true
	for i := range m.entries() {
		if m.used(m.at(i)) {
			live++
		}
		if l := m.list(i); l.len() > 0 {
			a.live += runFor(l.len())
			a.next = max(a.next, l.first()+runFor(l.len()))
		}
	}
	return a, live
}

// shown is a frontend as text shows it.
type shown struct {
	addr      netip.AddrPort
	endpoints []netip.AddrPort
	fault     string // of its list
}

// Objects returns the lists that s asks for, as comments that nft, iptables-restore, ipvsadm and
// ipset ignore: each frontend, and its endpoints line by line.
func Objects(s *service.Snapshot, f service.Family) reconcile.Objects {
	var all []shown
	for x := range allFrontends(s, f) {
		to := shown{addr: x.addr}
		for _, e := range x.endpoints {
			to.endpoints = append(to.endpoints, e.Addr)
		}
		all = append(all, to)
	}
	return objects(s, f, "", all)
}

// ReadBack returns the kernel's lists, none without programs, and those for want, none if the layer
// is off, as Objects does.
func (b *Backend) ReadBack(want *service.Snapshot) (held, wanted reconcile.Objects, err error) {
	if !b.off {
		wanted = Objects(want, b.family)
	}
	if there, err := b.driver.Installed(); err != nil || !there {
		return nil, wanted, err
	}
	s, err := b.Inspect()
	if err != nil || s == nil {
		return nil, wanted, err
	}
	var all []shown
	for i := range s.entries() {
		if n := s.at(i); s.used(n) && s.list(i) != 0 {
			to := shown{addr: n.addrPort(b.family)}
			damaged := false
			if to.endpoints, damaged = s.endpoints(to.addr); damaged {
				to.fault = "its list is damaged"
			}
			all = append(all, to)
		}
	}
	return objects(want, b.family, s.Fault, all), wanted, nil
}

// objects returns frontends, with the names that want has for them.
func objects(want *service.Snapshot, f service.Family, fault string, all []shown) reconcile.Objects {
	names := map[netip.AddrPort]service.PortName{}
	for p := range want.Ports(f) {
		for _, x := range p.Frontends {
			if x.Kind == service.ClusterIP && p.Name.Protocol == service.TCP {
				names[netip.AddrPortFrom(x.Addr, x.Port)] = p.Name
			}
		}
	}
	var out reconcile.Objects
	none := service.PortName{}
	out.Add("# socket acceleration, %s\n", f)
	if fault != "" {
		out.Add("# not in force: %s\n", fault)
	}
	slices.SortFunc(all, func(a, b shown) int { return a.addr.Compare(b.addr) })
	for _, to := range all {
		of, owner := names[to.addr], "of no Service"
		if of != none {
			owner = of.String()
		}
		out.AddFor(of, "# connect tcp %s, %s\n", to.addr, owner)
		if to.fault != "" {
			out.AddFor(of, "#   %s\n", to.fault)
		}
		slices.SortFunc(to.endpoints, netip.AddrPort.Compare)
		for _, e := range to.endpoints {
			out.AddFor(of, "#   %s\n", e)
		}
	}
	return out
}
