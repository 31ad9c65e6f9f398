// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"net/netip"
	"slices"

	"kubeproxy/common/service"
)

// endpointList selects one of a Port's two lists of endpoints.
type endpointList uint8

const (
	clusterList endpointList = iota
	localList
)

// slots assigns endpoints to slots, for each list of a Port. Slot i holds the endpoint
// with index slots[list][i]. A nil list means that slot i holds endpoint i, as in a new
// table.
type slots [2][]uint16

func endpointsOf(p *service.Port, w endpointList) []service.Endpoint {
	if w == localList {
		return p.Local
	}
	return p.Cluster
}

func (l layout) len(w endpointList) int { return len(endpointsOf(l.port, w)) }

// at returns the endpoint in slot i of list w.
func (l layout) at(w endpointList, i int) netip.AddrPort {
	if l.slots[w] != nil {
		i = int(l.slots[w][i])
	}
	return endpointsOf(l.port, w)[i].Addr
}

// targets returns the endpoints of w in slot order.
func (l layout) targets(w endpointList) []netip.AddrPort {
	t := make([]netip.AddrPort, l.len(w))
	for i := range t {
		t[i] = l.at(w, i)
	}
	return t
}

// next assigns the endpoints of p to slots with as few changes from l as possible. An
// endpoint in a slot below the new length keeps it. The others fill the free slots in
// order.
func (l layout) next(p *service.Port) layout {
	n := layout{port: p}
	for _, w := range []endpointList{clusterList, localList} {
		if l.port != nil && slices.Equal(endpointsOf(l.port, w), endpointsOf(p, w)) {
			n.slots[w] = l.slots[w]
			continue
		}
		var old []netip.AddrPort
		if l.port != nil {
			old = l.targets(w)
		}
		n.slots[w] = arrange(old, endpointsOf(p, w))
	}
	return n
}

// arrange returns the slots for want, which is sorted by address. old holds the previous
// endpoints in slot order.
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
func (s slots) identity() bool { return s[clusterList] == nil && s[localList] == nil }
