// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/netlink"
	"kubeproxy/platform/linux/packet"
)

// rule is a list of statements. It ends at the first statement that does not match.
type rule []statement

// statement is one of the types below.
type statement interface {
	text(service.Family) string
	// expressions are what the kernel evaluates, and package packet for a trace. Those that
	// only record something are statements themselves.
	expressions(service.Family) []packet.Expression
}

type (
	// lookup matches if the fields are in a plain set, or with not, if they are not.
	lookup struct {
		fields []field
		in     *set
		not    bool
	}
	// dispatch applies the verdict that a map has for the fields, if it has one.
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
	// fromInterface matches the input interface. "*" at the end matches all with that prefix.
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

func (d dispatch) text(f service.Family) string { return typeof(d.fields, f) + " vmap @" + d.in.name }

func (d dnat) text(f service.Family) string {
	var parts []string
	for _, x := range d.fields {
		if x == slot {
			parts = append(parts, fmt.Sprintf("numgen random mod %d", d.mod))
		} else {
			parts = append(parts, x.text(f))
		}
	}
	return fmt.Sprintf("dnat %s to %s map @%s", netlink.FamilyName(f), strings.Join(parts, " . "), d.in.name)
}

func (a affinityDNAT) text(f service.Family) string {
	return fmt.Sprintf("dnat %s to %s map @%s : %d", netlink.FamilyName(f), saddr.text(f), a.in.name, a.port)
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

// register returns the number of the n-th register of four bytes. Listings have an older one for
// every fourth (kernel: net/netfilter/nf_tables_api.c, nft_dump_register).
func register(n int) uint32 {
	const first, firstShort = 1, 8 // NFT_REG_1 and NFT_REG32_00
	if n%4 == 0 {
		return uint32(first + n/4)
	}
	return uint32(firstShort + n)
}

// load loads fields into registers from at on. A slot is a random number below mod.
func load(fields []field, at int, mod uint32, family service.Family) []packet.Expression {
	var out []packet.Expression
	for _, f := range fields {
		out = append(out, f.load(register(at), mod, family))
		at += f.size(family) / 4
	}
	return out
}

func (f field) load(reg, mod uint32, family service.Family) packet.Expression {
	offset, size := 12, f.size(family) // of the source address in an IPv4 header
	if family == service.IPv6 {
		offset = 8
	}
	if at, n := f.inner(family); n > 0 {
		return packet.PayloadLoad{Base: packet.TransportBase, Offset: at, Size: n, To: reg}
	}
	switch f {
	case daddr:
		offset += size
	case proto:
		return packet.MetaLoad{Key: packet.MetaL4, To: reg}
	case sport:
		return packet.PayloadLoad{Base: packet.TransportBase, Size: 2, To: reg}
	case dport:
		return packet.PayloadLoad{Base: packet.TransportBase, Offset: 2, Size: 2, To: reg}
	case slot:
		return packet.Random{To: reg, Below: mod}
	case origDport:
		return packet.ConntrackLoad{Key: packet.CtDestPort, To: reg}
	case origSport:
		return packet.ConntrackLoad{Key: packet.CtSourcePort, To: reg}
	case origSaddr:
		return packet.ConntrackLoad{Key: [...]uint32{packet.CtSourceIP, packet.CtSourceIP6}[family], To: reg}
	case replySaddr:
		return packet.ConntrackLoad{Key: [...]uint32{packet.CtSourceIP, packet.CtSourceIP6}[family], To: reg, Direction: packet.Reply}
	case origDaddr:
		return packet.ConntrackLoad{Key: [...]uint32{packet.CtDestIP, packet.CtDestIP6}[family], To: reg}
	}
	return packet.PayloadLoad{Base: packet.NetworkBase, Offset: offset, Size: size, To: reg}
}

func native(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }

// masked sets register 0 to (register 0 & mask) ^ xor.
func masked(mask, xor []byte) packet.Expression {
	return packet.Bitwise{From: register(0), To: register(0), Size: len(mask), Mask: mask, Flip: xor}
}

func equals(data []byte) packet.Expression {
	return packet.Compare{Op: packet.CmpEqual, From: register(0), Data: data}
}

func differs(data []byte) packet.Expression {
	return packet.Compare{Op: packet.CmpNotEqual, From: register(0), Data: data}
}

func readMark() packet.Expression { return packet.MetaLoad{Key: packet.MetaMark, To: register(0)} }

func writeMark() packet.Expression { return packet.MetaStore{Key: packet.MetaMark, From: register(0)} }

func (l lookup) expressions(f service.Family) []packet.Expression {
	return append(load(l.fields, 0, 0, f), packet.Lookup{Set: l.in.name, From: register(0), Not: l.not})
}

func (d dispatch) expressions(f service.Family) []packet.Expression {
	return append(load(d.fields, 0, 0, f), packet.Lookup{Set: d.in.name, From: register(0), Map: true})
}

// value replaces the key in the first registers by its value in a map.
func value(in *set) packet.Expression {
	return packet.Lookup{Set: in.name, From: register(0), To: register(0), Map: true}
}

func (d dnat) expressions(f service.Family) []packet.Expression {
	return append(load(d.fields, 0, d.mod, f), translateTo(d.in, f)...)
}

// translateTo translates to the target that a map holds for the key in the first registers.
func translateTo(in *set, f service.Family) []packet.Expression {
	return []packet.Expression{value(in), packet.Translate{Addr: register(0), Port: register(daddr.size(f) / 4)}}
}

func (a affinityDNAT) expressions(f service.Family) []packet.Expression {
	const port = 4
	return append(load(clientKey, 0, 0, f), value(a.in),
		packet.Immediate{To: register(port), Data: binary.BigEndian.AppendUint16(nil, a.port)},
		packet.Translate{Addr: register(0), Port: register(port)})
}

func (r recordClient) expressions(f service.Family) []packet.Expression {
	return append(append(load([]field{origSaddr}, 0, 0, f), load(targetFields[:1], 4, 0, f)...), r)
}

func (c countConnection) expressions(f service.Family) []packet.Expression {
	return append(load(countedFields, 0, 0, f), c)
}

func (c counter) expressions(service.Family) []packet.Expression { return []packet.Expression{c} }

func (p toPort) expressions(f service.Family) []packet.Expression {
	return append(load([]field{dport}, 0, 0, f), equals(binary.BigEndian.AppendUint16(nil, p.port)))
}

func (w within) expressions(f service.Family) []packet.Expression {
	out := load([]field{w.field}, 0, 0, f)
	if !w.prefix.IsSingleIP() {
		mask := []byte(net.CIDRMask(w.prefix.Bits(), w.prefix.Addr().BitLen()))
		out = append(out, masked(mask, make([]byte, len(mask))))
	}
	compare := equals
	if w.not {
		compare = differs
	}
	return append(out, compare(w.prefix.Masked().Addr().AsSlice()))
}

func (i fromInterface) expressions(service.Family) []packet.Expression {
	const size = 16 // IFNAMSIZ
	name, wild := strings.CutSuffix(i.name, "*")
	if !wild {
		name += strings.Repeat("\x00", size-len(name))
	}
	return []packet.Expression{packet.MetaLoad{Key: packet.MetaInName, To: register(0)}, equals([]byte(name))}
}

func (i isProto) expressions(f service.Family) []packet.Expression {
	return append(load([]field{proto}, 0, 0, f), equals([]byte{byte(i.proto)}))
}

func (i isLocal) expressions(service.Family) []packet.Expression {
	return []packet.Expression{packet.Fib{To: register(0), Type: true, Source: i.field == saddr}, equals(native(packet.Local))}
}

// has matches if one of bits of a property of the connection is set.
func has(key, bits uint32) []packet.Expression {
	return []packet.Expression{packet.ConntrackLoad{Key: key, To: register(0)}, masked(native(bits), native(0)), differs(native(0))}
}

func (translated) expressions(service.Family) []packet.Expression {
	return has(packet.CtStatus, packet.StatusDNAT)
}

func (invalid) expressions(service.Family) []packet.Expression {
	return has(packet.CtState, packet.StateInvalid)
}

func (m marked) expressions(service.Family) []packet.Expression {
	return []packet.Expression{readMark(), masked(native(m.bits), native(0)), equals(native(m.bits))}
}

func (m mark) expressions(service.Family) []packet.Expression {
	return []packet.Expression{readMark(), masked(native(^m.bits), native(m.bits)), writeMark()}
}

func (u unmark) expressions(service.Family) []packet.Expression {
	return []packet.Expression{readMark(), masked(native(^u.bits), native(0)), writeMark()}
}

func (masquerade) expressions(service.Family) []packet.Expression {
	return []packet.Expression{packet.Translate{Source: true}}
}

func (r reject) expressions(service.Family) []packet.Expression {
	return []packet.Expression{packet.Reject{TCP: r.tcp}}
}

// verdictCodes are the kernel's numbers.
var verdictCodes = [...]int32{
	verdictJump: packet.Jump, verdictGoto: packet.Goto, verdictReturn: packet.Return, verdictDrop: packet.Drop, verdictAccept: packet.Accept,
}

func (v verdict) expressions(service.Family) []packet.Expression {
	return []packet.Expression{packet.Verdict{Code: verdictCodes[v.code], Chain: v.chain}}
}

func (r rule) text(f service.Family) string {
	var parts []string
	for _, s := range r {
		parts = append(parts, s.text(f))
	}
	return strings.Join(parts, " ")
}

// hook is where packets enter a base chain. Type nat sees first packets alone, see nft(8).
type hook struct {
	name     string
	priority int
	filter   bool // the type is filter instead of nat: the chain sees every packet
}

func (h *hook) typ() string {
	if h.filter {
		return "filter"
	}
	return "nat"
}

// chain is a named list of rules.
type chain struct {
	name  string
	hook  *hook // nil for a chain that is not a base chain
	rules []rule
}

// text returns c in the syntax of nft(8).
func (c *chain) text(family service.Family) string {
	var b strings.Builder
	b.WriteString(c.head())
	for _, r := range c.rules {
		fmt.Fprintf(&b, "\t\t%s\n", r.text(family))
	}
	b.WriteString("\t}\n")
	return b.String()
}

// head returns the text of c before its rules.
func (c *chain) head() string {
	text := fmt.Sprintf("\tchain %s {\n", c.name)
	if c.hook != nil {
		text += fmt.Sprintf("\t\ttype %s hook %s priority %d; policy accept;\n", c.hook.typ(), c.hook.name, c.hook.priority)
	}
	return text
}

// dstNAT and srcNAT are netfilter's priorities for translation (kernel:
// include/uapi/linux/netfilter_ipv4.h, NF_IP_PRI_NAT_DST and NF_IP_PRI_NAT_SRC).
const (
	dstNAT = -100
	srcNAT = 100
)

// Names of chains that verdict maps refer to.
const (
	refuseChain        = "refuse"
	localChain         = "external-local"
	nodePortLocalChain = "nodeport-external-local"
	markChain          = "mark-unless-pod"
	dispatchChain      = "dispatch"
	outputChain        = "output"
	nodePortChain      = "nodeport-dispatch"
	rememberChain      = "remember"
	unallocatedChain   = "unallocated"
)

var (
	addrKey     = []field{daddr, proto, dport}
	nodePortKey = []field{proto, dport}
)

func jumpVerdict(name string) verdict { return verdict{verdictJump, name} }
func gotoVerdict(name string) verdict { return verdict{verdictGoto, name} }

// baseChains returns the chains that the table of family f always contains. The order
// ensures that each chain refers only to chains before it and to sets.
func baseChains(f service.Family, node *service.Node, o Options) []*chain {
	bit := o.mark()
	return append(append(filterChains(o), countChains(o)...), []*chain{
		{name: refuseChain, rules: []rule{
			{isProto{service.TCP}, reject{tcp: true}},
			{reject{}},
		}},
		{name: markChain, rules: markRules(f, node, bit)},
		{name: localChain, rules: localRules(f, node, bit, addrKey, internalClients, externalClients)},
		{name: nodePortLocalChain, rules: localRules(f, node, bit, nodePortKey, nodePortInternalClients, nodePortExternalClients)},
		{name: nodePortChain, rules: []rule{
			{lookup{nodePortKey, nodePortLocal, false}, gotoVerdict(nodePortLocalChain)},
			{dispatch{nodePortKey, nodePorts}},
		}},
		{name: dispatchChain, rules: dispatchRules(f, node)},
		{name: rememberChain, rules: rememberRules()},
		{name: unallocatedChain, rules: unallocatedRules(f, node)},
		{name: "prerouting", hook: &hook{name: "prerouting", priority: dstNAT}, rules: []rule{{jumpVerdict(dispatchChain)}}},
		{name: outputChain, hook: &hook{name: "output", priority: dstNAT}, rules: append(unrelayedRules(f, node), rule{jumpVerdict(dispatchChain)})},
		{name: "input", hook: &hook{name: "input", priority: srcNAT}, rules: append(countingRules(o), rule{translated{}, jumpVerdict(rememberChain)})},
		{name: "postrouting", hook: &hook{name: "postrouting", priority: srcNAT}, rules: append(append(rangeRules(f, node), countingRules(o)...),
			rule{translated{}, jumpVerdict(rememberChain)},
			rule{marked{bit}, translated{}, unmark{bit}, masquerade{}}, // others may set the bit, too: kubernetes/kubernetes#113659
			rule{lookup{[]field{saddr, daddr}, hairpin, false}, masquerade{}},
		)},
	}...)
}

// filterChains returns chains that see every packet, none unless an option needs it. Connection
// tracking translates no reply outside of the TCP window, to which the client, who does not know
// it, would answer with a reset (kubernetes/kubernetes#74839).
func filterChains(o Options) []*chain {
	if !o.DropInvalid {
		return nil
	}
	return []*chain{{name: "forward", hook: &hook{name: "forward", filter: true}, rules: []rule{
		{isProto{service.TCP}, invalid{}, verdict{code: verdictDrop}},
	}}}
}

// unallocatedRules drop packets to an address in a Service CIDR that neither a Service nor, as far
// as known, a pod has. By a default route they would leave the node, or loop.
func unallocatedRules(f service.Family, node *service.Node) []rule {
	rules := []rule{
		{translated{}, verdict{code: verdictReturn}},
		{isLocal{daddr}, verdict{code: verdictReturn}},
	}
	for _, a := range node.EndpointsInServiceCIDRs {
		if service.FamilyOf(a) == f {
			rules = append(rules, rule{within{daddr, netip.PrefixFrom(a, a.BitLen()), false}, verdict{code: verdictReturn}})
		}
	}
	return append(rules, rule{verdict{code: verdictDrop}})
}

// rangeRules lead to unallocatedRules. They run last, in postrouting, so that another
// proxy on the node can translate the packet first.
func rangeRules(f service.Family, node *service.Node) []rule {
	var rules []rule
	for _, p := range service.InFamily(node.ServiceCIDRs, f) {
		rules = append(rules, rule{within{daddr, p.Masked(), false}, jumpVerdict(unallocatedChain)})
	}
	return rules
}

// dispatchRules find the frontend. The address of a Service comes first. After that every
// other port of a ClusterIP is refused, so that such packets do not loop through a
// default route. The node's own addresses come last.
func dispatchRules(f service.Family, node *service.Node) []rule {
	rules := []rule{
		{lookup{addrKey, restricted, false}, lookup{append(addrKey[:3:3], saddr), sources, true}, verdict{code: verdictDrop}},
		{lookup{addrKey, externalLocal, false}, gotoVerdict(localChain)},
		{dispatch{addrKey, services}},
		{lookup{[]field{daddr}, clusterIPs, false}, gotoVerdict(refuseChain)},
	}
	loopback := within{daddr, loopbackPrefix(f), true}
	toNode := rule{isLocal{daddr}, loopback, gotoVerdict(nodePortChain)}
	for _, p := range node.NodePortPrefixes(f) {
		switch {
		case p.Bits() == 0:
			return append(rules, toNode)
		case !service.LoopbackOnly(p): // the local listeners for NodePorts serve loopback addresses
			rules = append(rules, append(rule{within{daddr, p.Masked(), false}}, toNode...))
		}
	}
	return rules
}

// refuseUnrelayed returns the rule that refuses NodePorts at the loopback address of f for
// which the local listeners cannot serve the protocol. The kernel never confirms the
// connection of a packet that is refused, so each further packet gets there and is counted.
func refuseUnrelayed(f service.Family) rule {
	at := service.Localhost(f)
	return rule{within{daddr, netip.PrefixFrom(at, at.BitLen()), false}, lookup{nodePortKey, unrelayed, false}, counter{}, reject{}}
}

// unrelayedRules are there if the operator wants NodePorts on the loopback address.
func unrelayedRules(f service.Family, node *service.Node) []rule {
	if !node.LocalhostNodePorts(f) {
		return nil
	}
	return []rule{refuseUnrelayed(f)}
}

// podRules returns rules that run then for pods, one for each way in which node detects them.
func podRules(f service.Family, node *service.Node, then ...statement) []rule {
	var rules []rule
	add := func(is statement) { rules = append(rules, append(rule{is}, then...)) }
	switch pods := node.Pods; {
	case pods.Interface != "":
		add(fromInterface{pods.Interface})
	case pods.InterfacePrefix != "":
		add(fromInterface{pods.InterfacePrefix + "*"})
	default:
		for _, p := range service.InFamily(pods.Prefixes, f) {
			add(within{saddr, p.Masked(), false})
		}
	}
	return rules
}

// markRules mark packets to a ClusterIP for masquerading.
func markRules(f service.Family, node *service.Node, bit uint32) []rule {
	switch {
	case node.MasqueradeAll:
		return []rule{{mark{bit}}}
	case node.Pods.Known(f):
		return append(podRules(f, node, verdict{code: verdictReturn}), rule{mark{bit}})
	}
	return nil
}

// localRules implement policy Local for external addresses. Pods and the node itself
// reach any endpoint. Other clients reach only the endpoints on this node.
func localRules(f service.Family, node *service.Node, bit uint32, key []field, clientMaps ...*set) []rule {
	rules := podRules(f, node, dispatch{key, clientMaps[0]})
	return append(rules,
		rule{isLocal{saddr}, mark{bit}, dispatch{key, clientMaps[0]}},
		rule{dispatch{key, clientMaps[1]}},
		rule{verdict{code: verdictDrop}})
}

// rememberRules jump to the chain that records the client of a connection. They match the
// protocol first, because without it nft cannot determine the type of a port.
func rememberRules() []rule {
	var rules []rule
	for _, s := range []*set{affinity, nodePortAffinity} {
		key := []field{proto, origDport}
		if s == affinity {
			key = []field{origDaddr, proto, origDport}
		}
		for _, p := range []service.Protocol{service.TCP, service.UDP, service.SCTP} {
			rules = append(rules, rule{isProto{p}, dispatch{key, s}})
		}
	}
	return rules
}

// field is a value that a rule reads from a packet or its connection, or a random number.
// It is also the type of one part of a map key.
type field uint8

const (
	saddr      field = iota // source address
	daddr                   // destination address
	proto                   // transport protocol
	sport                   // source port
	dport                   // destination port
	origSaddr               // the connection's source before any NAT
	origDaddr               // the connection's destination before any NAT
	origDport               // the connection's destination port before any NAT
	origSport               // the connection's source port before any NAT
	replySaddr              // the source address of replies, which is the endpoint's
	slot                    // a random number below a modulus that the rule gives
	packetMark
	// The header of the packet that an ICMP error is about, which has no options.
	innerSaddr
	innerDaddr
	innerProto
	innerSport
	innerDport
)

// text returns f as nft writes it in a rule or a typeof. For slot it returns a fixed
// modulus, because only the rule knows its own.
func (f field) text(family service.Family) string {
	ip := netlink.FamilyName(family)
	switch f {
	case saddr:
		return ip + " saddr"
	case daddr:
		return ip + " daddr"
	case proto:
		return "meta l4proto"
	case sport:
		return "th sport"
	case dport:
		return "th dport"
	case origSaddr:
		return "ct original " + ip + " saddr"
	case origDaddr:
		return "ct original " + ip + " daddr"
	case origDport:
		return "ct original proto-dst"
	case origSport:
		return "ct original proto-src"
	case replySaddr:
		return "ct reply " + ip + " saddr"
	case packetMark:
		return "meta mark"
	}
	if at, size := f.inner(family); size > 0 {
		return fmt.Sprintf("@th,%d,%d", at*8, size*8)
	}
	return "numgen random mod 65536"
}

func (f field) isAddr() bool {
	return f == saddr || f == daddr || f == origSaddr || f == origDaddr || f == replySaddr || f == innerSaddr || f == innerDaddr
}

// inner returns where f is after the start of an ICMP error, size 0 if it is elsewhere.
func (f field) inner(family service.Family) (at, size int) {
	const header = 8
	p := innerPlaces[f][family]
	return header + p[0], p[1]
}

// innerPlaces are offsets in a packet and sizes, by family.
var innerPlaces = map[field][2][2]int{
	innerProto: {{9, 1}, {6, 1}}, innerSaddr: {{12, 4}, {8, 16}}, innerDaddr: {{16, 4}, {24, 16}}, innerSport: {{20, 2}, {40, 2}}, innerDport: {{22, 2}, {42, 2}},
}

// size returns the bytes of f in a key, each part padded to a multiple of four.
func (f field) size(family service.Family) int {
	if f.isAddr() && family == service.IPv6 {
		return 16
	}
	return 4
}

func keySize(fields []field, family service.Family) int {
	n := 0
	for _, f := range fields {
		n += f.size(family)
	}
	return n
}

// A key is the concatenation of its fields in the kernel's format: addresses and ports in
// network byte order, the protocol in the first byte, slots in host byte order.

func appendAddr(key []byte, a netip.Addr) []byte { return append(key, a.AsSlice()...) }

func appendProto(key []byte, p service.Protocol) []byte { return append(key, byte(p), 0, 0, 0) }

func appendPort(key []byte, port uint16) []byte { return append(key, byte(port>>8), byte(port), 0, 0) }

func appendSlot(key []byte, n uint32) []byte { return binary.NativeEndian.AppendUint32(key, n) }

// keyText formats a key as nft does: "10.96.0.10 . tcp . 80". end bounds an interval, or is nil.
func keyText(fields []field, family service.Family, key, end []byte) string {
	var parts []string
	for _, f := range fields {
		n := f.size(family)
		if len(key) < n {
			return fmt.Sprintf("%x", key)
		}
		if f.isAddr() && end != nil {
			parts = append(parts, prefixText(key[:n], end[:n]))
		} else {
			parts = append(parts, partText(f, key[:n]))
		}
		key = key[n:]
		if end != nil {
			end = end[n:]
		}
	}
	return strings.Join(parts, " . ")
}

func partText(f field, b []byte) string {
	switch f {
	case proto:
		return service.Protocol(b[0]).String()
	case sport, dport, origDport, origSport:
		return fmt.Sprint(binary.BigEndian.Uint16(b))
	case slot:
		return fmt.Sprint(binary.NativeEndian.Uint32(b))
	case packetMark:
		return fmt.Sprintf("0x%08x", binary.NativeEndian.Uint32(b))
	}
	a, _ := netip.AddrFromSlice(b)
	return a.String()
}

// prefixText formats the prefix from first to last, a single address without length, as nft does.
func prefixText(first, last []byte) string {
	a, _ := netip.AddrFromSlice(first)
	bits := len(first) * 8
	for i := range first {
		for diff := first[i] ^ last[i]; diff != 0; diff >>= 1 {
			bits--
		}
	}
	if bits == a.BitLen() {
		return a.String()
	}
	return netip.PrefixFrom(a, bits).String()
}

// lastAddr returns the highest address in p.
func lastAddr(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 1 << (7 - i%8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

func loopbackPrefix(f service.Family) netip.Prefix {
	if f == service.IPv6 {
		return netip.PrefixFrom(netip.IPv6Loopback(), 128)
	}
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{127}), 8)
}
