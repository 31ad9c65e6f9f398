// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"net/netip"
	"slices"

	"kubeproxy/common/route"
	"kubeproxy/common/service"
)

// tracer walks a packet through a fakeTable and collects every possible result. For a
// random slot it follows all slots.
type tracer struct {
	table  *fakeTable
	family service.Family
	conn   route.Conn
	local  func(netip.Addr) bool // reports whether an address belongs to the node
	marks  uint32
	dnat   bool // the destination was translated
	out    outcome
}

// outcome is the result of the rules for a packet.
type outcome struct {
	action  route.Action
	targets []netip.AddrPort        // sorted, without duplicates
	masq    map[netip.AddrPort]bool // whether it is masqueraded on the way to the key
}

// result is the result of a chain or rule.
type result uint8

const (
	next     result = iota // no verdict
	returned               // return
	final                  // accepted, translated, rejected or dropped
	noMatch                // the rule does not match
)

// trace runs the chains of the hooks that c passes.
func trace(t *fakeTable, family service.Family, c route.Conn, local func(netip.Addr) bool) outcome {
	tr := &tracer{table: t, family: family, conn: c, local: local}
	entry := "prerouting"
	if c.Interface == "" {
		entry = "output"
	}
	if tr.chain(entry) != final && !c.ToNode {
		after := &tracer{table: t, family: family, conn: c, local: local}
		after.chain("postrouting")
		tr.out.action = after.out.action
	}
	o := tr.out
	slices.SortFunc(o.targets, netip.AddrPort.Compare)
	o.targets = slices.Compact(o.targets)
	if o.action == route.Forward {
		o.masq = map[netip.AddrPort]bool{}
		for _, to := range o.targets {
			after := &tracer{table: t, family: family, conn: c, local: local, marks: tr.marks, dnat: true}
			after.conn.To = to
			after.chain("postrouting")
			o.masq[to] = after.out.masq != nil
		}
	}
	return o
}

func (t *tracer) chain(name string) result {
	for _, r := range t.table.chains[name].rules {
		switch res := t.rule(r); res {
		case final:
			return final
		case returned:
			return next
		}
	}
	return next
}

func (t *tracer) rule(r rule) result {
	for _, s := range r {
		switch res := t.statement(s); res {
		case final, returned:
			return res
		case noMatch:
			return next
		}
	}
	return next
}

func (t *tracer) statement(s statement) result {
	switch s := s.(type) {
	case dispatch:
		e, found := t.table.sets[s.in.name].elements[string(t.key(s.fields, 0))]
		if !found {
			return noMatch
		}
		return t.verdict(e.verdict)
	case dnat:
		return t.translate(s)
	case affinityDNAT: // this is the client's first connection
		return noMatch
	case verdict:
		return t.verdict(s)
	case reject:
		t.out.action = route.Reject
		return final
	case mark:
		t.marks |= s.bits
	case unmark:
		t.marks &^= s.bits
	case masquerade:
		t.out.masq = map[netip.AddrPort]bool{}
		return final
	case recordClient:
	default:
		if !t.matches(s) {
			return noMatch
		}
	}
	return next
}

func (t *tracer) matches(s statement) bool {
	switch s := s.(type) {
	case lookup:
		return t.lookup(s)
	case within:
		return s.prefix.Contains(t.addr(s.field)) != s.not
	case fromInterface:
		if n := len(s.name) - 1; s.name[n] == '*' {
			return len(t.conn.Interface) >= n && t.conn.Interface[:n] == s.name[:n]
		}
		return t.conn.Interface == s.name
	case isProto:
		return t.conn.Protocol == s.proto
	case toPort:
		return t.conn.To.Port() == s.port
	case isLocal:
		return t.local(t.addr(s.field))
	case invalid:
		return false
	case translated:
		return t.dnat
	case marked:
		return t.marks&s.bits == s.bits
	}
	panic("unknown statement")
}

func (t *tracer) lookup(l lookup) bool {
	key := string(t.key(l.fields, 0))
	s := t.table.sets[l.in.name]
	if !s.interval {
		_, found := s.elements[key]
		return found != l.not
	}
	for _, e := range s.elements {
		if string(e.key) <= key && key <= string(e.end) {
			return !l.not
		}
	}
	return l.not
}

func (t *tracer) translate(tr dnat) result {
	complete := true
	for n := range max(tr.mod, 1) {
		e, found := t.table.sets[tr.in.name].elements[string(t.key(tr.fields, n))]
		if !found {
			complete = false
			continue
		}
		t.out.action = route.Forward
		t.out.targets = append(t.out.targets, targetOf(e.value))
	}
	if complete {
		return final
	}
	return noMatch
}

func (t *tracer) verdict(v verdict) result {
	switch v.code {
	case verdictReturn:
		return returned
	case verdictDrop:
		t.out.action = route.Drop
		return final
	case verdictAccept:
		return final
	case verdictJump:
		return t.chain(v.chain)
	}
	if t.chain(v.chain) == final {
		return final
	}
	return returned // a goto never returns to the chain it left
}

func (t *tracer) addr(f field) netip.Addr {
	if f == saddr || f == origSaddr {
		return t.conn.From
	}
	return t.conn.To.Addr()
}

func (t *tracer) key(fields []field, n uint32) []byte {
	var key []byte
	for _, f := range fields {
		switch {
		case f.isAddr():
			key = appendAddr(key, t.addr(f))
		case f == proto:
			key = appendProto(key, t.conn.Protocol)
		case f == slot:
			key = appendSlot(key, n)
		default:
			key = appendPort(key, t.conn.To.Port())
		}
	}
	return key
}
