// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"kubeproxy/common/explain"
	"kubeproxy/common/route"
)

// Connection is a connection, and what the mode does with it.
type Connection struct {
	route.Conn
	// In is where it enters the node, the zero value for a process of the node itself.
	In     Link
	Action route.Action
	// Targets, Via and Served are as in explain.Walk.
	Targets map[netip.AddrPort]bool
	Via     []netip.AddrPort
	Served  bool
	// Marks are the bits of the mark that the mode may set.
	Marks uint32
	// Mark is as in explain.Part.
	Mark uint32
	// Here reports whether a target should be on this node. It may be nil.
	Here func(netip.AddrPort) bool
	// Way is what Follow finds beside the rules.
	Way Way
}

// mostTargets bounds how many endpoints are followed.
const mostTargets = 64

// Note says that not all endpoints are followed, or nothing.
func (c *Connection) Note() string {
	if len(c.Targets) <= mostTargets {
		return ""
	}
	return fmt.Sprintf("the rules of others were followed to %d of %d endpoints", mostTargets, len(c.Targets))
}

// Positions of what the kernel itself does at hooks (kernel: include/uapi/linux/netfilter_ipv4.h).
// All chains of type nat run at one of two, by priority (kernel: net/netfilter/nf_nat_proto.c).
const (
	conntrackPosition  = -200
	markPosition       = -250 // of table kube-direct
	dstNATPosition     = -100
	ipvsOutputPosition = -98 // kernel: net/netfilter/ipvs/ip_vs_core.c, ip_vs_ops4
	ipvsInputPosition  = 99  // as above
	srcNATPosition     = 100
	last               = 1 << 31
)

// station is a base chain, of nftables or iptables-legacy.
type station struct {
	Base
	position int
	// run follows a packet through the chain. It may change the packet.
	run  func(*Packet) (Finding, error)
	look func(Place) string // a command that shows a rule
}

// Follow returns what the base chains of others do with the first packet of c.
func Follow(t Tables, legacy []*Legacy, n Node, c *Connection) ([]explain.Other, error) {
	f := &follower{node: n, conn: c}
	for _, b := range t.Bases() {
		f.stations = append(f.stations, newStation(t, b, lookNFT))
	}
	for _, l := range legacy {
		f.stations = append(f.stations, l.stations()...)
	}
	slices.SortStableFunc(f.stations, func(a, b *station) int {
		return cmp.Or(cmp.Compare(a.position, b.position), cmp.Compare(a.Priority, b.Priority))
	})
	f.look()
	f.follow()
	var beside []Unfollowed
	if k, is := t.(interface{ Unfollowed() []Unfollowed }); is {
		beside = k.Unfollowed()
	}
	c.Way = f.way(beside)
	return f.others, f.err
}

// lookNFT returns a command that shows a rule of nftables.
func lookNFT(at Place) string {
	return fmt.Sprintf("nft -a list chain %s %s %s", at.Chain.Family, at.Chain.Table, at.Chain.Name)
}

func newStation(t Tables, b Base, look func(Place) string) *station {
	s := &station{Base: b, position: b.Priority, look: look}
	if b.NAT {
		s.position = dstNATPosition
		if b.Hook == Postrouting || b.Hook == Input {
			s.position = srcNATPosition
		}
	}
	s.run = func(p *Packet) (Finding, error) {
		w := &Walk{Tables: t, Packet: p}
		return w.Run(b)
	}
	return s
}

// follower follows a connection through all hooks.
type follower struct {
	node     Node
	conn     *Connection
	stations []*station
	others   []explain.Other
	ways     *ways // nil if they are not looked at
	road     Road  // that the kernel chose for the packet, zero if that is unknown
	err      error
}

// follow follows the connection to each of its targets.
func (f *follower) follow() {
	first := f.conn.Targets
	if len(f.conn.Via) > 0 {
		first = map[netip.AddrPort]bool{}
		for _, to := range f.conn.Via {
			first[to] = false
		}
	}
	if f.conn.Action != route.Forward || f.conn.Served {
		first = map[netip.AddrPort]bool{f.conn.To: false}
	}
	if arrived := f.toEach(first, f.enter); !arrived || f.conn.Action != route.Forward {
		return
	}
	switch {
	case f.conn.Served:
		f.toEach(f.conn.Targets, f.serve)
	case len(f.conn.Via) > 0:
		f.toEach(f.conn.Targets, f.relay)
	}
}

// toEach calls step for targets, sorted, and whether the node masquerades, and reports an arrival.
func (f *follower) toEach(targets map[netip.AddrPort]bool, step func(netip.AddrPort, bool) bool) bool {
	arrived := false
	all := slices.SortedFunc(maps.Keys(targets), netip.AddrPort.Compare)
	for _, to := range all[:min(mostTargets, len(all))] {
		if f.err != nil {
			return false
		}
		arrived = step(to, targets[to]) || arrived
	}
	return arrived
}

// start returns the packet as a client sends it to an address.
func (f *follower) start(to netip.AddrPort) *Packet {
	p := New(f.node, f.conn.Conn)
	p.Dialled, p.To = to, to
	return p
}

// enter follows the client's packet to an address after translation, and reports its arrival.
func (f *follower) enter(to netip.AddrPort, masquerade bool) bool {
	p := f.start(f.conn.To)
	s := &stage{follower: f, packet: p, hook: Prerouting, translate: func() bool { return f.translate(p, to) }}
	p.In = f.conn.In
	if f.conn.Interface == "" {
		s.hook, p.In = Output, Link{}
		p.Out, _ = f.node.Route(p.To.Addr())
	}
	s.until = last
	if f.conn.Served && s.hook == Output {
		s.until = ipvsOutputPosition
	}
	if !s.run() {
		return false
	}
	if s.until != last {
		return true
	}
	return f.deliver(p, s.hook, masquerade)
}

// translate does what the mode does at the position of DNAT, and reports whether p goes on.
func (f *follower) translate(p *Packet, to netip.AddrPort) bool {
	switch f.conn.Action {
	case route.Reject, route.Drop:
		return false
	}
	if f.conn.Mark != 0 {
		p.mark, p.Untracked = number(f.conn.Mark, ^uint32(0)), true
	}
	if p.Untracked {
		return true
	}
	known := make([]byte, 4)
	_, k := p.mark.number()
	copy(known, number(k&^f.conn.Marks, ^uint32(0)).value)
	p.mark = bits{p.mark.masked(known, nil).value, known}
	if to != p.To {
		p.marked = f.conn.Targets[to] && f.conn.Marks != 0
		p.To, p.Translated = to, true
	}
	return true
}

// Way returns the hooks that p passes after the routing decision, which follows hook
// Prerouting, or Output for a packet of the node itself. What the node sends to itself comes back
// by the loopback interface. Chains of type nat at Prerouting and Input do not see it again then
// (kernel: net/netfilter/nf_nat_core.c, nf_nat_inet_fn).
func (p *Packet) Way(from Hook) []Hook {
	local := p.Node.Local(p.To.Addr())
	switch {
	case from == Prerouting && local:
		return []Hook{Input}
	case from == Prerouting:
		return []Hook{Forward, Postrouting}
	case local:
		return []Hook{Postrouting, Prerouting, Input}
	}
	return []Hook{Postrouting}
}

// deliver follows a packet from the routing decision on.
func (f *follower) deliver(p *Packet, from Hook, masquerade bool) bool {
	local := f.node.Local(p.To.Addr())
	if f.road = (Road{}); !f.leave(p, from, masquerade) {
		return false
	}
	for _, h := range p.Way(from) {
		s := &stage{follower: f, packet: p, hook: h, until: last, settled: h != Postrouting || masquerade, masquerade: h == Postrouting && masquerade}
		f.links(p, h, local)
		if f.conn.Served && !p.Translated && h == Input {
			s.until = ipvsInputPosition
		}
		if !s.run() {
			return false
		}
		if h == Postrouting && masquerade {
			p.From = netip.Addr{}
		}
	}
	f.reply(p.To, masquerade)
	return true
}

// links sets the interfaces that rules of a hook see.
func (f *follower) links(p *Packet, h Hook, local bool) {
	switch {
	case h == Prerouting || h == Input:
		p.Out = Link{}
		if local && f.conn.Interface == "" {
			p.In, _ = f.node.Route(p.To.Addr())
		}
	case f.road.Out != (Link{}):
		p.Out = f.road.Out
	default:
		p.Out, _ = f.node.Route(p.To.Addr())
	}
}

// serve follows a packet that IPVS sends to a destination. IPVS sends it like one of the node
// itself (kernel: net/netfilter/ipvs/ip_vs_xmit.c, ip_vs_nat_send_or_cont).
func (f *follower) serve(to netip.AddrPort, masquerade bool) bool {
	p := f.start(f.conn.To)
	p.To, p.Seen, p.Translated = to, true, true
	p.Out, _ = f.node.Route(to.Addr())
	s := &stage{follower: f, packet: p, hook: Output, until: last, settled: true}
	return s.run() && f.deliver(p, Output, masquerade)
}

// relay follows the connection that the process of kube-proxy opens to an endpoint.
func (f *follower) relay(to netip.AddrPort, _ bool) bool {
	p := f.start(to)
	p.From = netip.Addr{}
	p.Out, _ = f.node.Route(to.Addr())
	s := &stage{follower: f, packet: p, hook: Output, until: last}
	return s.run() && f.deliver(p, Output, false)
}

// stage is a packet at a hook.
type stage struct {
	*follower
	packet *Packet
	hook   Hook
	// translate, if set, does what the mode does at the position of DNAT.
	translate func() bool
	until     int
	// settled means that the connection has its addresses: chains of type nat do not run.
	settled bool
	// masquerade means that the mode replaces the source at its position.
	masquerade bool
}

// run runs the base chains of the hook. It reports whether the packet goes on.
func (s *stage) run() bool {
	s.packet.sourceOpen = s.packet.sourceOpen || s.hook == Postrouting || s.hook == Input
	for _, at := range s.stations {
		if at.Hook != s.hook || at.position > s.until {
			continue
		}
		if s.translate != nil && s.oursFirst(at) && !s.ours() {
			return false
		}
		s.packet.Seen = s.packet.Seen || at.position > conntrackPosition && !s.packet.Untracked
		if s.masquerade && at.position > srcNATPosition {
			s.packet.From = netip.Addr{}
		}
		if at.NAT && (s.settled || s.packet.Untracked) {
			continue
		}
		if !s.visit(at) {
			return false
		}
	}
	s.packet.Seen = !s.packet.Untracked
	return s.translate == nil || s.ours()
}

// ours does what the mode does, once.
func (s *stage) ours() bool {
	goesOn := s.translate()
	s.translate = nil
	s.settled = s.settled || s.packet.Translated
	return goesOn
}

// oursFirst reports whether the mode's rules come before a base chain. Of two of type nat with one
// priority, the younger is first (kernel: net/netfilter/core.c, nf_hook_entries_grow).
func (s *stage) oursFirst(at *station) bool {
	switch {
	case s.conn.Mark != 0:
		return at.position > markPosition
	case at.NAT:
		return at.Priority > dstNATPosition
	}
	return at.position > dstNATPosition
}

// visit runs one base chain, and records what it does.
func (s *stage) visit(at *station) bool {
	found, err := at.run(s.packet)
	if err != nil {
		s.err = fmt.Errorf("%s: %w", at.Chain.describe(), err)
		return false
	}
	if found.Does == explain.Translates && s.translate != nil && s.conn.Action == route.Forward && at.Priority == dstNATPosition && !at.Later {
		found.Doubts = append(found.Doubts, Doubt{found.By, explain.Translates, "if it was made after the rules of kube-proxy, it comes first"})
		found.Does = explain.Passes
		s.packet.unsure = cmp.Or(s.packet.unsure, "unless "+found.By.String()+" comes before kube-proxy")
	}
	if found.Does == explain.Passes && s.unmarked() {
		found.Does, found.By = explain.Unmarks, Place{Chain: at.Chain, whole: true}
	}
	s.record(at, &found)
	switch found.Does {
	case explain.Drops, explain.Refuses, explain.Translates, explain.Unmarks:
		return false
	case explain.Masquerades:
		if by := found.To.Addr(); s.ways != nil && by.IsValid() && !s.node.Local(by) {
			s.ways.add(explain.Obstacle{What: found.By.String() + " replaces the source of packets to %s by " + by.String() + ", which no interface here has, so answers may go elsewhere", Look: at.look(found.By)}, s.packet.To.Addr()).doubt = true
		}
		s.packet.From, s.settled = netip.Addr{}, true
	}
	return true
}

// unmarked reports whether a rule cleared the mark by which the mode masquerades, so that the
// answer takes another way. A packet to its own sender is recognized by its addresses, and
// answers to the node itself come back in any case.
func (s *stage) unmarked() bool {
	if !s.packet.Translated || !s.packet.marked || !s.packet.From.IsValid() || s.packet.From == s.packet.To.Addr() || s.conn.Interface == "" {
		return false
	}
	value, known := s.packet.mark.number()
	return known&s.conn.Marks == s.conn.Marks && value&s.conn.Marks == 0
}

// record adds what a base chain does with a packet to the answer.
func (s *stage) record(at *station, found *Finding) {
	reply := s.packet.Sender
	if (found.empty || reply.IsValid()) && found.Does == explain.Passes && len(found.Doubts) == 0 {
		return
	}
	o := explain.Other{Hook: s.hook.String(), Table: at.tableName(), Chain: at.Name, Does: found.Does, Reply: reply.IsValid()}
	if found.Does != explain.Passes {
		o.Rule, o.Look = found.By.String(), at.look(found.By)
	}
	for _, d := range found.Doubts {
		o.Doubts = append(o.Doubts, explain.Doubt{Rule: d.String(), Does: d.Does, Why: d.Why, Look: at.look(d.Place)})
	}
	to := s.packet.To.String()
	if o.Reply {
		to = reply.String()
	}
	for i := range s.others {
		if x := &s.others[i]; x.Alike(&o) {
			if !slices.Contains(x.To, to) {
				x.To = append(x.To, to)
			}
			return
		}
	}
	o.To = []string{to}
	s.others = append(s.others, o)
}

func (c Chain) describe() string { return "chain " + c.Name + " of table " + c.tableName() }

// Way is what a packet and its answer meet beside the rules.
type Way struct {
	Obstacles []explain.Obstacle
	Doubts    []explain.Doubt
	// Routes and Replies are as in explain.Walk.
	Routes, Replies map[netip.Addr]string
}

// look begins to look at the ways, if the node can tell them.
func (f *follower) look() {
	if r, can := f.node.(Roads); can && f.conn.Action == route.Forward {
		f.ways = &ways{Roads: r, proto: f.conn.Protocol, here: f.conn.Here, routes: map[netip.Addr]string{}, replies: map[netip.Addr]string{}}
	}
}

// way returns what was found on the ways. all are tables that are not followed.
func (f *follower) way(all []Unfollowed) Way {
	if f.ways == nil {
		return Way{}
	}
	obstacles, doubts := f.ways.report()
	return Way{obstacles, append(doubts, f.ways.unfollowed(all)...), f.ways.routes, f.ways.replies}
}

// leave takes p to where the kernel sends it from the hook on. It reports whether it gets there.
func (f *follower) leave(p *Packet, from Hook, masquerade bool) bool {
	if f.ways == nil {
		return true
	}
	l := Leg{From: p.From, To: p.To.Addr()}
	l.Mark, l.marked = f.markOf(p, masquerade)
	if from == Prerouting {
		if p.In.Index == 0 {
			f.road, _ = f.ways.Road(Leg{To: l.To}) // from where the answer comes
			return !f.ways.disabled6(&l, "all") && f.unknownEntry()
		}
		l.In = p.In
	} else if !p.From.IsValid() || p.From.IsLoopback() || !f.node.Local(p.From) {
		l.From = netip.Addr{}
	}
	var of netip.AddrPort
	if _, is := f.conn.Targets[p.To]; is && f.conn.Mark == 0 && (p.Translated || !f.conn.Served) {
		of = p.To
	}
	r, arrives := f.ways.take(l, of)
	if f.road = r; arrives && f.conn.Mark != 0 && r.Table != f.conn.Mark {
		f.ways.add(explain.Obstacle{
			What: fmt.Sprintf("no rule and route lead packets with mark %#x to %%s into the tunnel: they leave %s", f.conn.Mark, r.describe()),
			Look: fmt.Sprintf("ip rule; ip route show table %d", f.conn.Mark),
		}, l.To)
		return false
	}
	return arrives
}

// unknownEntry says that the way of the client is not known. It returns true.
func (f *follower) unknownEntry() bool {
	o := explain.Obstacle{
		What: "the node has no route to %s, so it cannot be told by which interface the client comes: its way was not looked at",
		Look: "kube-proxy explain SOURCE DESTINATION --interface NAME",
	}
	f.ways.add(o, f.conn.From).doubt = true
	return true
}

// markOf returns the mark of a packet with what the mode sets, and whether it is not known.
func (f *follower) markOf(p *Packet, masquerade bool) (mark uint32, unsure bool) {
	value, known := p.mark.number()
	if p.Sender.IsValid() || f.conn.Mark != 0 {
		return value, known != ^uint32(0)
	}
	if value &^= f.conn.Marks; masquerade {
		value |= f.conn.Marks
	}
	return value, known|f.conn.Marks != ^uint32(0)
}

// reply follows the answer of an endpoint to the client, or to the process that relays.
func (f *follower) reply(sender netip.AddrPort, masquerade bool) {
	if f.ways == nil || f.road == (Road{}) || f.conn.Mark != 0 {
		return
	}
	if f.conn.Interface != "" && slices.Contains(f.conn.Via, sender) {
		f.ways.take(Leg{From: sender.Addr(), To: f.conn.From, Reply: true}, sender)
	}
	if _, is := f.conn.Targets[sender]; !is {
		return
	}
	client, here := f.conn.From, f.road.Type == Local
	switch byNode := f.conn.Interface == "" || len(f.conn.Via) > 0; {
	case byNode && (here || !f.road.Source.IsValid()):
		return
	case byNode:
		client = f.road.Source
	case !masquerade && !here:
		f.ways.bridged(f.conn.In, f.road.Out, client, sender)
	}
	p := New(f.node, f.conn.Conn)
	p.Sender, p.From, p.To = sender, sender.Addr(), netip.AddrPortFrom(client, 0)
	p.Translated = sender != f.conn.To
	s := &stage{follower: f, packet: p, hook: Prerouting, until: last, settled: true}
	if p.In = f.road.Out; here {
		s.hook, p.In, p.Out = Output, Link{}, f.conn.In
	}
	if !s.run() {
		return
	}
	l := Leg{From: p.From, To: client, In: p.In, Reply: true}
	l.Mark, l.marked = f.markOf(p, false)
	r, arrives := f.ways.take(l, sender)
	for _, h := range p.Way(s.hook) {
		if p.Out = r.Out; h == Input {
			p.Out = Link{}
		}
		if s.hook = h; !arrives || !s.run() {
			return
		}
	}
}
