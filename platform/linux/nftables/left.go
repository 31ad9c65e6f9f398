// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/conntrack"
	"kubeproxy/platform/linux/packet"
)

// A table of its own ends connections to endpoints that left, see package orphans, in every mode.
// It is there, and packets pay for it, only while there are such. It sees packets after their
// destination was translated: in input those of mode ipvs, which translates later.
//
// The reset that the kernel makes has the numbers that the client's packet acknowledges, and goes
// the way of all answers. A SYN, which begins the next connection of the port, passes, and so does
// the client's own reset: an endpoint that still lives hears of the end.

// LeftTableOf returns the name of the table of the proxy for Services labelled with name.
func LeftTableOf(name string) string {
	const table = "kube-left"
	if name == "" {
		return table
	}
	return table + "-" + name
}

// leftFlows are the connections to end. The endpoint is part of the key, so that a later
// connection of the same client port to another endpoint is another one.
var leftFlows = &set{name: "connections", key: []field{origSaddr, origSport, origDaddr, origDport, replySaddr}}

type (
	// established matches packets of connections that got an answer.
	established struct{}
	// fromClient matches packets in the direction of the first one.
	fromClient struct{}
	// without matches TCP packets without a flag.
	without struct {
		flag byte
		name string
	}
	// isNudge matches nudges, untracked keeps them from connection tracking.
	isNudge   struct{}
	untracked struct{}
)

var notReset, notSYN = without{4, "rst"}, without{2, "syn"}

func (established) text(service.Family) string { return "ct state established" }
func (fromClient) text(service.Family) string  { return "ct direction original" }
func (w without) text(service.Family) string   { return "tcp flags & " + w.name + " == 0x0" }
func (isNudge) text(service.Family) string     { return fmt.Sprintf("@th,32,64 0x%x", nudgeNumbers) }
func (untracked) text(service.Family) string   { return "notrack" }

func (established) expressions(service.Family) []packet.Expression {
	return has(packet.CtState, packet.StateEstablished)
}

func (fromClient) expressions(service.Family) []packet.Expression {
	const original = 0
	return []packet.Expression{packet.ConntrackLoad{Key: packet.CtDirection, To: register(0)}, equals([]byte{original})}
}

func (w without) expressions(service.Family) []packet.Expression {
	const flags = 13
	return []packet.Expression{
		packet.PayloadLoad{Base: packet.TransportBase, Offset: flags, Size: 1, To: register(0)},
		masked([]byte{w.flag}, []byte{0}), equals([]byte{0}),
	}
}

func (isNudge) expressions(service.Family) []packet.Expression {
	const sequence = 4
	return []packet.Expression{packet.PayloadLoad{Base: packet.TransportBase, Offset: sequence, Size: len(nudgeNumbers), To: register(0)}, equals([]byte(nudgeNumbers))}
}

func (u untracked) expressions(service.Family) []packet.Expression { return []packet.Expression{u} }

// A client that only reads sends nothing that could be answered. A nudge is a packet that
// seems to come from the Service, with numbers that the client does not expect. It answers
// with a packet that has the right ones (RFC 9293, 3.10.7.4), and that is reset. Connection
// tracking would take a nudge for a connection of its own.
const nudgeNumbers = "kubeleft" // sequence and acknowledgement

// clientEnd says from where to where a nudge for the client of f goes.
func clientEnd(f conntrack.Flow) (from, to netip.AddrPort) { return f.Dst, f.Src }

// endpointEnd does so for the endpoint, after the client, which then answers it with a reset.
func endpointEnd(f conntrack.Flow) (from, to netip.AddrPort) { return f.ReplyDst, f.ReplySrc }

// ended returns the flows in before that are not in now.
func ended(before, now []conntrack.Flow) []conntrack.Flow {
	type key [3]netip.AddrPort
	of := func(f conntrack.Flow) key { return key{f.Src, f.Dst, f.ReplySrc} }
	left := map[key]bool{}
	for _, f := range now {
		left[of(f)] = true
	}
	return slices.DeleteFunc(slices.Clone(before), func(f conntrack.Flow) bool { return left[of(f)] })
}

// nudge returns the packet for one end of a connection, with its IP header.
func nudge(from, to netip.AddrPort) []byte {
	const ack, protocol, size = 0x10, 6, 20
	b := binary.BigEndian.AppendUint16(nil, from.Port())
	b = binary.BigEndian.AppendUint16(b, to.Port())
	b = append(append(b, nudgeNumbers...), size/4<<4, ack, 1, 0, 0, 0, 0, 0)
	ends := append(from.Addr().AsSlice(), to.Addr().AsSlice()...)
	sum := uint32(protocol + size)
	for i, c := range slices.Concat(ends, b) { // all have an even length
		sum += uint32(c) << (8 * (1 - i%2))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(b[16:], ^uint16(sum))
	h := []byte{0x60, 0, 0, 0, 0, size, protocol, 64}
	if to.Addr().Is4() { // the kernel completes length and checksum, see raw(7)
		h = []byte{0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, protocol, 0, 0}
	}
	return slices.Concat(h, ends, b)
}

// leftChains returns the chains, before those of firewalls that drop what they answer.
func leftChains() []*chain {
	end := rule{
		established{}, isProto{service.TCP}, fromClient{}, notReset, notSYN, lookup{fields: leftFlows.key, in: leftFlows}, reject{tcp: true},
	}
	all := []*chain{{name: "nudge", hook: &hook{name: "output", priority: -300, filter: true}, rules: []rule{{isProto{service.TCP}, notSYN, isNudge{}, untracked{}}}}}
	for _, name := range []string{"input", "forward", "output"} {
		all = append(all, &chain{name: name, hook: &hook{name: name, priority: -1, filter: true}, rules: []rule{end}})
	}
	return all
}

func leftElements(flows []conntrack.Flow) []element {
	all := make([]element, len(flows))
	for i, f := range flows {
		var key []byte // nft reads up to five fields
		for _, a := range []netip.AddrPort{f.Src, f.Dst} {
			key = appendPort(appendAddr(key, a.Addr()), a.Port())
		}
		key = appendAddr(key, f.ReplySrc.Addr())
		all[i] = element{in: leftFlows, key: key}
	}
	slices.SortFunc(all, element.compare)
	return slices.CompactFunc(all, func(a, b element) bool { return a.compare(b) == 0 })
}

// leftOps returns the ops from have to want. Without elements there is no table.
func leftOps(have, want []element) []op {
	switch {
	case len(have) == 0 && len(want) == 0:
		return nil
	case len(want) == 0:
		return []op{{verb: delTable}}
	case len(have) == 0:
		ops := appendChain([]op{{verb: addTable}, {verb: addSet, set: leftFlows}}, leftChains()...)
		return appendElements(ops, nil, want)
	}
	return appendElements(nil, have, want)
}
