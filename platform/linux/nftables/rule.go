// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"fmt"
	"net/netip"
	"strings"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/netlink/nft"
)

// rule is a list of statements. It ends at the first statement that does not match.
type rule []statement

// statement is one of the types below. Each can be formatted as text, encoded for the
// kernel and, in tests, traced.
type statement interface {
	text(service.Family) string
}

type (
	// lookup matches if the fields are in a plain set. With not it matches if they are
	// not.
	lookup struct {
		fields []field
		in     *set
		not    bool
	}
	// dispatch applies the verdict that a map holds for the fields. Without one the rules
	// continue.
	dispatch struct {
		fields []field
		in     *set
	}
	// dnat translates to the target that a map holds for the fields. It does not match if
	// there is none. A slot among the fields is a random number below mod.
	dnat struct {
		fields []field
		mod    uint32
		in     *set
	}
	// affinityDNAT translates to the address that a map holds for the packet's source,
	// and to port. It does not match if there is none.
	affinityDNAT struct {
		in   *set
		port uint16
	}
	// recordClient records or refreshes the endpoint of the connection's client.
	recordClient struct{ in *set }
	// countConnection counts a connection by countedFields.
	countConnection struct{ in *set }
	// toPort matches a destination port.
	toPort struct{ port uint16 }
	// within matches if a field is in a prefix. With not it matches if it is not.
	within struct {
		field  field
		prefix netip.Prefix
		not    bool
	}
	// fromInterface matches the input interface. A name that ends in "*" matches all
	// names with that prefix.
	fromInterface struct{ name string }
	isProto       struct{ proto service.Protocol }
	// isLocal matches if the address in a field belongs to the node.
	isLocal    struct{ field field }
	translated struct{}
	// invalid matches packets in connection tracking state INVALID.
	invalid struct{}
	// marked matches packets whose mark has all of bits.
	marked struct{ bits uint32 }
	// mark sets bits of the packet mark, unmark clears them.
	mark       struct{ bits uint32 }
	unmark     struct{ bits uint32 }
	masquerade struct{}
	// reject answers with a TCP reset if tcp, otherwise with ICMP port unreachable.
	reject struct{ tcp bool }
	// counter counts the packets that get there.
	counter struct{}
	// verdict ends the rule.
	verdict struct {
		code  verdictCode
		chain string // for verdictJump and verdictGoto
	}
)

type verdictCode uint8

const (
	verdictJump   verdictCode = iota // run a chain, then continue after this rule
	verdictGoto                      // continue in a chain and do not return here
	verdictReturn                    // return to the chain that jumped here
	verdictDrop
	verdictAccept // end the processing in this table
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
	return fmt.Sprintf("dnat %s to %s map @%s", nft.FamilyName(f), strings.Join(parts, " . "), t.in.name)
}

func (s affinityDNAT) text(f service.Family) string {
	return fmt.Sprintf("dnat %s to %s map @%s : %d", nft.FamilyName(f), saddr.text(f), s.in.name, s.port)
}

func (r recordClient) text(f service.Family) string {
	return fmt.Sprintf("update @%s { %s : %s }", r.in.name, origSaddr.text(f), daddr.text(f))
}

func (c countConnection) text(f service.Family) string {
	return fmt.Sprintf("update @%s { %s counter }", c.in.name, typeof(countedFields, f))
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
func (counter) text(service.Family) string         { return "counter" }

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
