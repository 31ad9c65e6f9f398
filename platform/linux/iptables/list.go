// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"cmp"
	"fmt"
	"hash/crc32"
	"math"
	"net/netip"
	"slices"
	"time"

	"kubeproxy/common/service"
)

// A chain with many endpoints would be written whole for each one that comes or goes:
// one endpoint changes the probability of every rule before it. And a connection would
// be compared with half of the rules. So the endpoints of such a list are split into
// branches by four bits of their checksums, and a branch that is still too large is split
// again. The shape depends only on the endpoints. One of them changes one branch, and the
// rules that lead there.
const (
	listSize = 64 // a list or branch with more endpoints is split
	listBits = 4
	// A branch with this part of listSize, or less, gets no chain of its own.
	listInline = 32
)

// list builds the chains that hold the endpoints of a port for one policy.
type list struct {
	layout
	port   *service.Port
	prefix string  // of the names of the chains
	chains []chain // the branches
	same   []id    // branches that are the same as before, which are left out
	known  bool    // what was before is known
}

// member is an endpoint of a list.
type member struct {
	addr netip.AddrPort
	sum  uint32
}

// listChains returns the chain that sends a connection to one of the endpoints of p for
// policy, and its branches. All endpoints have the same probability. With session
// affinity, a client returns to its previous endpoint.
//
// Branches that are the same as in old, which may be nil, are left out with all below
// them, and are returned as same.
func (l layout) listChains(p, old *service.Port, policy service.Policy) (chains []chain, same []id) {
	t := &list{layout: l, port: p, prefix: clusterPrefix}
	if policy == service.PolicyLocal {
		t.prefix = localPrefix
	}
	members := t.members(listed(p, policy))
	var was []member
	if t.known = old != nil && old.Affinity == p.Affinity && UsesPolicy(old, policy); t.known {
		was = t.members(listed(old, policy))
	}
	rules := l.listMarks(p, policy)
	if p.Affinity > 0 {
		rules = append(rules, t.returning(members, was, 0, "")...)
	}
	rules = append(rules, t.drawing(members, was, 0, "")...)
	return append([]chain{{id{nat, portChainName(t.prefix, p)}, rules}}, t.chains...), t.same
}

// listed returns the endpoints of p for policy.
func listed(p *service.Port, policy service.Policy) []service.Endpoint {
	if policy == service.PolicyLocal {
		return p.Local
	}
	return p.Cluster
}

// listMarks are the rules at the head of a list.
func (l layout) listMarks(p *service.Port, policy service.Policy) []string {
	var rules []string
	for i := range p.Frontends {
		if f := &p.Frontends[i]; f.Kind == service.ClusterIP && p.Internal == policy && !l.relays() {
			rules = append(rules, "-d "+hostPrefix(f.Addr)+" -j "+markClusterChain)
		}
	}
	if l.bypasses() {
		rules = append(rules, "-j "+markChain)
	}
	return rules
}

// listSize is how many endpoints a chain may have.
func (l layout) listSize() int { return cmp.Or(l.options.ListSize, listSize) }

// members returns endpoints in the order of the tree. A list that is not split keeps its
// order, and so do endpoints with the same checksum.
func (t *list) members(endpoints []service.Endpoint) []member {
	all := make([]member, len(endpoints))
	if len(endpoints) <= t.listSize() {
		for i, e := range endpoints {
			all[i].addr = e.Addr
		}
		return all
	}
	keys := make([]uint64, len(endpoints)) // the checksum, then the position
	for i, e := range endpoints {
		keys[i] = uint64(checksum(e.Addr))<<32 | uint64(i)
	}
	slices.Sort(keys)
	for i, k := range keys {
		all[i] = member{endpoints[uint32(k)].Addr, uint32(k >> 32)}
	}
	return all
}

// checksum spreads endpoints with similar addresses.
func checksum(a netip.AddrPort) uint32 {
	ip := a.Addr().As16()
	return crc32.ChecksumIEEE(append(ip[:], byte(a.Port()>>8), byte(a.Port())))
}

// isLeaf reports whether members need no branches below depth, in bits.
func (t *list) isLeaf(members []member, depth int) bool {
	return len(members) <= t.listSize() || depth == 32
}

// branch is a part of a list.
type branch struct {
	members, was []member // now and before
	path         string   // from the root, a digit for each level
}

// branches splits members by the bits that follow depth.
func branches(members, was []member, depth int, path string) []branch {
	digit := func(m member) uint32 { return m.sum >> (32 - listBits - depth) & (1<<listBits - 1) }
	// cut cuts off the members with digit n.
	cut := func(all *[]member, n uint32) []member {
		end := 0
		for end < len(*all) && digit((*all)[end]) == n {
			end++
		}
		part := (*all)[:end]
		*all = (*all)[end:]
		return part
	}
	var all []branch
	for n := range uint32(1 << listBits) {
		old := cut(&was, n)
		if part := cut(&members, n); len(part) > 0 {
			all = append(all, branch{part, old, fmt.Sprintf("%s%x", path, n)})
		}
	}
	return all
}

// stays reports whether the chains of b are the same as before.
func (t *list) stays(b branch) bool { return t.known && slices.Equal(b.members, b.was) }

// drawing returns the rules that send a connection to one of members, and adds the
// chains below. The members were there before.
func (t *list) drawing(members, was []member, depth int, path string) []string {
	if t.isLeaf(members, depth) {
		return t.draw(nil, members, len(members))
	}
	var rules []string
	left := len(members)
	for _, b := range branches(members, t.split(was, depth), depth, path) {
		if n := len(b.members); n <= t.listSize()/listInline {
			rules = t.draw(rules, b.members, left)
		} else {
			name := t.add("/", b, func() []string { return t.drawing(b.members, b.was, depth+listBits, b.path) })
			rules = append(rules, randomMatch(n, left)+"-j "+name)
		}
		left -= len(b.members)
	}
	return rules
}

// split returns was if it had branches, too.
func (t *list) split(was []member, depth int) []member {
	if t.isLeaf(was, depth) {
		return nil
	}
	return was
}

// draw appends rules for members, which are among the left ones that may still be drawn.
func (t *list) draw(rules []string, members []member, left int) []string {
	for i, m := range members {
		match := randomMatch(1, left-i)
		if t.port.Affinity > 0 {
			match += recentMatch(t.port, m.addr, "--set")
		}
		rules = append(rules, dnat(t.port, m.addr, match))
	}
	return rules
}

// returning returns the rules that send a client to the one of members that it had
// before, and adds the chains below.
func (t *list) returning(members, was []member, depth int, path string) []string {
	var rules []string
	if t.isLeaf(members, depth) {
		again := fmt.Sprintf("--update --seconds %d --reap", t.port.Affinity/time.Second)
		for _, m := range members {
			rules = append(rules, dnat(t.port, m.addr, recentMatch(t.port, m.addr, again)))
		}
		return rules
	}
	for _, b := range branches(members, t.split(was, depth), depth, path) {
		below := func() []string { return t.returning(b.members, b.was, depth+listBits, b.path) }
		if len(b.members) <= t.listSize()/listInline {
			rules = append(rules, below()...)
		} else {
			rules = append(rules, "-j "+t.add("/again/", b, below))
		}
	}
	return rules
}

// add adds the chain of a branch, and returns its name. kube-proxy removes chains with
// such names, so the way back to it leaves none.
func (t *list) add(kind string, b branch, rules func() []string) string {
	i := id{nat, hashedName(t.prefix, t.port.Name.String(), t.port.Name.Protocol.String(), kind+b.path)}
	if t.stays(b) {
		t.same = append(t.same, i)
	} else {
		t.chains = append(t.chains, chain{i, rules()})
	}
	return i.name
}

func dnat(p *service.Port, to netip.AddrPort, match string) string {
	return "-p " + p.Name.Protocol.String() + " " + match + "-j DNAT --to-destination " + to.String()
}

// randomMatch matches n of all connections. The kernel compares probabilities in units
// of 2^-31 (kernel: net/netfilter/xt_statistic.c, statistic_mt).
func randomMatch(n, all int) string {
	if n == all {
		return ""
	}
	const one = 1 << 31
	return fmt.Sprintf("-m statistic --mode random --probability %.11f ", math.Round(one*float64(n)/float64(all))/one)
}

// recentMatch applies action to the list of clients that use an endpoint. The list exists while a
// rule refers to it (kernel: net/netfilter/xt_recent.c, recent_mt_destroy).
func recentMatch(p *service.Port, to netip.AddrPort, action string) string {
	list := hashedName(recentPrefix, p.Name.String(), p.Name.Protocol.String(), to.String())
	return "-m recent " + action + " --name " + list + " --mask " + fullMask(p.Family) + " --rsource "
}

func fullMask(f service.Family) string {
	if f == service.IPv6 {
		return "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"
	}
	return "255.255.255.255"
}
