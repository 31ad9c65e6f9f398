// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"net/netip"
	"slices"

	"kubeproxy/common/service"
)

// frontendKey is the part of an element's key that identifies a frontend.
type frontendKey struct {
	addr     netip.AddrPort // a NodePort has no address
	protocol service.Protocol
}

// frontendsOnlyIn returns the frontends of p, which may be nil, that q does not have.
func frontendsOnlyIn(p, q *service.Port) []frontendKey {
	if p == nil {
		return nil
	}
	var all []frontendKey
	for _, f := range p.Frontends {
		if q == nil || !slices.ContainsFunc(q.Frontends, f.SameAddress) {
			all = append(all, frontendKey{netip.AddrPortFrom(f.Addr, f.Port), p.Name.Protocol})
		}
	}
	return all
}

// joinMoves orders units so that those between which a frontend moves follow each other
// and share a transaction. A frontend moves, for example, when a Service port is renamed.
// Then one unit deletes the element that the other adds, which only works in one
// transaction.
func joinMoves(units []unit) []unit {
	losing := map[frontendKey]int{}
	for i, u := range units {
		if u.ops == nil {
			for _, d := range frontendsOnlyIn(u.from.port, u.to.port) {
				losing[d] = i
			}
		}
	}
	if len(losing) == 0 || len(units) < 2 {
		return units
	}
	joinedTo := map[int]int{} // unit -> an earlier unit that it shares a transaction with
	root := func(i int) int {
		for r, found := joinedTo[i]; found; r, found = joinedTo[i] {
			i = r
		}
		return i
	}
	for j, u := range units {
		if u.ops != nil {
			continue
		}
		for _, d := range frontendsOnlyIn(u.to.port, u.from.port) {
			if i, found := losing[d]; found && root(i) != root(j) {
				joinedTo[max(root(i), root(j))] = min(root(i), root(j))
			}
		}
	}
	if len(joinedTo) == 0 {
		return units
	}
	members := map[int][]unit{}
	for i, u := range units {
		if _, found := joinedTo[i]; found {
			u.joined = true
			members[root(i)] = append(members[root(i)], u)
		}
	}
	var all []unit
	for i, u := range units {
		if _, found := joinedTo[i]; !found {
			all = append(append(all, u), members[i]...)
		}
	}
	return all
}

// splitUnits splits units into two parts, close to the middle. It returns nil if they
// must stay together.
func splitUnits(units []unit) [][]unit {
	middle := len(units) / 2
	for d := range len(units) {
		for _, at := range []int{middle - d, middle + d} {
			if at > 0 && at < len(units) && !units[at].joined {
				return [][]unit{units[:at], units[at:]}
			}
		}
	}
	return nil
}
