// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"kubeproxy/common/document"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/common/traffic"
	"kubeproxy/platform/linux/netlink/nft"
)

// Render writes the tables of both families that a node would hold for want if it started
// without tables. Equal snapshots give equal bytes. The text has the syntax of nft, which
// nft -c -f accepts. JSON holds the same statements in one list per chain and set.
func Render(w io.Writer, want *service.Snapshot, o Options, format document.Format) error {
	var docs []*renderedTable
	for _, f := range service.Families {
		docs = append(docs, newRenderedTable(f, want, o))
	}
	return format.Write(w, map[string]any{"tables": docs}, func(b *bufio.Writer) {
		for _, d := range docs {
			b.WriteString(d.objects().String())
		}
	})
}

// renderedTable is one table in printable form.
type renderedTable struct {
	Family string         `json:"family"`
	Name   string         `json:"name"`
	Sets   []renderedPart `json:"sets"`
	Chains []renderedPart `json:"chains"`

	sets     []*set
	chains   []*chain
	elements map[string][]element // by set
	family   service.Family
	portOf   func(comment string) service.PortName
}

// renderedPart is a set with its elements, or a chain with its rules.
type renderedPart struct {
	Name     string   `json:"name"`
	Type     string   `json:"type,omitempty"`
	Elements []string `json:"elements,omitempty"`
	Rules    []string `json:"rules,omitempty"`
}

// newRenderedTable returns the table that a node would hold for want if it started without a
// table.
func newRenderedTable(f service.Family, want *service.Snapshot, o Options) *renderedTable {
	return renderedAfter(nil, f, want, o)
}

// renderedAfter returns the table that t becomes for want: endpoints keep their slots, and
// chains of size classes stay. t is nil if there is none.
func renderedAfter(t *table, f service.Family, want *service.Snapshot, o Options) *renderedTable {
	d := &renderedTable{Family: nft.FamilyName(f), Name: o.table(), family: f, elements: map[string][]element{}, portOf: want.Commented(f, comment)}
	d.sets = slices.Clone(o.sets())
	d.chains = baseChains(f, want.Node, o)
	need := baseClasses
	var before *comparison
	if t != nil {
		before = &comparison{table: t}
		need = need.union(before.observedClasses())
	}
	var own []*chain
	shared := newShared()
	for p := range want.Ports(f) {
		l := layout{}
		if before != nil {
			l = before.observedLayout(p)
		}
		l = l.next(p)
		need = need.union(l.neededClasses())
		d.sets = append(d.sets, affinitySets(p)...)
		own = append(own, affinityChains(p, o)...)
		shared.add(p, 1)
		for _, e := range l.elements() {
			d.elements[e.in.name] = append(d.elements[e.in.name], e)
		}
	}
	for _, e := range shared.elements() {
		d.elements[e.in.name] = append(d.elements[e.in.name], e)
	}
	d.chains = append(append(d.chains, need.chains(o)...), own...)
	d.describe()
	return d
}

// describe fills in the texts of sets and chains.
func (t *renderedTable) describe() {
	f := t.family
	for _, s := range t.sets {
		t.Sets = append(t.Sets, renderedPart{Name: s.name, Type: typeof(s.key, f), Elements: t.texts(t.elements[s.name])})
	}
	for _, c := range t.chains {
		x := renderedPart{Name: c.name}
		if c.hook != nil {
			x.Type = fmt.Sprintf("nat %s %d", c.hook.name, c.hook.priority)
		}
		for _, r := range c.rules {
			x.Rules = append(x.Rules, r.text(f))
		}
		t.Chains = append(t.Chains, x)
	}
}

func (t *renderedTable) texts(elements []element) []string {
	slices.SortFunc(elements, compareListed)
	var texts []string
	for _, e := range elements {
		texts = append(texts, e.text(t.family))
	}
	return texts
}

// objects returns the table as text.
func (t *renderedTable) objects() reconcile.Objects {
	var all reconcile.Objects
	all.Add("table %s %s {\n", t.Family, t.Name)
	for i, s := range t.sets {
		t.addSet(&all, s.text(t.family), t.elements[s.name], t.Sets[i].Elements)
	}
	for _, c := range t.chains {
		all.Add("%s", c.text(t.family))
	}
	all.Add("}\n")
	return all
}

// addSet adds a set with elements, which have texts, after its declaration.
func (t *renderedTable) addSet(to *reconcile.Objects, declaration string, elements []element, texts []string) {
	to.Add("%s", declaration)
	if len(elements) > 0 {
		to.Add("\t\telements = {\n")
	}
	for i, e := range elements {
		to.AddFor(t.portOf(e.comment), "\t\t\t%s,\n", texts[i])
	}
	if len(elements) > 0 {
		to.Add("\t\t}\n")
	}
	to.Add("\t}\n")
}

// ReadBack returns the table that the kernel holds, and the one that it would hold for
// want, in the text and order of Render. Both are equal if nothing has to change for want.
//
// The kernel stores rules as expressions, not as text. So a rule is recognized by its
// fingerprint: it is printed if this node could have a rule with that fingerprint.
func (b *Backend) ReadBack(ctx context.Context, want *service.Snapshot) (held, wanted reconcile.Objects, err error) {
	t, err := b.driver.Read(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("read table %s: %w", b.name(), err)
	}
	b.liberal = b.options.DropInvalid && b.driver.Liberal()
	d := renderedAfter(t, b.family, want, b.effectiveOptions())
	if t != nil {
		r := &tablePrinter{rendered: d, table: t, rules: b.ruleTexts(t, want)}
		r.write()
		held = r.out
	}
	return held, d.objects(), nil
}

// ruleTexts returns the rules that t may have for want, by fingerprint.
func (b *Backend) ruleTexts(t *table, want *service.Snapshot) map[string]string {
	texts := map[string]string{}
	for _, c := range b.knownChains(t, want) {
		for _, r := range c.rules {
			texts[r.fingerprint(b.family)] = r.text(b.family)
		}
	}
	return texts
}

// tablePrinter prints the table of the kernel in the order of a renderedTable.
type tablePrinter struct {
	rendered *renderedTable
	table    *table
	rules    map[string]string // by fingerprint
	out      reconcile.Objects
}

func (t *tablePrinter) write() {
	t.out.Add("table %s %s {\n", t.rendered.Family, t.rendered.Name)
	if t.table.dormant {
		t.out.Add("\tflags dormant\n")
	}
	known := map[string]bool{}
	for _, s := range t.rendered.sets {
		known[s.name] = true
		if observed := t.table.sets[s.name]; observed != nil {
			t.set(s, observed)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(t.table.sets)) {
		if !known[name] {
			t.out.Add("\tset or map %s {\n\t\t# not one that is wanted, elements: %d\n\t}\n", name, len(t.table.sets[name].elements))
		}
	}
	clear(known)
	for _, c := range t.rendered.chains {
		known[c.name] = true
		if observed := t.table.chains[c.name]; observed != nil {
			t.chain(c.name, c.hook, observed)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(t.table.chains)) {
		if !known[name] {
			t.chain(name, nil, t.table.chains[name])
		}
	}
	t.out.Add("}\n")
}

func (t *tablePrinter) set(s *set, observed *observedSet) {
	declaration := s.text(t.rendered.family)
	if observed.spec != s.spec(t.rendered.family) {
		declaration += "\t\t# of another kind or size\n"
	}
	var elements []element
	for k := range observed.elements {
		if s.timeout != 0 {
			break // clients come and go
		}
		e, _ := observed.get(k)
		e.in = s
		elements = append(elements, e)
	}
	t.rendered.addSet(&t.out, declaration, elements, t.rendered.texts(elements))
}

// chain prints a chain. h is the hook that it should have.
func (t *tablePrinter) chain(name string, h *hook, observed *observedChain) {
	c := &chain{name: name}
	if observed.hook == h.spec() {
		c.hook = h
	}
	text := strings.TrimSuffix(c.text(t.rendered.family), "\t}\n")
	if observed.policyDrop {
		text = strings.Replace(text, "policy accept", "policy drop", 1)
	}
	t.out.Add("%s", text)
	if c.hook == nil && observed.hook != "" {
		t.out.Add("\t\t# at hook %s\n", observed.hook)
	}
	for _, f := range observed.fingerprints {
		if rule, known := t.rules[f]; known {
			t.out.Add("\t\t%s\n", rule)
		} else {
			t.out.Add("\t\t# a rule that others wrote, or kube-proxy with other settings\n")
		}
	}
	t.out.Add("\t}\n")
}

// Connections are counted after their destination was translated, in the set connections.
// The key is the destination that the client dialled and the endpoint. The rules add an
// element when they first see such a pair. They are in chains of type nat, so they run
// once for a connection and cost later packets nothing. What else was possible:
//
//   - A counter on each element of the maps of endpoints. It costs less for a connection,
//     as the map is looked up anyway. But such an element needs Linux 5.7
//     (https://git.kernel.org/torvalds/c/339706bc21c1), each endpoint has one for each of
//     its addresses whether it is used or not, and its count is gone when the endpoint
//     moves to another slot. A client with session affinity is found in another map.
//   - Events of connection tracking: the kernel writes a message for each connection of
//     the node, to a Service or not, and this process has to read it.
//   - A list of connection tracking from time to time: it lacks connections that began
//     and ended in between, and net.netfilter.nf_conntrack_acct, which counts bytes,
//     concerns the whole node.
//
// Packets and bytes are not counted: rules would have to see every packet.

// connections holds the counts.
var connections = &set{name: "connections", kind: plainSet, key: []field{daddr, proto, dport, daddr, dport}, timeout: time.Hour, limit: pairLimit}

// countedFields are the key of connections in rules.
var countedFields = []field{origDaddr, proto, origDport, daddr, dport}

// pairLimit bounds the counts. A pair beyond it is not counted until others were unused
// for an hour. The kernel allocates them one by one.
const pairLimit = 1 << 17

const countChain = "count"

// sets returns the sets that every table has.
func (o Options) sets() []*set {
	if o.CountConnections {
		return append(slices.Clip(baseSets), connections)
	}
	return baseSets
}

// countChains returns the chain that counts a connection. It matches the protocol first,
// because without it nft cannot determine the type of a port.
func countChains(o Options) []*chain {
	if !o.CountConnections {
		return nil
	}
	c := &chain{name: countChain}
	for _, p := range []service.Protocol{service.TCP, service.UDP, service.SCTP} {
		c.rules = append(c.rules, rule{isProto{p}, countConnection{connections}})
	}
	return []*chain{c}
}

// countingRules lead translated connections to countChain. They come before rules that
// end the chain.
func countingRules(o Options) []rule {
	if !o.CountConnections {
		return nil
	}
	return []rule{{translated{}, jumpVerdict(countChain)}}
}

// counterOf decodes a key of connections, false if it is none.
func counterOf(key []byte, f service.Family) (traffic.Counter, bool) {
	if len(key) != keySize(connections.key, f) {
		return traffic.Counter{}, false
	}
	n := daddr.size(f)
	port := func(at int) uint16 { return binary.BigEndian.Uint16(key[at:]) }
	from, _ := netip.AddrFromSlice(key[:n])
	to, _ := netip.AddrFromSlice(key[n+8 : 2*n+8])
	return traffic.Counter{
		Protocol: service.Protocol(key[n]),
		Frontend: netip.AddrPortFrom(from, port(n+4)), Endpoint: netip.AddrPortFrom(to, port(2*n+8)),
	}, true
}
