// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/conntrack"
	"kubeproxy/platform/linux/packet"
)

// A table of its own leads packets from outside of the cluster to the node of their endpoint, see
// package direct. It is above the rules of mode nftables, which translate what it leaves alone.
//
// The ingress node only marks packets, before connection tracking, so that a route leads them into the
// tunnel. The endpoint's node translates them. Both find the slot of the client as
// service.Table has it.

// TheTable is what Leftovers.Find returns if there is the table.
const TheTable = "the table"

// DirectTableOf returns the name of the table of the proxy that serves the Services labelled
// with name.
func DirectTableOf(name string) string { return strings.TrimSuffix("kube-direct-"+name, "-") }

// DirectRules are what the table of one family is for.
type DirectRules struct {
	Node   *service.Node
	Tunnel Tunnel
	// Senders are the nodes that may send through the tunnel.
	Senders []netip.Addr
	// Slots is the size of the tables of all Ports.
	Slots uint16
	Ports map[service.PortName]DirectPort
	// Kept are connections that the rules translate.
	Kept []conntrack.Flow
}

// Tunnel is how packets get from node to node.
type Tunnel struct {
	Device string
	Port   uint16 // of UDP
	Key    uint32 // the VNI
	Probe  uint16 // the UDP port of probes
	MSS    uint16 // the largest segment of TCP that fits
}

// DirectPort is a Service port.
type DirectPort struct {
	*service.Port
	// Marks are those of the nodes of its endpoints, apart from this one. It is nil if not all of
	// them are reached: then the rules translate, and only packets of others to local endpoints
	// are served.
	Marks map[string]uint32
}

// Equal reports whether p and q need the same rules.
func (p DirectPort) Equal(q DirectPort) bool {
	return p.Port == q.Port && (p.Marks == nil) == (q.Marks == nil) && maps.Equal(p.Marks, q.Marks)
}

var (
	directKey = []field{daddr, proto, dport, slot}
	// Frontends whose packets go to other nodes, and those with an endpoint here, which come
	// through the tunnel.
	leads   = &set{name: "leads", key: addrKey}
	serves  = &set{name: "serves", key: addrKey}
	marks   = &set{name: "marks", kind: markMap, key: directKey, fixed: true}
	locals  = &set{name: "locals", kind: targetMap, key: directKey, fixed: true}
	senders = &set{name: "senders", key: []field{saddr}}
	kept    = &set{name: "kept", key: []field{saddr, sport, daddr, dport, proto}}

	directSets = []*set{leads, serves, marks, locals, senders, kept, restricted, sources}
)

type (
	// hashed are fields of a frontend, with the slot of a client after them.
	hashed struct {
		frontend, client []field
		mod              uint32
	}
	// markNode sets the mark that a map has for the slot of a client. It does not match
	// without one.
	markNode struct {
		hashed
		in *set
	}
	// dnatHashed translates to the target that a map has for the slot of a client.
	dnatHashed struct {
		hashed
		in *set
	}
	// toInterface matches the output interface.
	toInterface struct{ name string }
	// foreignKey matches packets of a tunnel with another key.
	foreignKey struct{ key uint32 }
	// carriesProbe matches packets of a tunnel that carry a datagram to a port.
	carriesProbe struct{ port uint16 }
	// isError matches ICMP errors of a type about a packet without IP options.
	isError struct{ typ byte }
	// isSYNACK matches answers to first packets.
	isSYNACK struct{}
	// clampMSS makes the segments that the sender announces that small.
	clampMSS struct{ bytes uint16 }
)

func (h hashed) text(f service.Family) string {
	return fmt.Sprintf("%s . jhash %s mod %d seed %#x", typeof(h.frontend, f), typeof(h.client, f), h.mod, hashSeed)
}

func (h hashed) expressions(f service.Family) []packet.Expression {
	at := keySize(h.frontend, f) / 4
	out := append(load(h.frontend, 0, 0, f), load(h.client, at+1, 0, f)...)
	return append(out, packet.Hash{From: register(at + 1), Size: keySize(h.client, f), To: register(at), Below: h.mod, Seed: hashSeed})
}

func (m markNode) text(f service.Family) string {
	return fmt.Sprintf("meta mark set %s map @%s", m.hashed.text(f), m.in.name)
}

func (m markNode) expressions(f service.Family) []packet.Expression {
	return append(m.hashed.expressions(f), value(m.in), writeMark())
}

func (d dnatHashed) text(f service.Family) string {
	return fmt.Sprintf("dnat to %s map @%s", d.hashed.text(f), d.in.name)
}

func (d dnatHashed) expressions(f service.Family) []packet.Expression {
	return append(d.hashed.expressions(f), translateTo(d.in, f)...)
}

func (i toInterface) text(service.Family) string { return fmt.Sprintf("oifname %q", i.name) }

func (i toInterface) expressions(service.Family) []packet.Expression {
	return []packet.Expression{packet.MetaLoad{Key: packet.MetaOutName, To: register(0)}, equals([]byte(i.name + strings.Repeat("\x00", 16-len(i.name))))}
}

func (k foreignKey) text(service.Family) string { return fmt.Sprintf("@th,96,24 != %#x", k.key) }

func (k foreignKey) expressions(service.Family) []packet.Expression {
	const afterUDP = 12
	return []packet.Expression{
		packet.PayloadLoad{Base: packet.TransportBase, Offset: afterUDP, Size: 3, To: register(0)},
		differs(binary.BigEndian.AppendUint32(nil, k.key<<8)[:3]),
	}
}

// places are where the packet in a tunnel has what carriesProbe compares, by family: the header of the tunnel
// with the protocol, the first byte, the protocol of IP, and the port.
func (p carriesProbe) places(f service.Family) (all [][2]int) {
	const start = 16
	if f == service.IPv6 {
		return [][2]int{{11, 2}, {start + 6, int(service.UDP)}, {start + 42, int(p.port >> 8)}, {start + 43, int(p.port & 0xff)}}
	}
	return [][2]int{{11, 1}, {start, 0x45}, {start + 9, int(service.UDP)}, {start + 22, int(p.port >> 8)}, {start + 23, int(p.port & 0xff)}}
}

func (p carriesProbe) text(f service.Family) string {
	var parts []string
	for _, x := range p.places(f) {
		parts = append(parts, fmt.Sprintf("@th,%d,8 %#x", x[0]*8, x[1]))
	}
	return strings.Join(parts, " ")
}

func (p carriesProbe) expressions(f service.Family) (out []packet.Expression) {
	for _, x := range p.places(f) {
		out = append(out, packet.PayloadLoad{Base: packet.TransportBase, Offset: x[0], Size: 1, To: register(0)}, equals([]byte{byte(x[1])}))
	}
	return out
}

func (e isError) text(service.Family) string { return fmt.Sprintf("@th,0,8 %d", e.typ) }

func (e isError) expressions(f service.Family) []packet.Expression {
	out := []packet.Expression{packet.PayloadLoad{Base: packet.TransportBase, Size: 1, To: register(0)}, equals([]byte{e.typ})}
	if f == service.IPv4 {
		out = append(out, packet.PayloadLoad{Base: packet.TransportBase, Offset: 8, Size: 1, To: register(0)}, equals([]byte{0x45}))
	}
	return out
}

func (isSYNACK) text(service.Family) string { return "tcp flags & (syn | ack) == syn | ack" }

func (isSYNACK) expressions(service.Family) []packet.Expression {
	const flags, both = 13, 0x12
	return []packet.Expression{
		packet.PayloadLoad{Base: packet.TransportBase, Offset: flags, Size: 1, To: register(0)}, masked([]byte{both}, []byte{0}), equals([]byte{both}),
	}
}

func (c clampMSS) text(service.Family) string {
	return fmt.Sprintf("tcp option maxseg size set %d", c.bytes)
}

func (c clampMSS) expressions(service.Family) []packet.Expression {
	return []packet.Expression{packet.Immediate{To: register(0), Data: binary.BigEndian.AppendUint16(nil, c.bytes)}, c}
}

// errorTypes are those of ICMP errors that a sender needs to hear of.
var errorTypes = [...][]byte{service.IPv4: {3, 11, 12}, service.IPv6: {1, 2, 3, 4}}

const icmp, icmp6 service.Protocol = 1, 58

// chains returns the chains. They run after the first ones of firewalls, and before connection
// tracking, at -200.
func (r *DirectRules) chains(f service.Family) []*chain {
	leave, drop, accept := verdict{code: verdictReturn}, verdict{code: verdictDrop}, verdict{code: verdictAccept}
	from, is := fromInterface{r.Tunnel.Device}, isProto{[...]service.Protocol{icmp, icmp6}[f]}
	arriving := []statement{isProto{service.UDP}, toPort{r.Tunnel.Port}}
	slotOf := hashed{addrKey, []field{saddr, sport}, uint32(r.Slots)}
	unlisted := rule{lookup{addrKey, restricted, false}, lookup{append(addrKey[:3:3], saddr), sources, true}, leave}
	lead := &chain{name: "lead", rules: append(podRules(f, r.Node, leave),
		rule{isLocal{daddr}, leave}, unlisted, rule{lookup{kept.key, kept, false}, leave}, rule{markNode{slotOf, marks}, untracked{}})}
	errs, arrived := &chain{name: "errors", rules: podRules(f, r.Node, leave)}, &chain{name: "arrived", rules: []rule{
		{lookup{addrKey, serves, false}, accept}, {isProto{service.UDP}, toPort{r.Tunnel.Probe}, isLocal{daddr}, accept},
	}}
	inner := hashed{[]field{innerSaddr, innerProto, innerSport}, []field{innerDaddr, innerDport}, uint32(r.Slots)}
	for _, typ := range errorTypes[f] {
		errs.rules = append(errs.rules, rule{isError{typ}, markNode{inner, marks}, untracked{}})
		arrived.rules = append(arrived.rules, rule{is, isError{typ}, lookup{inner.frontend, serves, false}, accept})
	}
	arrived.rules = append(arrived.rules, rule{drop})
	return []*chain{lead, errs, arrived,
		{name: "prerouting", hook: &hook{name: "prerouting", priority: -250, filter: true}, rules: []rule{
			{from, gotoVerdict(arrived.name)},
			append(arriving[:2:2], isLocal{daddr}, foreignKey{r.Tunnel.Key}, drop),
			append(arriving[:2:2], isLocal{daddr}, lookup{senders.key, senders, true}, carriesProbe{r.Tunnel.Probe}, accept), // of a new node
			append(arriving[:2:2], isLocal{daddr}, lookup{senders.key, senders, true}, drop),
			{lookup{addrKey, leads, false}, gotoVerdict(lead.name)},
			{is, gotoVerdict(errs.name)},
		}},
		// What a pod sends may get the address of its node.
		{name: "forward", hook: &hook{name: "forward", filter: true}, rules: []rule{append(arriving[:2:2], lookup{[]field{daddr}, senders, false}, drop)}},
		{name: "translate", hook: &hook{name: "prerouting", priority: dstNAT - 1}, rules: append(podRules(f, r.Node, leave), unlisted,
			rule{lookup{addrKey, serves, false}, dnatHashed{slotOf, locals}})},
		// Nothing from the tunnel leaves the node again, except to an endpoint.
		{name: "strays", hook: &hook{name: "prerouting", priority: dstNAT + 1, filter: true}, rules: []rule{
			{from, translated{}, accept}, {from, isProto{service.UDP}, toPort{r.Tunnel.Probe}, isLocal{daddr}, accept}, {from, drop},
		}},
		// The tunnel's own packets take another way.
		{name: "postrouting", hook: &hook{name: "postrouting", priority: -150, filter: true}, rules: []rule{
			{toInterface{r.Tunnel.Device}, unmark{^uint32(0)}},
			{isProto{service.TCP}, isSYNACK{}, lookup{[]field{origDaddr, proto, origDport}, serves, false}, clampMSS{r.Tunnel.MSS}},
		}},
	}
}

// elements returns those of p, sorted.
func (p DirectPort) elements() []element {
	if p.Port == nil {
		return nil
	}
	b := &builder{layout: layout{port: p.Port}}
	table := service.Table(p.Cluster, p.Consistent.Slots)
	for i := range p.Frontends {
		f := &p.Frontends[i]
		if !p.LeadsDirectly(*f) {
			continue
		}
		if f.Sources != nil {
			b.restrict(f)
		}
		if p.Marks != nil {
			b.out = append(b.out, element{in: leads, key: b.key(f, -1)})
		}
		if slices.ContainsFunc(p.Cluster, func(e service.Endpoint) bool { return e.Local }) {
			b.out = append(b.out, element{in: serves, key: b.key(f, -1)})
		}
		for n, at := range table {
			e := p.Cluster[at]
			if e.Local {
				b.out = append(b.out, element{in: locals, key: b.key(f, n), value: b.addr(e.Addr)})
			} else if p.Marks != nil {
				b.out = append(b.out, element{in: marks, key: b.key(f, n), value: appendSlot(nil, p.Marks[p.Direct.Nodes[at]])})
			}
		}
	}
	slices.SortFunc(b.out, element.compare)
	return b.out
}

// common returns the elements that are for no port, sorted.
func (r *DirectRules) common(f service.Family) []element {
	var all []element
	for _, a := range r.Senders {
		if service.FamilyOf(a) == f {
			all = append(all, element{in: senders, key: a.AsSlice()})
		}
	}
	for _, c := range r.Kept {
		var key []byte
		for _, a := range []netip.AddrPort{c.Src, c.Dst} {
			key = appendPort(appendAddr(key, a.Addr()), a.Port())
		}
		all = append(all, element{in: kept, key: appendProto(key, c.Protocol)})
	}
	slices.SortFunc(all, element.compare)
	return slices.CompactFunc(all, func(x, y element) bool { return x.compare(y) == 0 })
}

// directOps returns the ops that change the table from have to want. Without have there is no table.
func directOps(f service.Family, have, want *DirectRules) []op {
	var ops []op
	if have == nil {
		ops, have = append(ops, op{verb: addTable}), &DirectRules{}
		for _, s := range directSets {
			ops = append(ops, op{verb: addSet, set: s})
		}
		ops = appendChain(ops, want.chains(f)...)
	} else if have.Node != want.Node || have.Tunnel != want.Tunnel || have.Slots != want.Slots {
		ops = appendChainChanges(ops, have.chains(f), want.chains(f))
	}
	ops = appendElements(ops, have.common(f), want.common(f))
	names := maps.Clone(have.Ports)
	if names == nil {
		names = map[service.PortName]DirectPort{}
	}
	maps.Copy(names, want.Ports)
	for _, n := range slices.SortedFunc(maps.Keys(names), service.PortName.Compare) {
		if old, now := have.Ports[n], want.Ports[n]; !old.Equal(now) {
			ops = appendElements(ops, old.elements(), now.elements())
		}
	}
	// A frontend may move from one port to another.
	slices.SortStableFunc(ops, func(x, y op) int {
		return cmp.Compare(direction(x), direction(y))
	})
	return ops
}

// direction puts deletions of elements before what is added.
func direction(o op) int {
	if o.verb == delElement {
		return 0
	}
	return 1
}
