// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"fmt"
	"net/netip"
	"slices"
)

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

// tree builds the chains of entries in one table. The entries are all for addresses, all
// for NodePorts or all for health checks.
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

// branchMatch returns the match for the first depth bits of k and the name of their
// branch.
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
	case k.addr.IsValid():
		return id{k.table, l.root()}, l.branchPrefix()
	case k.check:
		return id{k.table, healthPortsChain}, healthPrefix
	}
	return id{k.table, nodePortsChain}, portPrefix
}

// buildTrees builds the trees of all entries. It returns the rules at their roots, by
// chain, and the branches.
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
