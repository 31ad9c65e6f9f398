// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"
	"strings"
	"time"

	"kubeproxy/common/service"
)

// setKind is the result of a lookup in a set.
type setKind uint8

const (
	plainSet   setKind = iota // membership
	verdictMap                // a verdict
	targetMap                 // an address and port to translate to
	addrMap                   // an address to translate to
	markMap                   // a mark to set
)

// set describes a named set or map of the table.
type set struct {
	name string
	kind setKind
	key  []field
	// interval means that each element is a range in its last field.
	interval bool
	// fixed means that each slot has to hold what it should, as other nodes do.
	fixed bool
	// timeout, if not 0, makes a set that only rules fill. Its elements expire that long
	// after their last use, and there are at most limit.
	timeout time.Duration
	limit   uint32
}

// clientLimit bounds the clients that one Service port records. The kernel allocates them
// one by one. The bound keeps a scan from filling its memory.
const clientLimit = 1 << 20

// The sets that every table has. Sets with an address in the key serve addresses of
// Services. Those with the prefix nodeport- serve the node's own addresses.
var (
	services  = &set{name: "services", kind: verdictMap, key: []field{daddr, proto, dport}}
	nodePorts = &set{name: "nodeports", kind: verdictMap, key: []field{proto, dport}}

	endpoints         = &set{name: "endpoints", kind: targetMap, key: []field{daddr, proto, dport, slot}}
	nodePortEndpoints = &set{name: "nodeport-endpoints", kind: targetMap, key: []field{proto, dport, slot}}

	// Frontends with externalTrafficPolicy Local, for external clients, and for pods and the node.
	externalClients           = &set{name: "external-clients", kind: verdictMap, key: []field{daddr, proto, dport}}
	internalClients           = &set{name: "internal-clients", kind: verdictMap, key: []field{daddr, proto, dport}}
	nodePortExternalClients   = &set{name: "nodeport-external-clients", kind: verdictMap, key: []field{proto, dport}}
	nodePortInternalClients   = &set{name: "nodeport-internal-clients", kind: verdictMap, key: []field{proto, dport}}
	internalEndpoints         = &set{name: "internal-endpoints", kind: targetMap, key: []field{daddr, proto, dport, slot}}
	nodePortInternalEndpoints = &set{name: "nodeport-internal-endpoints", kind: targetMap, key: []field{proto, dport, slot}}

	// Which frontends have externalTrafficPolicy Local. They are not in services and
	// nodeports: if a verdict led to another verdict map, a kernel would validate the
	// second map once for each element of the first (kernel: net/netfilter/nft_lookup.c,
	// nft_lookup_validate), unless it has commit 8e1a1bc4f5a4 (Linux 6.19).
	externalLocal = &set{name: "external-local", kind: plainSet, key: []field{daddr, proto, dport}}
	nodePortLocal = &set{name: "nodeport-local", kind: plainSet, key: []field{proto, dport}}

	// NodePorts of a protocol for which this process does not listen on loopback addresses.
	unrelayed = &set{name: "nodeport-unrelayed", kind: plainSet, key: []field{proto, dport}}

	// loadBalancerSourceRanges: the restricted frontends, and the permitted sources.
	restricted = &set{name: "restricted", kind: plainSet, key: []field{daddr, proto, dport}}
	sources    = &set{name: "sources", kind: plainSet, key: []field{daddr, proto, dport, saddr}, interval: true}

	clusterIPs = &set{name: "cluster-ips", kind: plainSet, key: []field{daddr}}
	hairpin    = &set{name: "hairpin", kind: plainSet, key: []field{saddr, daddr}}

	// The chain that records the client of a connection, by its original destination.
	affinity         = &set{name: "affinity", kind: verdictMap, key: []field{daddr, proto, dport}}
	nodePortAffinity = &set{name: "nodeport-affinity", kind: verdictMap, key: []field{proto, dport}}
)

var baseSets = []*set{
	services, endpoints, nodePorts, nodePortEndpoints,
	externalClients, internalClients, internalEndpoints, nodePortExternalClients, nodePortInternalClients, nodePortInternalEndpoints,
	externalLocal, nodePortLocal, unrelayed, restricted, sources, clusterIPs, hairpin, affinity, nodePortAffinity,
}

// targetFields are the fields of a value in a targetMap.
var targetFields = []field{daddr, dport}

// valueFields returns the fields of the values in s, nil for verdicts or no values.
func (s *set) valueFields() []field {
	switch s.kind {
	case targetMap:
		return targetFields
	case addrMap:
		return targetFields[:1]
	case markMap:
		return []field{packetMark}
	}
	return nil
}

// text declares s in the syntax of nft, without elements. By typeof nft can load its listing again.
func (s *set) text(family service.Family) string {
	var b strings.Builder
	word := "map"
	if s.kind == plainSet {
		word = "set"
	}
	fmt.Fprintf(&b, "\t%s %s {\n\t\ttypeof %s", word, s.name, typeof(s.key, family))
	switch {
	case s.kind == verdictMap:
		b.WriteString(" : verdict")
	case s.kind != plainSet:
		b.WriteString(" : " + typeof(s.valueFields(), family))
	}
	b.WriteString("\n")
	if s.timeout != 0 {
		fmt.Fprintf(&b, "\t\tsize %d\n\t\tflags dynamic,timeout\n\t\ttimeout %s\n", s.limit, seconds(s.timeout))
	}
	if s.interval {
		b.WriteString("\t\tflags interval\n")
	}
	return b.String()
}

func typeof(fields []field, family service.Family) string {
	var parts []string
	for _, f := range fields {
		parts = append(parts, f.text(family))
	}
	return strings.Join(parts, " . ")
}

// seconds formats d, in whole seconds, in a form that nft accepts for any duration.
func seconds(d time.Duration) string { return fmt.Sprintf("%ds", int64(d/time.Second)) }

// element is an entry of a set or map.
type element struct {
	in      *set
	key     []byte
	end     []byte  // last key of the range in an interval set, otherwise nil
	value   []byte  // the value in a targetMap or addrMap
	verdict verdict // the value in a verdictMap
	comment string  // shown in listings
	// catchAll marks the element for every key not in the set, expressions one with expressions for
	// its matches. Our own have neither.
	catchAll, expressions bool
}

// compare orders elements by set name, key and end of range.
func (e element) compare(o element) int {
	return cmp.Or(cmp.Compare(e.in.name, o.in.name), bytes.Compare(e.key, o.key), bytes.Compare(e.end, o.end))
}

// compareListed orders the elements of one set as they are listed: by each part of the key,
// numbers by their value. Slots are in host byte order.
func compareListed(a, b element) int {
	k := len(a.key) - slot.size(service.IPv4)
	if last := a.in.key[len(a.in.key)-1]; last != slot || len(a.key) != len(b.key) || k < 0 {
		return a.compare(b)
	}
	return cmp.Or(bytes.Compare(a.key[:k], b.key[:k]), cmp.Compare(binary.NativeEndian.Uint32(a.key[k:]), binary.NativeEndian.Uint32(b.key[k:])))
}

// same reports whether e and o, which have the same key, are equal.
func (e element) same(o element) bool {
	return e.verdict == o.verdict && e.comment == o.comment && bytes.Equal(e.value, o.value) && e.expressions == o.expressions
}

// text returns e in the syntax of nft(8).
func (e element) text(f service.Family) string {
	s := "*"
	if !e.catchAll {
		s = keyText(e.in.key, f, e.key, e.end)
	}
	if e.comment != "" {
		s += fmt.Sprintf(" comment %q", e.comment)
	}
	switch {
	case e.in.kind == verdictMap:
		s += " : " + e.verdict.text(f)
	case e.in.kind != plainSet:
		s += " : " + keyText(e.in.valueFields(), f, e.value, nil)
	}
	return s
}

// layout is a Port with the assignment of its endpoints to slots.
type layout struct {
	port  *service.Port
	slots slots
}

// size estimates the number of elements of l.
func (l layout) size() int {
	return 1 + len(l.port.Frontends)*(1+len(l.port.Cluster)+len(l.port.Local))
}

// elements returns all set elements of l, sorted, but those that Ports share by address.
func (l layout) elements() []element { return (&builder{layout: l}).build(l.size()) }

// changedElements returns the elements of l without those slots that hold the same
// endpoint in other. l and other must have the same routes.
func (l layout) changedElements(other layout) []element {
	return (&builder{layout: l, unchanged: other}).build(1 + 4*len(l.port.Frontends))
}

// sameRoutes reports whether the frontends of both Ports use the same sets and chains.
func sameRoutes(a, b *service.Port) bool {
	return a != nil && b != nil && a.Name == b.Name && a.Family == b.Family &&
		!ownsAny(a) && !ownsAny(b) &&
		a.Internal == b.Internal && a.External == b.External &&
		slices.EqualFunc(a.Frontends, b.Frontends, service.Frontend.SameAddress)
}

// build returns the elements. size is an estimate of their number.
func (b *builder) build(size int) []element {
	l := b.layout
	b.family = l.port.Family
	b.out = make([]element, 0, size)
	b.arena = make([]byte, 0, size*48)
	for i := range l.port.Frontends {
		b.frontend(&l.port.Frontends[i])
	}
	b.ownElements()
	slices.SortFunc(b.out, element.compare)
	return b.out
}

// builder collects elements. One arena for keys saves 200,000 allocations for 100,000 elements.
type builder struct {
	layout
	unchanged layout // see changedElements; without a port otherwise
	family    service.Family
	out       []element
	arena     []byte
}

// take returns the bytes appended to the arena since its length was from.
func (b *builder) take(from int) []byte { return slices.Clip(b.arena[from:]) }

// key returns the key of f in sets by frontend, with slot n unless n is negative.
func (b *builder) key(f *service.Frontend, n int) []byte {
	from := len(b.arena)
	if f.Kind != service.NodePort {
		b.arena = appendAddr(b.arena, f.Addr)
	}
	b.arena = appendPort(appendProto(b.arena, b.port.Name.Protocol), f.Port)
	if n >= 0 {
		b.arena = appendSlot(b.arena, uint32(n))
	}
	return b.take(from)
}

func (b *builder) addr(a netip.AddrPort) []byte {
	from := len(b.arena)
	b.arena = appendPort(appendAddr(b.arena, a.Addr()), a.Port())
	return b.take(from)
}

func (b *builder) verdict(in *set, f *service.Frontend, v verdict) {
	b.out = append(b.out, element{in: in, key: b.key(f, -1), verdict: v})
}

// pick adds the slots of list w to the map of p and returns the verdict that leads to one
// of its endpoints. entry names the entry chain. "" stands for the chain of p.
func (b *builder) pick(p *picker, f *service.Frontend, w service.Policy, entry string) verdict {
	n := b.layout.len(w)
	if n == 0 {
		return verdict{code: verdictDrop}
	}
	if ownsChains(b.port, f.Kind) {
		return gotoVerdict(clientChain(b.port, w, entry))
	}
	known := 0
	if b.unchanged.port != nil {
		known = b.unchanged.len(w)
	}
	for i := range n {
		at := b.at(w, i)
		if i < known && b.unchanged.at(w, i) == at {
			continue
		}
		b.out = append(b.out, element{in: p.targets, key: b.key(f, i), value: b.addr(at)})
	}
	if entry == "" {
		entry = p.name
	}
	return gotoVerdict(classChain(entry, classOf(n)))
}

// frontend adds the elements of f.
func (b *builder) frontend(f *service.Frontend) {
	if f.Sources != nil {
		b.restrict(f)
	}
	if f.Kind == service.NodePort && b.port.Name.Protocol == service.SCTP {
		b.out = append(b.out, element{in: unrelayed, key: b.key(f, -1)})
	}
	in, v := b.route(f)
	b.out = append(b.out, element{in: in, key: b.key(f, -1), verdict: v, comment: comment(b.port.Name)})
}

// route selects the chain according to the traffic policy. It returns the set that the
// frontend's element belongs to, and its verdict.
func (b *builder) route(f *service.Frontend) (*set, verdict) {
	entry, in, pickIn := "external", services, pickAddr
	if f.Kind == service.NodePort {
		entry, in, pickIn = "nodeport-external", nodePorts, pickNodePort
	}
	switch {
	case !b.port.HasEndpoints():
		return in, gotoVerdict(refuseChain)
	case f.Kind == service.ClusterIP:
		entry = "cluster"
	case b.port.External == service.PolicyLocal:
		return b.routeLocal(f), verdict{}
	}
	return in, b.pick(pickIn, f, b.port.Policy(f.Kind), entry)
}

// routeLocal adds the elements of an external frontend with policy Local, in a map for pods and the
// node itself, and one for others. It returns the set of the frontend's element.
func (b *builder) routeLocal(f *service.Frontend) *set {
	if f.Kind == service.NodePort {
		b.verdict(nodePortInternalClients, f, b.pick(pickNodePortInternal, f, service.PolicyCluster, ""))
		b.verdict(nodePortExternalClients, f, b.pick(pickNodePort, f, service.PolicyLocal, ""))
		return nodePortLocal
	}
	b.verdict(internalClients, f, b.pick(pickInternal, f, service.PolicyCluster, ""))
	b.verdict(externalClients, f, b.pick(pickAddr, f, service.PolicyLocal, ""))
	return externalLocal
}

// restrict adds the source ranges of f.
func (b *builder) restrict(f *service.Frontend) {
	b.out = append(b.out, element{in: restricted, key: b.key(f, -1)})
	for _, p := range f.Sources {
		b.out = append(b.out, element{
			in:  sources,
			key: appendAddr(slices.Clone(b.key(f, -1)), p.Masked().Addr()),
			end: appendAddr(slices.Clone(b.key(f, -1)), lastAddr(p.Masked())),
		})
	}
}

// comment returns the comment of a Service's element. nft accepts at most 128 bytes
// (libnftnl: include/libnftnl/udata.h, NFTNL_UDATA_COMMENT_MAXLEN). A name that is cut ends
// with dots, so that it is not taken for another one.
func comment(n service.PortName) string {
	const most, dots = 120, "..."
	s := n.String()
	if len(s) > most {
		return s[:most-len(dots)] + dots
	}
	return s
}

// neededClasses returns the size classes that the port of l uses.
func (l layout) neededClasses() classes {
	var c classes
	p := l.port
	for _, f := range p.Frontends {
		if ownsChains(p, f.Kind) {
			continue
		}
		pick, in := pickAddr, pickInternal
		if f.Kind == service.NodePort {
			pick, in = pickNodePort, pickNodePortInternal
		}
		if n := len(p.Endpoints(f.Kind)); n > 0 {
			c.add(pick, classOf(n))
		}
		if f.Kind.External() && p.External == service.PolicyLocal && len(p.Cluster) > 0 {
			c.add(in, classOf(len(p.Cluster)))
		}
	}
	return c
}

// slots assigns endpoints to slots, by policy: slot i holds the endpoint with index
// slots[policy][i], or i if the list is nil, as in a new table.
type slots [2][]uint16

// len is the number of slots of list w: that of endpoints, apart from consistent selection.
func (l layout) len(w service.Policy) int { return max(len(l.port.EndpointsFor(w)), len(l.slots[w])) }

// at returns the endpoint in slot i of list w.
func (l layout) at(w service.Policy, i int) netip.AddrPort {
	if l.slots[w] != nil {
		i = int(l.slots[w][i])
	}
	return l.port.EndpointsFor(w)[i].Addr
}

// targets returns the endpoints of w in slot order.
func (l layout) targets(w service.Policy) []netip.AddrPort {
	t := make([]netip.AddrPort, l.len(w))
	for i := range t {
		t[i] = l.at(w, i)
	}
	return t
}

// next assigns the endpoints of p to slots with few changes from l. Those in a slot below the new
// length keep it; the others fill free slots in order.
func (l layout) next(p *service.Port) layout {
	n := layout{port: p}
	for _, w := range service.Policies {
		if l.port != nil && slices.Equal(l.port.EndpointsFor(w), p.EndpointsFor(w)) {
			n.slots[w] = l.slots[w]
			continue
		}
		var old []netip.AddrPort
		if l.port != nil {
			old = l.targets(w)
		}
		n.slots[w] = arrange(old, p.EndpointsFor(w))
	}
	return n
}

// arrange returns the slots for want, sorted by address, after old, in the order of slots.
func arrange(old []netip.AddrPort, want []service.Endpoint) []uint16 {
	const free = -1
	at := make([]int, len(want)) // slot -> index in want
	placed := make([]bool, len(want))
	ahead := 0 // index minus slot of the previous endpoint, which most others share
	for i := range at {
		at[i] = free
		if i >= len(old) {
			continue
		}
		j := i + ahead
		found := j >= 0 && j < len(want) && want[j].Addr == old[i]
		if !found {
			j, found = slices.BinarySearchFunc(want, old[i], func(e service.Endpoint, a netip.AddrPort) int {
				return e.Addr.Compare(a)
			})
		}
		if found && !placed[j] {
			at[i], placed[j], ahead = j, true, j-i
		}
	}
	next := 0
	identity := true
	perm := make([]uint16, len(want))
	for i, j := range at {
		if j == free {
			for placed[next] {
				next++
			}
			j = next
			placed[j] = true
		}
		perm[i] = uint16(j)
		identity = identity && i == j
	}
	if identity {
		return nil
	}
	return perm
}

// identity reports whether every endpoint is in the slot of its index.
func (s slots) identity() bool {
	return s[service.PolicyCluster] == nil && s[service.PolicyLocal] == nil
}

// Flags of sets (kernel: include/uapi/linux/netfilter/nf_tables.h).
const (
	setInterval = 1 << 2
	setMap      = 1 << 3
	setTimeout  = 1 << 4
	setEval     = 1 << 5
	setConcat   = 1 << 7
)

func (s *set) flags() uint32 {
	flags := uint32(0)
	if s.kind != plainSet {
		flags |= setMap
	}
	if s.interval {
		flags |= setInterval | setConcat
	}
	if s.timeout != 0 {
		flags |= setTimeout | setEval
	}
	return flags
}

// setSpec holds the properties of a set, in numbers that do not depend on the system. The
// kernel fixes most of them. A size can change later since Linux 6.5, see
// https://git.kernel.org/torvalds/c/96b2ef9b16cb.
type setSpec struct {
	flags       uint32
	key, value  int // bytes
	verdicts    bool
	timeout     uint64 // ms
	size        uint32
	expressions bool // expressions that run for each matching element
}

func (s *set) spec(f service.Family) setSpec {
	return setSpec{
		flags: s.flags(), key: keySize(s.key, f), value: keySize(s.valueFields(), f), verdicts: s.kind == verdictMap,
		timeout: uint64(s.timeout.Milliseconds()), size: s.limit,
	}
}

// elementKey identifies an element within a set. That of a catch-all element is the shortest.
func elementKey(e element) string {
	if e.catchAll {
		return "*"
	}
	return string(e.key) + string(e.end)
}

// A size class is a power of two. A list of endpoints uses the rules of the smallest class that
// holds it, which draw a random slot below the class size. Slots past the end are empty, and the
// next rule draws again. An endpoint more or less changes an element of a data map, but no rule and
// no verdict. That is cheap: a new goto in a verdict map makes the kernel validate the whole table
// (kernel: net/netfilter/nf_tables_api.c, nft_add_set_elem and nft_table_validate).

// maxClass is the size of the largest class.
const maxClass = 1 << 16

// classOf returns the size class for n endpoints, from 1 to maxClass.
func classOf(n int) uint32 { return 1 << bits.Len32(uint32(n-1)) }

// slotModuli returns, in order, the moduli for drawing slots of a class. More than half
// of the slots are filled, so fewer than 0.4 % of the connections remain after eight
// draws. The last draw uses the lower half only, which is full and cannot miss. It
// favours that half by no more than those 0.4 %.
func slotModuli(class uint32) []uint32 {
	n := 8
	switch class {
	case 1, 2:
		return []uint32{class}
	case 4: // at most a quarter is empty
		n = 4
	case 8: // at most three eighths are empty
		n = 6
	}
	var d []uint32
	for range n {
		d = append(d, class)
	}
	return append(d, class/2)
}

// picker is a family of chains, one per class, that pick an endpoint from a map.
type picker struct {
	name    string
	targets *set
	// entries are chains that run one statement and then go to this picker's chain. The
	// key is the chain's name. The function returns the statement.
	entries map[string]func(bit uint32) statement
}

func markAlways(bit uint32) statement { return mark{bit} }
func markUnlessPod(uint32) statement  { return jumpVerdict(markChain) }

var (
	pickAddr = &picker{"pick", endpoints, map[string]func(uint32) statement{
		"cluster": markUnlessPod, "external": markAlways,
	}}
	pickNodePort = &picker{"nodeport-pick", nodePortEndpoints, map[string]func(uint32) statement{
		"nodeport-external": markAlways,
	}}
	pickInternal         = &picker{"internal-pick", internalEndpoints, nil}
	pickNodePortInternal = &picker{"nodeport-internal-pick", nodePortInternalEndpoints, nil}
)

var pickers = [...]*picker{pickAddr, pickNodePort, pickInternal, pickNodePortInternal}

func classChain(name string, class uint32) string { return fmt.Sprintf("%s-%d", name, class) }

// chains returns the chains of p for one class.
func (p *picker) chains(class uint32, o Options) []*chain {
	pick := &chain{name: classChain(p.name, class)}
	for _, mod := range slotModuli(class) {
		pick.rules = append(pick.rules, rule{dnat{p.targets.key, mod, p.targets}})
	}
	chains := []*chain{pick}
	for _, entry := range []string{"cluster", "external", "nodeport-external"} {
		if first := p.entries[entry]; first != nil {
			chains = append(chains, &chain{
				name:  classChain(entry, class),
				rules: []rule{{first(o.mark())}, {gotoVerdict(pick.name)}},
			})
		}
	}
	return chains
}

// classes is a set of size classes for each picker. Bit i stands for class 1<<i.
type classes [len(pickers)]uint32

// baseClasses are always present, so that small Services never wait for a chain. Binding
// a new rule to a large map makes the kernel walk the whole map (kernel:
// net/netfilter/nf_tables_api.c, nf_tables_bind_set).
var baseClasses = classes{0b11111, 0b11111, 0b11, 0b11}

func (c *classes) add(p *picker, class uint32) {
	for i := range pickers {
		if pickers[i] == p {
			c[i] |= class
		}
	}
}

// union returns the classes in c or d.
func (c classes) union(d classes) classes {
	for i := range c {
		c[i] |= d[i]
	}
	return c
}

// without returns the classes in c that are not in d.
func (c classes) without(d classes) classes {
	for i := range c {
		c[i] &^= d[i]
	}
	return c
}

// chains returns the chains of every class in c.
func (c classes) chains(o Options) []*chain {
	var chains []*chain
	for i, p := range pickers {
		for left := c[i]; left != 0; left &= left - 1 {
			chains = append(chains, p.chains(left&-left, o)...)
		}
	}
	return chains
}
