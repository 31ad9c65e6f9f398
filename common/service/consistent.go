// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package service

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"
)

// Consistent says which connections get an endpoint that follows from the address and port of the
// client, so that it is the same on every node with the same endpoints.
type Consistent struct {
	// Slots is the size of the table, 0 if endpoints are drawn at random.
	Slots uint16
	// ClusterIPs says that ClusterIPs select so, too, not external addresses and NodePorts alone.
	ClusterIPs bool
}

// The bounds of Consistent.Slots. A list gets its SlotShare at least, or is drawn from at random.
const (
	MinSlots, DefaultSlots, MaxSlots = 101, 1009, 65535

	SlotShare = 10
)

// SelectsConsistently reports whether frontends of kind k select so. Session affinity comes before:
// then the endpoint of a new client follows from its address alone.
func (p *Port) SelectsConsistently(k Kind) bool {
	return p.Affinity == 0 && p.Consistent.concerns(k)
}

func (c Consistent) concerns(k Kind) bool { return c.Slots > 0 && (k.External() || c.ClusterIPs) }

// AsksForConsistent reports whether any frontend is to select so, or is for new clients.
func (p *Port) AsksForConsistent() bool {
	return slices.ContainsFunc(p.Frontends, func(f Frontend) bool { return p.Consistent.concerns(f.Kind) })
}

// Direct is what a Port with direct return has beside others.
type Direct struct {
	Nodes []string // of Port.Cluster, in its order; empty where a node is not known
}

// LeadsDirectly reports whether the node by which a packet to f comes in forwards it as it is to the node
// of its endpoint, which answers the client itself. Then the client's address stays, and any node may forward the
// next packet. The addresses of NodePorts are those of one node, so they gain nothing.
func (p *Port) LeadsDirectly(f Frontend) bool {
	return p.Direct != nil && (f.Kind == LoadBalancerIP || f.Kind == ExternalIP)
}

// DirectNodes returns the nodes of the endpoints of ports with direct return, sorted.
func DirectNodes(s *Snapshot) []string {
	var all []string
	for _, f := range Families {
		for p := range s.Ports(f) {
			if p.Direct != nil {
				all = append(all, p.Direct.Nodes...)
			}
		}
	}
	slices.Sort(all)
	return slices.DeleteFunc(slices.Compact(all), func(name string) bool { return name == "" })
}

// Table returns the index of an endpoint for each slot. Each slot wants the endpoints in an order of
// its own, which follows from their addresses and ports (rendezvous hashing), and gets the first
// that has fewer slots than its share and a hundredth of the table, or its share and a quarter. So if
// an endpoint leaves, few slots change apart from its own. In a table that is filled as in
// Maglev (Eisenbud et al., NSDI 2016, section 3.4) they would be 2 to 5 % of so few slots. The slot
// that wants an endpoint most comes first, so that each has one.
func Table(endpoints []Endpoint, slots uint16) []uint16 {
	n, size := len(endpoints), int(slots)
	if n == 0 {
		return nil
	}
	seeds := make([]uint64, n)
	for i, e := range endpoints {
		addr := e.Addr.Addr().As16()
		sum := sha256.Sum256(binary.BigEndian.AppendUint16(addr[:], e.Addr.Port()))
		seeds[i] = binary.BigEndian.Uint64(sum[:])
	}
	most := (size+n-1)/n + min(size/100, size/n/4)
	table, load, taken := make([]uint16, size), make([]int, n), make([]bool, size)
	take := func(slot, endpoint int) {
		table[slot], taken[slot] = uint16(endpoint), true
		load[endpoint]++
	}
	for i, seed := range seeds {
		take(best(size, func(slot int) (uint64, bool) { return weight(seed, slot), !taken[slot] }), i)
	}
	for slot := range size {
		if !taken[slot] {
			take(slot, best(n, func(i int) (uint64, bool) { return weight(seeds[i], slot), load[i] < most }))
		}
	}
	return table
}

// best returns which of n has the greatest weight.
func best(n int, of func(int) (weight uint64, free bool)) (at int) {
	greatest := uint64(0)
	for i := range n {
		if w, free := of(i); free && w >= greatest {
			at, greatest = i, w
		}
	}
	return at
}

// weight mixes the bits of both (the finalizer of SplitMix64, https://doi.org/10.1145/2714064.2660195).
func weight(seed uint64, slot int) uint64 {
	x := seed + uint64(slot)*0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
