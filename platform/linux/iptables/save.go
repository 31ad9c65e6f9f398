// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/packet"
)

// observed is the part of the output of iptables-save that concerns us.
type observed struct {
	role   *Role
	chains map[id][]string // chains of a service proxy
	// references are the rules of other chains that jump to one of those.
	references []jump
	// rules counts the rules of each built-in chain. insertAfter is the number of rules
	// up to the last jump to a chain of another mode.
	rules, insertAfter map[id]int
	// passingRule is, by built-in chain, the first rule that lets all packets pass. shadowedBy is
	// that rule for the references behind one, by index.
	passingRule map[id]string
	shadowedBy  map[int]string
	dormant     []string // tables, see Driver
	// interrupted means that a chain occurs twice. iptables-nft-save starts again and
	// prints it twice if the ruleset changes meanwhile.
	interrupted bool
}

// parse parses the output of iptables-save.
func parse(text string, of *Role) *observed {
	h := &observed{role: of, chains: map[id][]string{}, rules: map[id]int{}, insertAfter: map[id]int{}, passingRule: map[id]string{}, shadowedBy: map[int]string{}}
	table := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case strings.HasPrefix(line, "*"):
			table = line[1:]
		case !slices.Contains(allTables, table):
		case strings.HasPrefix(line, ":"):
			name, _, _ := strings.Cut(line[1:], " ")
			if i := (id{table, name}); of.owns(i) {
				_, twice := h.chains[i]
				h.interrupted = h.interrupted || twice
				h.chains[i] = nil
			}
		case strings.HasPrefix(line, "-A "):
			name, rule, _ := strings.Cut(line[3:], " ")
			h.rule(id{table, name}, rule)
		}
	}
	return h
}

func (o *observed) rule(in id, rule string) {
	if o.role.owns(in) {
		o.chains[in] = append(o.chains[in], strings.Clone(rule))
		return
	}
	o.rules[in]++
	w := packet.Split(rule)
	to := id{in.table, targetOf(w)}
	if o.role.comesAfter(to) {
		o.insertAfter[in] = o.rules[in]
		delete(o.passingRule, in)
		maps.DeleteFunc(o.shadowedBy, func(i int, _ string) bool { return o.references[i].from == in })
	}
	if o.role.owns(to) {
		if by, found := o.passingRule[in]; found {
			o.shadowedBy[len(o.references)] = by
		}
		o.references = append(o.references, jump{in, strings.Clone(rule)})
	}
	if _, found := o.passingRule[in]; !found && in.isSystem() && passesAll(w) {
		o.passingRule[in] = strings.Clone(rule)
	}
}

func targetOf(words []string) string {
	if to := packet.Argument(words, "-j"); to != "" {
		return to
	}
	return packet.Argument(words, "-g")
}

func (o *observed) sums() map[id]sum {
	sums := make(map[id]sum, len(o.chains))
	for i, rules := range o.chains {
		sums[i] = chain{i, rules}.sum()
	}
	return sums
}

// isSystem reports whether a chain is a built-in one.
func (i id) isSystem() bool {
	return slices.Contains([]string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}, i.name)
}

// bare returns j without a comment.
func (j jump) bare() jump {
	w := packet.Split(j.rule)
	if i := slices.Index(w, "--comment"); i > 1 && i+1 < len(w) {
		w = slices.Delete(w, i-2, i+2)
	}
	return jump{j.from, strings.Join(w, " ")}
}

// missingJumps returns those of jumps that are not in the tables. Comments are ignored.
func (o *observed) missingJumps(jumps []jump) []jump {
	there := map[jump]bool{}
	for _, l := range o.references {
		there[l.bare()] = true
	}
	var missing []jump
	for _, j := range jumps {
		if !there[j] {
			missing = append(missing, j)
		}
	}
	return missing
}

// extraJumps returns the rules of built-in chains that jump to chains which stay and are not among
// jumps: duplicates, and jumps to an entry chain as some service proxy makes them. An operator
// added those with another match on purpose.
func (o *observed) extraJumps(stay map[id]bool, jumps []jump) []jump {
	var more []jump
	seen := map[jump]bool{}
	for _, l := range o.references {
		b := l.bare()
		target := targetOf(packet.Split(b.rule))
		match, _ := strings.CutSuffix(b.rule, "-j "+target)
		plain := (slices.Contains(entryChains, target) || o.role != nil) && slices.Contains([]string{"", newOnly, localOnly}, match)
		plain = plain || target == relayChain // where the relay of an earlier process was
		switch {
		case !l.from.isSystem() || !stay[id{l.from.table, target}]:
		case slices.Contains(jumps, b) && !seen[b]:
			seen[b] = true
		case seen[b] || plain:
			more = append(more, l)
		}
	}
	return more
}

// extraneous returns the change that removes the chains that are not in stay, and jumps there.
func (o *observed) extraneous(stay map[id]bool) *change {
	c := &change{}
	used := map[id]bool{}
	for _, l := range o.references {
		to := id{l.from.table, targetOf(packet.Split(l.rule))}
		switch {
		case stay[to]:
		case l.from.isSystem():
			c.deleteJumps = append(c.deleteJumps, l)
		default:
			used[to] = true
		}
	}
	for _, i := range slices.SortedFunc(maps.Keys(o.chains), id.compare) {
		switch {
		case stay[i]:
		case !used[i]:
			c.deletes = append(c.deletes, i)
		case len(o.chains[i]) > 0:
			c.writes = append(c.writes, chain{id: i})
		}
	}
	return c
}

// inUse returns an error that names every chain that rules of others refer to.
func (o *observed) inUse() error {
	var errs []error
	for _, l := range o.references {
		if !l.from.isSystem() {
			errs = append(errs, fmt.Errorf("chain %s of table %s is in use: chain %s has the rule %q, which another program made", targetOf(packet.Split(l.rule)), l.from.table, l.from.name, l.rule))
		}
	}
	return errors.Join(errs...)
}

// entries returns the entries of the trees, sorted.
func (o *observed) entries() []entry {
	found := map[key]*entry{}
	for _, i := range slices.SortedFunc(maps.Keys(o.chains), id.compare) {
		if !o.role.isTree(i) {
			continue
		}
		for _, r := range o.chains[i] {
			w := packet.Split(r)
			k, ok := keyOf(i.table, w)
			if !ok || o.role.isTree(id{i.table, targetOf(w)}) {
				continue
			}
			k.check = i.name == healthPortsChain || strings.HasPrefix(i.name, healthPrefix)
			if found[k] == nil {
				found[k] = &entry{key: k}
			}
			found[k].rules = append(found[k].rules, r)
		}
	}
	var all []entry
	for _, k := range slices.SortedFunc(maps.Keys(found), key.compare) {
		all = append(all, *found[k])
	}
	return all
}

// keyOf parses the key from the words of a rule.
func keyOf(table string, w []string) (key, bool) {
	k := key{table: table}
	if d := packet.Argument(w, "-d"); d != "" {
		p, err := netip.ParsePrefix(d)
		if err != nil || !p.IsSingleIP() || slices.Contains(w, "!") {
			return k, false
		}
		k.addr = p.Addr()
	}
	for _, p := range []service.Protocol{service.TCP, service.UDP, service.SCTP} {
		if packet.Argument(w, "-p") == p.String() {
			k.proto = p
		}
	}
	if port := packet.Argument(w, "--dport"); port != "" {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil {
			return k, false
		}
		k.port = uint16(n)
	}
	return k, (k.port == 0) == (k.proto == 0) && (k.addr.IsValid() || k.port != 0)
}

// A packet finds its entry in a tree of chains, so that the number of rules that it is
// compared with grows with the logarithm of the number of entries. The shape of a tree
// depends only on its entries, and adding or removing one changes few chains. If more
// than leafSize rules would be in one chain, they are split by the four bits that follow
// the common prefix of their keys.
const (
	leafSize   = 16
	branchBits = 4
	inlineSize = 2 // fewer rules get no chain of their own
)

// bits is a key as a bit string, an address or a NodePort.
type bits []byte

// bits returns the bits that determine the position of an entry. A NodePort begins with
// its protocol, so that only the first level of branches distinguishes protocols.
func (k key) bits() bits {
	if k.addr.IsValid() {
		return k.addr.AsSlice()
	}
	return bits{byte(k.proto), byte(k.port >> 8), byte(k.port)}
}

// nibble returns the four bits that begin at bit n.
func (b bits) nibble(n int) byte { return b[n/8] >> (4 - n%8) & 15 }

// commonBits returns the length of the common prefix of a and b, in steps of four.
func commonBits(a, b bits) int {
	n := 0
	for n < 8*len(a) && a.nibble(n) == b.nibble(n) {
		n += branchBits
	}
	return n
}

// tree builds the chains of entries in one table, all for addresses, NodePorts or health checks.
type tree struct {
	table  string
	prefix string // of the names of branches
	chains []chain
}

// build returns the rules that lead to the sorted entries, and adds the chains below.
func (t *tree) build(entries []entry) []string {
	count := 0
	for _, e := range entries {
		count += len(e.rules)
	}
	var rules []string
	depth := 0
	if len(entries) > 0 {
		depth = commonBits(entries[0].bits(), entries[len(entries)-1].bits())
	}
	if len(entries) == 0 || count <= leafSize || depth == 8*len(entries[0].bits()) {
		for _, e := range entries {
			rules = append(rules, e.rules...)
		}
		return rules
	}
	for len(entries) > 0 {
		n := entries[0].bits().nibble(depth)
		end := slices.IndexFunc(entries, func(e entry) bool { return e.bits().nibble(depth) != n })
		if end < 0 {
			end = len(entries)
		}
		rules = append(rules, t.branch(entries[:end], depth+branchBits)...)
		entries = entries[end:]
	}
	return rules
}

// branch returns the rule that leads to entries, whose first depth bits are equal. If
// they have few rules, it returns these instead.
func (t *tree) branch(entries []entry, depth int) []string {
	count := 0
	for _, e := range entries {
		count += len(e.rules)
	}
	below := t.build(entries)
	if count <= inlineSize {
		return below
	}
	match, name := branchMatch(entries[0].key, depth, t.prefix)
	t.chains = append(t.chains, chain{id{t.table, name}, below})
	return []string{match + "-j " + name}
}

// branchMatch returns the match for the first depth bits of k, and the name of their branch.
func branchMatch(k key, depth int, prefix string) (match, name string) {
	if k.addr.IsValid() {
		p := netip.PrefixFrom(k.addr, depth).Masked()
		return "-d " + p.String() + " ", addrBranch(prefix, p)
	}
	proto := k.proto.String()
	if depth <= 8 {
		return "-p " + proto + " ", portBranch(prefix, k.proto, 0, 1<<16-1)
	}
	size := uint16(1<<(24-depth) - 1)
	low := k.port &^ size
	if size == 0 {
		return fmt.Sprintf("-p %s -m %s --dport %d ", proto, proto, low), portBranch(prefix, k.proto, low, low)
	}
	return fmt.Sprintf("-p %s -m %s --dport %d:%d ", proto, proto, low, low|size), portBranch(prefix, k.proto, low, low|size)
}

// rootOf returns the root of the tree of k, and the prefix of the names of its branches.
func (l layout) rootOf(k key) (id, string) {
	switch {
	case k.addr.IsValid() && l.options.Role != nil:
		return id{k.table, l.options.Role.Root}, l.options.Role.Branches
	case k.addr.IsValid():
		return id{k.table, servicesChain}, addrPrefix
	case k.check:
		return id{k.table, healthPortsChain}, healthPrefix
	}
	return id{k.table, nodePortsChain}, portPrefix
}

// buildTrees returns the rules at the roots of the trees of entries, by chain, and the branches.
func (l layout) buildTrees(entries []entry) (roots map[id][]string, branches []chain) {
	slices.SortStableFunc(entries, func(a, b entry) int { return a.key.compare(b.key) })
	entries = slices.CompactFunc(entries, func(a, b entry) bool { return a.key == b.key })
	roots = map[id][]string{}
	for len(entries) > 0 {
		first := entries[0]
		end := slices.IndexFunc(entries, func(e entry) bool {
			return e.table != first.table || e.addr.IsValid() != first.addr.IsValid() || e.check != first.check
		})
		if end < 0 {
			end = len(entries)
		}
		root, prefix := l.rootOf(first.key)
		t := &tree{table: first.table, prefix: prefix}
		if !first.addr.IsValid() {
			slices.SortFunc(entries[:end], func(a, b entry) int { return slices.Compare(a.bits(), b.bits()) })
		}
		roots[root] = t.build(entries[:end])
		branches = append(branches, t.chains...)
		entries = entries[end:]
	}
	return roots, branches
}

// ReadBack returns the chains that the tables hold, and those that they would hold for
// want, in the text and order of Render. Of the chains of others it has the rules that
// jump to ours. Both texts are equal if no chain has to change for want.
func (b *Backend) ReadBack(ctx context.Context, want *service.Snapshot) (held, wanted reconcile.Objects, err error) {
	have, would, err := b.ReadTables(ctx, want)
	return have.Objects(), would.Objects(), err
}

// ReadTables returns what ReadBack returns, as tables.
func (b *Backend) ReadTables(ctx context.Context, want *service.Snapshot) (held, wanted Tables, err error) {
	b.readSettings()
	t, err := b.read(ctx)
	if err != nil {
		return Tables{}, Tables{}, err
	}
	want = b.withPendingNodePorts(want, t)
	wanted = b.document(want)
	held = t.inOrderOf(wanted)
	wanted.portOf = b.portFinder(want)
	held.portOf = wanted.portOf
	return held, wanted, nil
}

// portFinder returns a function that finds the Service port of a rule, or of a chain if
// the rule is empty: in want, or else by the comment of the rule.
func (l layout) portFinder(want *service.Snapshot) func(in id, rule string) service.PortName {
	chains, rules := l.portNames(&installed{snapshot: want}), map[string]service.PortName{}
	for p := range want.Ports(l.family) {
		for _, e := range l.entries(p, want.Node) {
			if e.port == 0 {
				continue // is for each port of the Service
			}
			for _, r := range e.rules {
				rules[r] = p.Name
			}
		}
	}
	return func(in id, rule string) service.PortName {
		if n, found := chains[in]; found {
			return n
		}
		if n, found := rules[rule]; found {
			return n
		}
		return service.ParsePortName(packet.Argument(packet.Split(rule), "--comment"))
	}
}

// inOrderOf returns the chains of o, those that d has first and in its order.
func (o *observed) inOrderOf(d Tables) Tables {
	held := Tables{Command: d.Command}
	for _, t := range d.Tables {
		x := Table{Name: t.Name}
		known := map[id]bool{localnetMark: true}
		for _, c := range t.Chains {
			i := id{t.Name, c.Name}
			known[i] = true
			if i.isSystem() {
				x.Chains = append(x.Chains, o.builtIn(i, c))
			} else if rules, found := o.chains[i]; found {
				x.Chains = append(x.Chains, Chain{c.Name, spelledAs(c.Rules, rules)})
			}
		}
		for _, i := range slices.SortedFunc(maps.Keys(o.chains), id.compare) {
			if i.table == t.Name && !known[i] {
				x.Chains = append(x.Chains, Chain{i.name, o.chains[i]})
			}
		}
		held.Tables = append(held.Tables, x)
	}
	return held
}

// builtIn returns the rules of a built-in chain that jump to ours, in the order of want.
func (o *observed) builtIn(i id, want Chain) Chain {
	c := Chain{Name: i.name}
	var others []string
	for _, r := range o.references {
		if b := r.bare().rule; r.from == i && !slices.Contains(want.Rules, b) {
			others = append(others, r.rule)
		}
	}
	for _, rule := range want.Rules {
		if slices.ContainsFunc(o.references, func(r jump) bool { return r.from == i && r.bare().rule == rule }) {
			c.Rules = append(c.Rules, rule)
		}
	}
	c.Rules = append(c.Rules, others...)
	return c
}

// spelledAs returns rules with the quotation marks of those in want that mean the same.
func spelledAs(want, rules []string) []string {
	spelling := map[string]string{}
	for _, r := range want {
		spelling[unquoted(r)] = r
	}
	all := slices.Clone(rules)
	for i, r := range all {
		if s, found := spelling[unquoted(r)]; found {
			all[i] = s
		}
	}
	return all
}

// planAll plans from the observed tables t to want. have is what we last installed, nil
// if that is not known. Differences between t and have are drift.
func (b *Backend) planAll(t *observed, have *installed, want *service.Snapshot) *plan {
	sums := t.sums()
	delete(sums, localnetMark) // is added and removed separately, see planLocalnet
	p := &plan{backend: b, from: &installed{}, fullSync: true, dormant: t.dormant}
	b.readLocalnetMark(p, t)
	foreign := b.foreign(t, want)
	p.next = &installed{snapshot: want, sums: sums}
	if want.Incomplete {
		p.next.retained = foreign
	}
	s := &stage{layout: b.layout, sums: sums}
	stay := map[id]bool{localnetMark: true}
	for port := range want.Ports(b.family) {
		chains := b.portChains(port, want.Node)
		for _, c := range chains {
			stay[c.id] = true
		}
		s.ensure(chains...)
		s.changes = append(s.changes, service.Change{New: port})
	}
	shared := b.shared(want.Node, want.Ports(b.family), p.next.retained)
	s.ensureShared(shared)
	for _, c := range shared {
		stay[c.id] = true
	}
	s.insertJumps, s.insertAfter, s.moves = t.missingJumps(b.jumps()), t.insertAfter, t.misplaced(b.jumps())
	surplus := t.extraJumps(stay, b.jumps())
	if have != nil {
		p.drift = drift(t, have, b.jumps(), surplus)
	}
	if !want.Incomplete {
		extraneous := t.extraneous(stay)
		s.deletes, s.deleteJumps = extraneous.deletes, append(extraneous.deleteJumps, surplus...)
		for _, w := range extraneous.writes {
			s.ensure(w)
		}
		p.removed = removedPorts(b.family, foreign)
	}
	p.stage = s
	return p
}

// foreign returns the entries that the tables hold and want does not contain.
func (b *Backend) foreign(t *observed, want *service.Snapshot) []entry {
	wanted := map[key]bool{}
	for p := range want.Ports(b.family) {
		for _, k := range b.keys(p, want.Node) {
			wanted[k] = true
		}
	}
	return slices.DeleteFunc(t.entries(), func(e entry) bool { return wanted[e.key] })
}

// removedPorts returns the frontends that disappear with entries.
func removedPorts(f service.Family, entries []entry) []*service.Port {
	var all []*service.Port
	for _, e := range entries {
		if e.port == 0 || e.check {
			continue
		}
		all = append(all, &service.Port{
			Name:   service.PortName{Protocol: e.proto},
			Family: f, Frontends: []service.Frontend{e.frontend()},
		})
	}
	return all
}

// drift describes how others changed the tables since we installed have. surplus are their jumps.
func drift(t *observed, have *installed, jumps, surplus []jump) []string {
	var r reconcile.DriftReport
	add := func(format string, args ...any) { r.Add(func() string { return fmt.Sprintf(format, args...) }) }
	for _, table := range t.dormant {
		add("altered: table %s is dormant, so no packet passes its rules", table)
	}
	now := t.sums()
	delete(now, localnetMark)
	for _, i := range slices.SortedFunc(maps.Keys(have.sums), id.compare) {
		held, found := now[i]
		switch {
		case !found:
			add("missing: chain %s of table %s", i.name, i.table)
		case held != have.sums[i]:
			add("altered: rules of chain %s of table %s", i.name, i.table)
		}
	}
	for _, i := range slices.SortedFunc(maps.Keys(now), id.compare) {
		if _, ours := have.sums[i]; !ours {
			add("foreign: chain %s of table %s", i.name, i.table)
		}
	}
	for _, j := range t.missingJumps(jumps) {
		add("missing: rule %q of chain %s of table %s", j.rule, j.from.name, j.from.table)
	}
	for _, m := range t.misplaced(jumps) {
		r.Add(m.String)
	}
	for _, j := range surplus {
		add("foreign: rule %q of chain %s of table %s", j.rule, j.from.name, j.from.table)
	}
	return r.Lines()
}

// allTables lists the tables in which a service proxy may have chains.
var allTables = []string{nat, filter, mangle}

// upstreamChainNames are chains of some version of kube-proxy that this proxy does not make.
var upstreamChainNames = map[string][]string{
	nat: {
		"KUBE-PROXY-CANARY", "KUBE-FIREWALL", "KUBE-LOAD-BALANCER", "KUBE-NODE-PORT",
	},
	filter: {
		"KUBE-PROXY-CANARY", "KUBE-NODE-PORT", "KUBE-SOURCE-RANGES-FIREWALL",
		"KUBE-IPVS-FILTER", "KUBE-IPVS-OUT-FILTER",
	},
	mangle: {"KUBE-PROXY-CANARY"},
}

// sharedWithKubelet are chains that kubelet made until 1.27. They alone prove no service proxy.
var sharedWithKubelet = []id{{nat, markChain}, {nat, postroutingChain}}

// describeLeftovers describes what of all a service proxy left, "" if nothing.
func describeLeftovers(all []id, of *Role) string {
	var left []id
	ours := of != nil
	for _, i := range all {
		if of.owns(i) {
			left = append(left, i)
			ours = ours || i.name == refuseChain
		}
	}
	if !slices.ContainsFunc(left, func(i id) bool { return !slices.Contains(sharedWithKubelet, i) }) {
		return ""
	}
	whose := "another service proxy"
	if ours {
		whose = "this proxy"
	}
	const some = 3
	slices.SortFunc(left, id.compare)
	var names []string
	for _, i := range left[:min(some, len(left))] {
		names = append(names, i.name)
	}
	text := strings.Join(names, ", ")
	if len(left) > some {
		text += ", ..."
	}
	return fmt.Sprintf("chains of %s: %d (%s)", whose, len(left), text)
}
