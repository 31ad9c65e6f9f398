// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"fmt"
	"net/netip"
	"slices"
)

// A packet finds its entry in a tree of chains, so that the number of rules
// it is held against grows with the logarithm of the number of entries. The
// shape of a tree follows from its entries alone, and one that comes or goes
// changes few chains: where more than leafSize rules would stand, they are
// divided by the four bits behind what all their keys have in common.
const (
	leafSize   = 16
	branchBits = 4
	inlineSize = 2 // what is not worth a chain of its own
)

// bits is a key as a string of bits, an address or a NodePort.
type bits []byte

// bits returns the bits that decide where an entry stands. A NodePort begins
// with its protocol, so that nothing but the first branch tells protocols
// apart.
func (k key) bits() bits {
	if k.addr.IsValid() {
		return k.addr.AsSlice()
	}
	return bits{byte(k.proto), byte(k.port >> 8), byte(k.port)}
}

// nibble returns the four bits that begin at bit n.
func (b bits) nibble(n int) byte { return b[n/8] >> (4 - n%8) & 15 }

// commonBits returns how many bits a and b begin with alike, in steps of four.
func commonBits(a, b bits) int {
	n := 0
	for n < 8*len(a) && a.nibble(n) == b.nibble(n) {
		n += branchBits
	}
	return n
}

// tree makes chains of entries in one table that are all for addresses, all for
// NodePorts or all for health checks.
type tree struct {
	table  string
	prefix string // of the names of branches
	chains []chain
}

// build returns the rules that lead on to the sorted entries, and adds the
// chains below.
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

// branch returns the rule that leads to entries, which have the first depth
// bits in common, or their own rules if they are few.
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

// branchMatch returns how to match the first depth bits of k and what their branch
// is called.
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

// rootOf returns the chain where the tree of k begins, and how the names of its
// branches begin.
func (l layout) rootOf(k key) (id, string) {
	switch {
	case k.addr.IsValid():
		return id{k.table, l.root()}, l.branchPrefix()
	case k.check:
		return id{k.table, healthPortsChain}, healthPrefix
	}
	return id{k.table, nodePortsChain}, portPrefix
}

// buildTrees makes the trees of all entries. It returns the rules at their roots,
// by chain, and the branches.
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
