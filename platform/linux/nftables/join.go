// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"net/netip"
	"slices"

	"kubeproxy/common/service"
)

// frontendKey is what elements of shared sets have in their keys.
type frontendKey struct {
	addr     netip.AddrPort // without an address for a NodePort
	protocol service.Protocol
}

// frontendsOnlyIn returns what p, which may be nil, is reached by and q is not.
func frontendsOnlyIn(p, q *service.Port) []frontendKey {
	if p == nil {
		return nil
	}
	var all []frontendKey
	for _, f := range p.Frontends {
		if q == nil || !slices.ContainsFunc(q.Frontends, func(g service.Frontend) bool { return g.Kind == f.Kind && g.Addr == f.Addr && g.Port == f.Port }) {
			all = append(all, frontendKey{netip.AddrPortFrom(f.Addr, f.Port), p.Name.Protocol})
		}
	}
	return all
}

// joinMoves puts units next to each other between which a frontend passes, as when
// somebody renames a port: the one removes the very elements that the other adds,
// which comes out right in one transaction and in no other way.
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
	joinedTo := map[int]int{} // a unit goes with one before it
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

// splitUnits splits units where it may, nil if it may not.
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
