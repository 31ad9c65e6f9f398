// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"fmt"
	"net/netip"
	"strings"

	"kubeproxy/common/service"
)

// rule is a list of statements, run until one does not match.
type rule []statement

// statement is one of the types below. Each can be written as text, encoded
// for the kernel and, in tests, traced.
type statement interface {
	text(service.Family) string
}

type (
	// lookup matches when the fields are, or with not are not, in a plain set.
	lookup struct {
		fields []field
		in     *set
		not    bool
	}
	// dispatch takes the verdict that a map has for the fields, and goes on
	// when it has none.
	dispatch struct {
		fields []field
		in     *set
	}
	// dnat sends the connection to the target that a map has for the
	// fields, and does not match when it has none. A slot among the fields
	// is random below mod.
	dnat struct {
		fields []field
		mod    uint32
		in     *set
	}
	// affinityDNAT sends the connection to the address that a map has for its
	// source, and does not match when it has none.
	affinityDNAT struct {
		in   *set
		port uint16
	}
	// recordClient notes, or notes again, where the connection's client went.
	recordClient struct{ in *set }
	// toPort matches a destination port.
	toPort struct{ port uint16 }
	// within matches when a field lies, or with not does not lie, in a prefix.
	within struct {
		field  field
		prefix netip.Prefix
		not    bool
	}
	// fromInterface matches the interface a packet came in through; a name
	// that ends in "*" stands for all that begin so.
	fromInterface struct{ name string }
	// isProto matches a transport protocol.
	isProto struct{ proto service.Protocol }
	// isLocal matches when the address in a field is the node's own.
	isLocal struct{ field field }
	// translated matches connections whose destination was translated.
	translated struct{}
	// invalid matches packets that connection tracking cannot place.
	invalid struct{}
	// marked matches packets that have all bits of a mark.
	marked struct{ bits uint32 }
	// mark sets, unmark clears bits of the packet's mark.
	mark   struct{ bits uint32 }
	unmark struct{ bits uint32 }
	// masquerade gives the connection a source address of the node.
	masquerade struct{}
	// reject refuses with a TCP reset if tcp, else with a port unreachable.
	reject struct{ tcp bool }
	// verdict ends the rule.
	verdict struct {
		code  verdictCode
		chain string // for verdictJump and verdictGoto
	}
)

// verdictCode is what a verdict does.
type verdictCode uint8

const (
	verdictJump   verdictCode = iota // run a chain, then go on after this rule
	verdictGoto                      // go on in a chain for good
	verdictReturn                    // return to where the chain was jumped to from
	verdictDrop                      // discard the packet
	verdictAccept                    // leave the table
)

func (v verdict) text(service.Family) string {
	switch v.code {
	case verdictJump:
		return "jump " + v.chain
	case verdictGoto:
		return "goto " + v.chain
	case verdictReturn:
		return "return"
	case verdictAccept:
		return "accept"
	}
	return "drop"
}

func (l lookup) text(f service.Family) string {
	if l.not {
		return typeof(l.fields, f) + " != @" + l.in.name
	}
	return typeof(l.fields, f) + " @" + l.in.name
}

func (d dispatch) text(f service.Family) string {
	return typeof(d.fields, f) + " vmap @" + d.in.name
}

func (t dnat) text(f service.Family) string {
	var parts []string
	for _, x := range t.fields {
		if x == slot {
			parts = append(parts, fmt.Sprintf("numgen random mod %d", t.mod))
		} else {
			parts = append(parts, x.text(f))
		}
	}
	return fmt.Sprintf("dnat %s to %s map @%s", tableFamily(f), strings.Join(parts, " . "), t.in.name)
}

func (s affinityDNAT) text(f service.Family) string {
	return fmt.Sprintf("dnat %s to %s map @%s : %d", tableFamily(f), saddr.text(f), s.in.name, s.port)
}

func (r recordClient) text(f service.Family) string {
	return fmt.Sprintf("update @%s { %s : %s }", r.in.name, origSaddr.text(f), daddr.text(f))
}

func (p toPort) text(f service.Family) string { return fmt.Sprintf("%s %d", dport.text(f), p.port) }

func (w within) text(f service.Family) string {
	op := " "
	if w.not {
		op = " != "
	}
	p := w.prefix.String()
	if w.prefix.IsSingleIP() {
		p = w.prefix.Addr().String()
	}
	return w.field.text(f) + op + p
}

func (i fromInterface) text(service.Family) string { return fmt.Sprintf("iifname %q", i.name) }
func (i isProto) text(service.Family) string       { return "meta l4proto " + i.proto.String() }
func (invalid) text(service.Family) string         { return "ct state invalid" }
func (translated) text(service.Family) string      { return "ct status dnat" }
func (masquerade) text(service.Family) string      { return "masquerade fully-random" }

func (i isLocal) text(service.Family) string {
	if i.field == saddr {
		return "fib saddr type local"
	}
	return "fib daddr type local"
}

func (m marked) text(service.Family) string {
	return fmt.Sprintf("meta mark & 0x%08x == 0x%08x", m.bits, m.bits)
}

func (m mark) text(service.Family) string {
	return fmt.Sprintf("meta mark set meta mark | 0x%08x", m.bits)
}

func (u unmark) text(service.Family) string {
	return fmt.Sprintf("meta mark set meta mark & 0x%08x", ^u.bits)
}

func (r reject) text(service.Family) string {
	if r.tcp {
		return "reject with tcp reset"
	}
	return "reject"
}

func (r rule) text(f service.Family) string {
	var parts []string
	for _, s := range r {
		parts = append(parts, s.text(f))
	}
	return strings.Join(parts, " ")
}
