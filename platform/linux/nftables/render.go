// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/common/traffic"
	"kubeproxy/platform/linux/netlink"
)

// Render returns the tables of both families that a node would hold for want if it started
// without tables. Equal snapshots give equal bytes. The text has the syntax of nft, which
// nft -c -f accepts. The document holds the same statements in one list per chain and set.
func Render(want *service.Snapshot, o Options) (reconcile.Objects, any) {
	all, docs := reconcile.Families(func(f service.Family) *renderedTable { return renderedAfter(nil, f, want, o) })
	return all, map[string]any{"tables": docs}
}

// renderedTable is one table in printable form.
type renderedTable struct {
	Family string         `json:"family"`
	Name   string         `json:"name"`
	Sets   []renderedPart `json:"sets"`
	Chains []renderedPart `json:"chains"`

	sets    []*set
	chains  []*chain
	dormant bool
	family  service.Family
	portOf  func(comment string) service.PortName
}

// renderedPart is a set with its elements, or a chain with its rules.
type renderedPart struct {
	Name     string   `json:"name"`
	Type     string   `json:"type,omitempty"`
	Elements []string `json:"elements,omitempty"`
	Rules    []string `json:"rules,omitempty"`

	head  string             // its text before elements and rules
	ports []service.PortName // of Elements
}

// renderedAfter returns the table that t becomes for want: endpoints keep their slots, and
// chains of size classes stay. t is nil if there is none.
func renderedAfter(t *table, f service.Family, want *service.Snapshot, o Options) *renderedTable {
	d := &renderedTable{Family: netlink.FamilyName(f), Name: o.table(), family: f, portOf: want.Commented(f, comment)}
	d.sets = slices.Clone(o.sets())
	d.chains = baseChains(f, want.Node, o)
	elements := map[string][]element{} // by set
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
		d.sets = append(d.sets, ownSets(p)...)
		own = append(own, ownChains(p, o)...)
		shared.add(p, 1)
		for _, e := range l.elements() {
			elements[e.in.name] = append(elements[e.in.name], e)
		}
	}
	for _, e := range shared.elements() {
		elements[e.in.name] = append(elements[e.in.name], e)
	}
	d.chains = append(append(d.chains, need.chains(o)...), own...)
	for _, s := range d.sets {
		d.addSet(s, elements[s.name], "")
	}
	for _, c := range d.chains {
		d.addChain(c)
	}
	return d
}

// addSet adds a set with elements. remark are lines after its declaration.
func (t *renderedTable) addSet(s *set, elements []element, remark string) {
	x := renderedPart{Name: s.name, Type: typeof(s.key, t.family), head: s.text(t.family) + remark}
	slices.SortFunc(elements, compareListed)
	for _, e := range elements {
		x.Elements, x.ports = append(x.Elements, e.text(t.family)), append(x.ports, t.portOf(e.comment))
	}
	t.Sets = append(t.Sets, x)
}

func (t *renderedTable) addChain(c *chain) {
	x := renderedPart{Name: c.name, head: c.head()}
	if c.hook != nil {
		x.Type = fmt.Sprintf("nat %s %d", c.hook.name, c.hook.priority)
	}
	for _, r := range c.rules {
		x.Rules = append(x.Rules, r.text(t.family))
	}
	t.Chains = append(t.Chains, x)
}

// Objects returns the table as text.
func (t *renderedTable) Objects() reconcile.Objects {
	var all reconcile.Objects
	all.Add("table %s %s {\n", t.Family, t.Name)
	if t.dormant {
		all.Add("\tflags dormant\n")
	}
	for _, x := range slices.Concat(t.Sets, t.Chains) {
		all.Add("%s", x.head)
		if len(x.Elements) > 0 {
			all.Add("\t\telements = {\n")
		}
		for i, e := range x.Elements {
			all.AddFor(x.ports[i], "\t\t\t%s,\n", e)
		}
		if len(x.Elements) > 0 {
			all.Add("\t\t}\n")
		}
		for _, r := range x.Rules {
			all.Add("\t\t%s\n", r)
		}
		all.Add("\t}\n")
	}
	all.Add("}\n")
	return all
}

// ReadBack returns the table of the kernel, and what it would be for want, in the text and order of
// Render. The kernel stores rules as expressions, so they are recognized by fingerprints: a rule is
// printed if this node could have one with that fingerprint.
func (b *Backend) ReadBack(ctx context.Context, want *service.Snapshot) (held, wanted reconcile.Objects, err error) {
	t, err := b.driver.Read(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("read table %s: %w", b.name(), err)
	}
	b.liberal = b.options.DropInvalid && b.driver.Liberal()
	d := renderedAfter(t, b.family, want, b.effectiveOptions())
	if t != nil {
		held = d.held(t, b.ruleTexts(t, want)).Objects()
	}
	return held, d.Objects(), nil
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

// held returns the kernel's table in the order of t. rules are those known, by fingerprint.
func (t *renderedTable) held(observed *table, rules map[string]string) *renderedTable {
	h := &renderedTable{Family: t.Family, Name: t.Name, family: t.family, portOf: t.portOf, dormant: observed.dormant}
	known := map[string]bool{}
	for _, s := range t.sets {
		known[s.name] = true
		if has := observed.sets[s.name]; has != nil {
			h.addObservedSet(s, has)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(observed.sets)) {
		if !known[name] {
			head := fmt.Sprintf("\tset or map %s {\n\t\t# not one that is wanted, elements: %d\n", name, len(observed.sets[name].elements))
			h.Sets = append(h.Sets, renderedPart{Name: name, head: head})
		}
	}
	clear(known)
	for _, c := range t.chains {
		known[c.name] = true
		if has := observed.chains[c.name]; has != nil {
			h.addObservedChain(c.name, c.hook, has, rules)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(observed.chains)) {
		if !known[name] {
			h.addObservedChain(name, nil, observed.chains[name], rules)
		}
	}
	return h
}

func (t *renderedTable) addObservedSet(s *set, observed *observedSet) {
	remark := ""
	if observed.spec != s.spec(t.family) {
		remark = "\t\t# of another kind or size\n"
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
	t.addSet(s, elements, remark)
}

// addObservedChain adds a chain, which should have the hook h.
func (t *renderedTable) addObservedChain(name string, h *hook, observed *observedChain, rules map[string]string) {
	c := &chain{name: name}
	if observed.hook == h.spec() {
		c.hook = h
	}
	x := renderedPart{Name: name, head: c.head()}
	if observed.policyDrop {
		x.head = strings.Replace(x.head, "policy accept", "policy drop", 1)
	}
	if c.hook == nil && observed.hook != "" {
		x.head += fmt.Sprintf("\t\t# at hook %s\n", observed.hook)
	}
	for _, f := range observed.fingerprints {
		x.Rules = append(x.Rules, cmp.Or(rules[f], "# a rule that others wrote, or kube-proxy with other settings"))
	}
	t.Chains = append(t.Chains, x)
}

// Connections are counted after their destination was translated, in the set connections, by the
// dialled destination and the endpoint. Rules add an element for a new pair. They are in chains of
// type nat, so they run once for a connection. What else was possible:
//
// - A counter on each element of the maps of endpoints. It costs less for a connection, but needs
// Linux 5.7 (https://git.kernel.org/torvalds/c/339706bc21c1), and for each address of each
// endpoint, used or not; its count is gone when the endpoint moves to another slot, and a client
// with session affinity is found in another map.
//
// - Events of connection tracking: a message for each connection of the node, to a Service or not.
//
// - A list of connection tracking from time to time: it lacks what began and ended in between, and
// net.netfilter.nf_conntrack_acct, which counts bytes, concerns the whole node.
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

// countingRules lead translated connections to countChain, before rules that end the chain.
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
