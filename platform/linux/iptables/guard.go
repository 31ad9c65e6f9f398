// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"fmt"
	"strconv"
)

// Ports is a range of ports, both ends included.
type Ports struct{ First, Last uint16 }

// String returns the range in the form of a match.
func (p Ports) String() string {
	if p.First == p.Last {
		return strconv.Itoa(int(p.First))
	}
	return fmt.Sprintf("%d:%d", p.First, p.Last)
}

// bound reports whether the relay listens at an address that other programs use, too.
func (l layout) bound() bool { return l.relays() && l.options.RelayPorts[l.family] != Ports{} }

// guard returns the rules for packets to and from the listeners of a relay. They accept
// translated packets, which belong to Services, before other rules see them. They drop
// all others: those of clients that guess a port, and late datagrams to clients whose
// flow is forgotten. At an address of the node, a port may also belong to a connection
// that the node began; packets of such connections are not new, so they pass.
func (l layout) guard() chain {
	drop := "-j DROP"
	if l.bound() {
		drop = "-m conntrack --ctstate NEW,UNTRACKED " + drop
	}
	return chain{id{filter, relayChain}, []string{"-m conntrack --ctstate DNAT -j ACCEPT", drop}}
}

// guardJumps lead to guard. At an address of the node, the mark distinguishes packets of
// listeners from those of other programs.
func (l layout) guardJumps() []jump {
	addr, to := hostPrefix(l.options.Relay[l.family]), "-j "+relayChain
	in, out := id{filter, "INPUT"}, id{filter, "OUTPUT"}
	if !l.bound() {
		return []jump{{in, "-d " + addr + " " + to}, {out, "-s " + addr + " " + to}}
	}
	return []jump{
		{in, l.listeners("tcp") + to},
		{in, l.listeners("udp") + to},
		{out, "-s " + addr + " -p udp -m udp --sport " + l.options.RelayPorts[l.family].String() + " -m mark --mark " + l.options.marked() + " " + to},
	}
}

// listeners matches packets to the ports of a relay at an address of the node.
func (l layout) listeners(proto string) string {
	return fmt.Sprintf("-d %s -p %s -m %s --dport %s ", hostPrefix(l.options.Relay[l.family]), proto, proto, l.options.RelayPorts[l.family])
}

// hidden excludes the listeners of a relay from the rules that accept health checks.
func (l layout) hidden() string {
	if l.bound() {
		return l.listeners("tcp") + "-j RETURN"
	}
	return "-d " + hostPrefix(l.options.Relay[l.family]) + " -j RETURN"
}

// Guard puts only the rules of guard in force. A relay at an address that others reach
// calls it before it opens listeners.
func (b *Backend) Guard(ctx context.Context) error {
	b.installed = nil
	t, err := b.read(ctx)
	if err != nil {
		return err
	}
	p := &plan{backend: b, dormant: t.dormant}
	if err := p.activate(); err != nil {
		return err
	}
	s := &stage{layout: b.layout, sums: t.sums()}
	s.ensure(b.guard())
	s.insertJumps, s.insertAfter, s.moves = t.missingJumps(b.guardJumps()), t.insertAfter, t.misplaced(b.guardJumps())
	if s.empty() {
		return nil
	}
	return b.program(ctx, s.text())
}
