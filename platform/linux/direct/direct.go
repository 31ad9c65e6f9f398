// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package direct leads packets from outside of the cluster to the node of their endpoint, which translates
// them and answers the client itself. The node by which they come in remembers nothing, so any other
// one may take over, and the client's address stays.
//
// It is a layer above complete rules. All nodes have the same table of slots (service.Table).
// A table of nftables marks packets with the node of the client's slot, a rule and a route for the
// mark lead them into a tunnel of VXLAN-GPE, and the table of the other node translates
// them. What is not marked, the rules translate: so it is for frontends of which a node does not answer
// as a peer.
package direct

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"kubeproxy/common/peers"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/conntrack"
	"kubeproxy/platform/linux/nftables"
	"kubeproxy/platform/mode"
)

// What all nodes agree on.
const (
	Device = "kube-direct"
	Port   = 4790 // of VXLAN-GPE (https://www.iana.org/assignments/service-names-port-numbers)
	Key    = 0x6b7064
	Probe  = 10256
)

// System is the kernel of the node.
type System interface {
	// Prepare makes the tunnel, and a route to a node for each mark. It returns the MTU of the
	// tunnel, and what keeps its packets from getting through.
	Prepare(roads map[uint32]netip.Addr, from netip.Addr) (mtu int, fault string, err error)
	// Intact reports whether the tunnel and the routes are there.
	Intact(roads map[uint32]netip.Addr) (bool, error)
	// Retain removes other routes, and all with nil.
	Retain(roads map[uint32]netip.Addr) error
	// Translated returns connections to frontends that the rules translate to another node.
	Translated(context.Context, map[service.Address]bool) ([]conntrack.Flow, error)
	// SetRules makes the table hold these rules.
	SetRules(context.Context, *nftables.DirectRules) error
	// Senders returns those in the table.
	Senders() ([]netip.Addr, error)
	// Forget makes the next SetRules assume nothing of what is in the kernel.
	Forget()
	// Find returns what there is of the layer, "" for nothing, and Remove removes it.
	Find(context.Context) (string, error)
	Remove(context.Context) error
}

// Backend is the layer for one family. It implements reconcile.Backend.
type Backend struct {
	reconcile.Base
	family service.Family
	system System
	peers  func() mode.Peers
	roads  atomic.Pointer[map[netip.Addr]uint32]
	shown  atomic.Pointer[state] // what the latest round wanted, nil for nothing

	seen    *service.Snapshot
	ports   map[portKey]*service.Port // those that ask
	have    *state                    // nil if unknown
	mtu     int                       // of the tunnel, and what keeps its packets from getting through, with have
	fault   string
	removed bool // there is nothing in the kernel
	// inherited may send until the time, since nodes that have no endpoints are known only when they probe.
	inherited []netip.Addr
	until     time.Time
}

type portKey struct {
	family service.Family
	name   service.PortName
}

// state is what the kernel should have.
type state struct {
	rules nftables.DirectRules // without what depends on the MTU
	roads map[uint32]netip.Addr
	from  netip.Addr
	why   map[service.PortName]string // a port is translated
}

// New returns the layer.
func New(f service.Family, s System, peers func() mode.Peers) *Backend {
	return &Backend{family: f, system: s, peers: peers, ports: map[portKey]*service.Port{}}
}

// Road returns the mark with which packets of this node go through the tunnel to the address of a
// node, 0 for none. It is safe for concurrent use.
func (b *Backend) Road(to netip.Addr) uint32 {
	if all := b.roads.Load(); all != nil {
		return (*all)[to]
	}
	return 0
}

// leads reports whether Road knows roads.
func (b *Backend) leads(roads map[uint32]netip.Addr) bool {
	all := b.roads.Load()
	return all != nil && maps.Equal(*all, byAddress(roads))
}

func byAddress(roads map[uint32]netip.Addr) map[netip.Addr]uint32 {
	all := make(map[netip.Addr]uint32, len(roads))
	for m, a := range roads {
		all[a] = m
	}
	return all
}

// Plan implements reconcile.Backend.
func (b *Backend) Plan(ctx context.Context, want *service.Snapshot) (reconcile.Plan, error) {
	b.follow(want)
	if len(b.ports) == 0 {
		b.have = nil
		b.shown.Store(nil)
		if b.removed {
			return &plan{b: b}, nil
		}
		found, err := b.system.Find(ctx)
		b.removed = err == nil && found == ""
		return &plan{b: b, remove: found}, err
	}
	b.removed = false
	next := b.next(want.Node)
	b.shown.Store(next)
	intact, err := b.system.Intact(next.roads)
	if err != nil {
		return nil, err
	}
	p := &plan{b: b, next: next, intact: intact, same: intact && next.equal(b.have)}
	if b.until.IsZero() {
		if b.inherited, err = b.system.Senders(); err != nil {
			return nil, err
		}
		b.until = time.Now().Add(time.Minute)
	}
	if b.have == nil && !b.peers().Settled() { // what an earlier process found may hold
		found, err := b.system.Find(ctx)
		if err != nil {
			return nil, err
		}
		p.early = found == nftables.TheTable
		p.same = p.early && intact && b.leads(next.roads)
	}
	return p, nil
}

// state returns what the latest round wanted, or else would want now.
func (b *Backend) state(want *service.Snapshot) *state {
	if s := b.shown.Load(); s != nil {
		return s
	}
	x := New(b.family, b.system, b.peers)
	x.follow(want)
	return x.next(want.Node)
}

// follow notes which ports of both families ask for direct return: the tunnel carries both.
func (b *Backend) follow(want *service.Snapshot) {
	changed := false
	for _, f := range service.Families {
		for c := range service.Diff(b.seen, want, f) {
			k := portKey{f, c.Name()}
			if _, had := b.ports[k]; had {
				delete(b.ports, k)
				changed = true
			}
			if c.New != nil && c.New.Direct != nil {
				b.ports[k], changed = c.New, true
			}
		}
	}
	b.seen = want
	if !changed {
		return
	}
	b.peers().Want(service.DirectNodes(want))
}

// base and most bound the marks of nodes, which are also the numbers of their routing tables.
const base, most uint32 = 0x6b640000, 0xffff

// next returns what the kernel should have.
func (b *Backend) next(node *service.Node) *state {
	s := &state{roads: map[uint32]netip.Addr{}, why: map[service.PortName]string{}}
	s.rules = nftables.DirectRules{
		Node: node, Tunnel: nftables.Tunnel{Device: Device, Port: Port, Key: Key, Probe: Probe}, Ports: map[service.PortName]nftables.DirectPort{},
	}
	v6 := peers.IPv6(b.family == service.IPv6)
	known, answering, missing := b.peers().Known(v6), b.peers().Answering(v6), b.peers().Missing(v6)
	senders := slices.SortedFunc(maps.Values(known), netip.Addr.Compare)
	marks := marksOf(senders)
	if s.rules.Senders = senders; time.Now().Before(b.until) {
		s.rules.Senders = slices.Concat(senders, b.inherited)
	}
	s.from = known[node.Name]
	for k, p := range b.ports {
		if s.rules.Slots = p.Consistent.Slots; k.family != b.family {
			continue
		}
		d := nftables.DirectPort{Port: p, Marks: map[string]uint32{}}
		for i, e := range p.Cluster {
			n := p.Direct.Nodes[i]
			if _, seen := d.Marks[n]; e.Local || seen {
				continue
			}
			d.Marks[n] = marks[known[n]]
			if d.Marks[n] != 0 {
				s.roads[d.Marks[n]] = known[n]
			}
			if _, answers := answering[n]; !answers || d.Marks[n] == 0 {
				s.why[p.Name] = fmt.Sprintf("node %q: %s", n, cmp.Or(missing[n], "its address is not known"))
			}
		}
		if s.why[p.Name] != "" {
			d.Marks = nil
		}
		s.rules.Ports[p.Name] = d
	}
	return s
}

// marksOf returns a mark for each address, the same one after a restart, apart from collisions.
func marksOf(addrs []netip.Addr) map[netip.Addr]uint32 {
	all, used := map[netip.Addr]uint32{}, map[uint32]bool{}
	for _, a := range addrs {
		h := fnv.New32a()
		h.Write(a.AsSlice())
		for i := h.Sum32(); all[a] == 0 && len(used) < int(most); i++ {
			if m := base + 1 + i%most; !used[m] {
				all[a], used[m] = m, true
			}
		}
	}
	return all
}

func (s *state) equal(t *state) bool {
	return t != nil && s.rules.Node == t.rules.Node && s.rules.Slots == t.rules.Slots && s.from == t.from &&
		slices.Equal(s.rules.Senders, t.rules.Senders) && maps.Equal(s.roads, t.roads) && maps.Equal(s.why, t.why) &&
		maps.EqualFunc(s.rules.Ports, t.rules.Ports, nftables.DirectPort.Equal)
}

// Forget implements reconcile.Backend.
func (b *Backend) Forget() {
	b.have, b.removed = nil, false
	b.system.Forget()
}

// Cleanup implements reconcile.Backend.
func (b *Backend) Cleanup(ctx context.Context) error {
	b.Forget()
	return b.system.Remove(ctx)
}

// plan makes next the state, or removes the layer.
type plan struct {
	b      *Backend
	next   *state
	intact bool // the tunnel and the routes
	same   bool
	early  bool // the table stays as an earlier process left it
	had    *state
	remove string
}

// Changes implements reconcile.Plan.
func (p *plan) Changes() (all reconcile.Changes) {
	switch {
	case p.remove != "":
		all.Add("- direct return: %s", p.remove)
	case !p.Empty():
		all.Add("+ direct return for %d Service ports", len(p.next.rules.Ports))
	}
	return all
}

// Empty implements reconcile.Plan.
func (p *plan) Empty() bool { return p.remove == "" && (p.next == nil || p.same) }

// Outcome implements reconcile.Plan.
func (p *plan) Outcome() reconcile.Outcome {
	if p.next == nil || len(p.next.why) == 0 {
		return reconcile.Outcome{}
	}
	notes := reconcile.Notes{}
	for n, why := range p.next.why {
		notes[n] = []reconcile.Note{{Text: "direct return is off, and the rules translate: " + why, Transient: true}}
	}
	names := slices.SortedFunc(maps.Keys(p.next.why), service.PortName.Compare)
	more := ""
	if len(names) > 1 {
		more = fmt.Sprintf(" and %d more", len(names)-1)
	}
	return reconcile.Outcome{Notes: notes, Degraded: fmt.Sprintf("direct return of %s for %s%s is off, and the rules translate: %s", p.b.family, names[0], more, p.next.why[names[0]])}
}

// Apply implements reconcile.Plan.
func (p *plan) Apply(ctx context.Context) reconcile.Outcome {
	b := p.b
	if p.next == nil {
		err := b.system.Remove(ctx)
		b.removed = err == nil
		return reconcile.Outcome{Err: err}
	}
	o := p.Outcome()
	p.had, b.have = b.have, nil
	var err error
	moved := p.had == nil || !p.intact || p.next.from != p.had.from || !maps.Equal(p.next.roads, p.had.roads)
	if moved { // else all nodes would cost a change of one endpoint
		b.mtu, b.fault, err = b.system.Prepare(p.next.roads, p.next.from)
	}
	if err != nil { // what is not led is translated
		o.Degraded, o.Err = fmt.Sprintf("direct return of %s is off, and the rules translate: %v", b.family, err), b.system.Remove(ctx)
		return o
	}
	roads := byAddress(p.next.roads)
	if b.roads.Store(&roads); p.early {
		return o
	}
	rules := p.next.rules
	rules.Tunnel.MSS = mss(b.family, b.mtu)
	if err = p.set(ctx, &rules); moved {
		err = errors.Join(err, b.system.Retain(p.next.roads))
	}
	if err == nil {
		b.have = p.next
	}
	if b.fault != "" {
		o.Degraded = strings.TrimPrefix(o.Degraded+"; ", "; ") + b.fault
	}
	o.Err = err
	return o
}

// mss returns the largest segment of TCP for an MTU.
func mss(f service.Family, mtu int) uint16 { return uint16(mtu - [...]int{40, 60}[f]) }

// set makes the table hold rules. Connections that the rules translated go on so, also those that begin before
// the table is there.
func (p *plan) set(ctx context.Context, rules *nftables.DirectRules) error {
	leads, fresh := map[service.Address]bool{}, false
	for n, d := range rules.Ports {
		for _, f := range d.Frontends {
			if d.Marks != nil && d.LeadsDirectly(f) {
				leads[d.Address(f)] = true
			}
		}
		fresh = fresh || d.Marks != nil && (p.had == nil || p.had.rules.Ports[n].Marks == nil)
	}
	if p.had != nil {
		rules.Kept = p.had.rules.Kept
	}
	for again := fresh; ; again = false {
		if fresh {
			now, err := p.b.system.Translated(ctx, leads)
			if err != nil {
				return err
			}
			rules = new(*rules)
			rules.Kept = now
		}
		if err := p.b.system.SetRules(ctx, rules); err != nil || !again {
			p.next.rules.Kept = rules.Kept
			return err
		}
	}
}
