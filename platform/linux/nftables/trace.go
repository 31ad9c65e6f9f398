// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"fmt"
	"net/netip"

	"kubeproxy/common/explain"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
)

// ruleset is a table as packets meet it.
type ruleset interface {
	// rules returns the rules of a chain.
	rules(chain string) []rule
	// element returns the element of s with this key. For a set of intervals that is the
	// one that contains the key.
	element(s *set, key []byte) (element, bool)
}

// tracer walks the first packet of a connection through a ruleset and collects every
// possible result. For a random slot it follows all slots.
type tracer struct {
	ruleset
	family service.Family
	conn   route.Conn
	local  func(netip.Addr) bool // reports whether an address belongs to the node
	marks  uint32
	dnat   bool // the destination was translated
	masq   bool // the source is going to be translated
	out    *explain.Walk
	quiet  bool // record no hops
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
func trace(r ruleset, family service.Family, c route.Conn, local func(netip.Addr) bool) *explain.Walk {
	tr := &tracer{ruleset: r, family: family, conn: c, local: local, out: &explain.Walk{}}
	entry := "prerouting"
	if c.Interface == "" {
		entry = "output"
	}
	if tr.chain(entry) != final && !c.ToNode {
		tr.chain("postrouting")
	}
	for to := range tr.out.Targets {
		after := *tr
		after.conn.To, after.dnat, after.out, after.quiet = to, true, &explain.Walk{}, true
		after.chain("postrouting")
		tr.out.Targets[to] = after.masq
	}
	return tr.out
}

func (t *tracer) hop(object, format string, args ...any) {
	if !t.quiet {
		t.out.Hops = append(t.out.Hops, explain.Hop{Object: object, Does: fmt.Sprintf(format, args...)})
	}
}

func (t *tracer) chain(name string) result {
	for _, r := range t.rules(name) {
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
		key := t.key(s.fields, 0)
		e, found := t.element(s.in, key)
		if !found {
			return noMatch
		}
		t.hop("map "+s.in.name, "%s : %s%s", keyText(s.fields, t.family, key, nil), e.verdict.text(t.family), commentText(e))
		return t.verdict(e.verdict)
	case dnat:
		return t.translate(s)
	case affinityDNAT:
		return t.recall(s)
	case verdict:
		return t.verdict(s)
	case reject:
		t.out.Action = route.Reject
		t.hop("rule", "%s", s.text(t.family))
		return final
	case mark:
		t.marks |= s.bits
	case unmark:
		t.marks &^= s.bits
	case masquerade:
		t.masq = true
		return final
	case recordClient, countConnection, counter:
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
	key := t.key(l.fields, 0)
	_, found := t.element(l.in, key)
	if found {
		t.hop("set "+l.in.name, "%s is in it", keyText(l.fields, t.family, key, nil))
	}
	return found != l.not
}

func (t *tracer) translate(tr dnat) result {
	missing := 0
	var found []netip.AddrPort
	for n := range max(tr.mod, 1) {
		e, ok := t.element(tr.in, t.key(tr.fields, n))
		if !ok {
			missing++
			continue
		}
		to := targetOf(e.value)
		if t.out.Targets == nil {
			t.out.Targets = map[netip.AddrPort]bool{}
		}
		t.out.Targets[to] = false
		t.out.Action = route.Forward
		found = append(found, to)
	}
	if missing == 0 || len(found) > 0 && t.firstDraw(tr.in) {
		t.hop("map "+tr.in.name, "%s", explain.OneOf("endpoints", found))
	}
	if missing == 0 {
		return final
	}
	return noMatch
}

// firstDraw reports whether no endpoint of in was shown yet.
func (t *tracer) firstDraw(in *set) bool {
	for _, h := range t.out.Hops {
		if h.Object == "map "+in.name {
			return false
		}
	}
	return true
}

// recall leads a client to the endpoint that it had before, if it is recorded.
func (t *tracer) recall(s affinityDNAT) result {
	key := t.key([]field{saddr}, 0)
	e, found := t.element(s.in, key)
	if !found {
		return noMatch
	}
	addr, _ := netip.AddrFromSlice(e.value)
	to := netip.AddrPortFrom(addr, s.port)
	t.hop("map "+s.in.name, "the client had %s before", to)
	t.out.Action, t.out.Remembered = route.Forward, to
	t.out.Targets = map[netip.AddrPort]bool{to: false}
	return final
}

func commentText(e element) string {
	if e.comment == "" {
		return ""
	}
	return ", of " + e.comment
}

func (t *tracer) verdict(v verdict) result {
	switch v.code {
	case verdictReturn:
		return returned
	case verdictDrop:
		t.out.Action = route.Drop
		t.hop("rule", "drop")
		return final
	case verdictAccept:
		return final
	case verdictJump:
		t.enter(v.chain)
		return t.chain(v.chain)
	}
	t.enter(v.chain)
	if t.chain(v.chain) == final {
		return final
	}
	return returned // a goto never returns to the chain it left
}

// enter records that the packet comes to a chain.
func (t *tracer) enter(chain string) { t.hop("chain "+chain, "%s", purpose(chain)) }

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
