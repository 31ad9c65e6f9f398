// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"net/netip"
	"slices"

	"kubeproxy/common/explain"
	"kubeproxy/common/route"
)

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
			return !f.ways.disabled6(&l, "all") && f.unknownEntry()
		}
		l.In = p.In
	} else if !p.From.IsValid() || p.From.IsLoopback() || !f.node.Local(p.From) {
		l.From = netip.Addr{}
	}
	var of netip.AddrPort
	if _, is := f.conn.Targets[p.To]; is && (p.Translated || !f.conn.Served) {
		of = p.To
	}
	r, arrives := f.ways.take(l, of)
	f.road = r
	return arrives
}

// unknownEntry says that the way of the client is not known. It returns true.
func (f *follower) unknownEntry() bool {
	o := explain.Obstacle{
		What: "the node has no route to %s, so it cannot be told by which interface the client comes: its way and that of its answers were not looked at",
		Look: "kube-proxy explain SOURCE DESTINATION --interface NAME",
	}
	f.ways.add(o, f.conn.From).doubt = true
	return true
}

// markOf returns the mark of a packet with what the mode sets, and whether it is not known.
func (f *follower) markOf(p *Packet, masquerade bool) (mark uint32, unsure bool) {
	value, known := p.mark.number()
	if p.Sender.IsValid() {
		return value, known != ^uint32(0)
	}
	if value &^= f.conn.Marks; masquerade {
		value |= f.conn.Marks
	}
	return value, known|f.conn.Marks != ^uint32(0)
}

// reply follows the answer of an endpoint to the client, or to the process that relays.
func (f *follower) reply(sender netip.AddrPort, masquerade bool) {
	if f.ways == nil || f.road == (Road{}) {
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
