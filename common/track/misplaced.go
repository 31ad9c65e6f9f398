// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package track

import (
	"net/netip"
	"slices"

	"kubeproxy/common/service"
)

// misplaced finds addresses of endpoints that are ClusterIPs, or in a ServiceCIDR. An
// endpoint can be neither, see
// https://kubernetes.io/docs/concepts/services-networking/service/#services-without-selectors.
// Only addresses near ClusterIPs are kept, in claims.endpoints: in most clusters none.
type misplaced struct {
	blocks map[netip.Prefix]bool // with a ClusterIP now or earlier
	ranges []netip.Prefix        // of ServiceCIDRs
	listed []netip.Addr          // in ranges, sorted
	stale  bool                  // ranges have changed, or a block is new: all slices are read again
}

// blockBits is the length of a block. A cluster has few, so all slices are seldom read.
var blockBits = [...]int{service.IPv4: 16, service.IPv6: 64}

func blockOf(a netip.Addr) netip.Prefix {
	p, _ := a.Prefix(blockBits[service.FamilyOf(a)]) // never too long
	return p
}

// watch notes that a is a ClusterIP.
func (m *misplaced) watch(a netip.Addr) {
	if block := blockOf(a); !m.blocks[block] {
		m.blocks[block], m.stale = true, true
	}
}

func (m *misplaced) inRange(a netip.Addr) bool {
	return slices.ContainsFunc(m.ranges, func(p netip.Prefix) bool { return p.Contains(a) })
}

// in returns the addresses of endpoints in p, one of ranges.
func (m *misplaced) in(p netip.Prefix) []netip.Addr {
	first, _ := slices.BinarySearchFunc(m.listed, p.Masked().Addr(), netip.Addr.Compare)
	rest := m.listed[first:]
	n, _ := slices.BinarySearchFunc(rest, p, func(a netip.Addr, p netip.Prefix) int {
		if p.Contains(a) {
			return -1
		}
		return 1
	})
	return rest[:n]
}

// count adds the addresses of s.
func (t *Tracker) count(s *slice) {
	m := &t.misplaced
	for i := range s.endpoints {
		a := s.addr(i)
		ranged := m.inRange(a)
		if !ranged && !m.blocks[blockOf(a)] {
			continue
		}
		if k, found := slices.BinarySearchFunc(m.listed, a, netip.Addr.Compare); ranged && !found && !m.stale {
			m.listed = slices.Insert(m.listed, k, a)
		}
		t.claims.endpoints.add(clusterIPKey(a), s.owner)
		s.owner.misplaced++
	}
}

// uncount removes the addresses of s.
func (t *Tracker) uncount(s *slice) {
	m := &t.misplaced
	for i := range s.endpoints {
		a := s.addr(i)
		key := clusterIPKey(a)
		if t.claims.endpoints[key][s.owner] == 0 {
			continue
		}
		t.claims.endpoints.remove(key, s.owner)
		s.owner.misplaced--
		if k, found := slices.BinarySearchFunc(m.listed, a, netip.Addr.Compare); found && t.claims.endpoints[key] == nil {
			m.listed = slices.Delete(m.listed, k, k+1)
		}
	}
}

// recount reads all slices.
func (t *Tracker) recount() {
	m := &t.misplaced
	m.ranges, m.listed = nil, nil
	for _, r := range t.cidrs {
		m.ranges = append(m.ranges, r.prefixes...)
	}
	t.claims.endpoints = dependents{}
	for _, s := range t.services {
		s.misplaced = 0
	}
	for _, s := range t.slices {
		t.count(s)
	}
	m.stale = false
	for key, owners := range t.claims.endpoints {
		if a := key.addr(); m.inRange(a) {
			m.listed = append(m.listed, a)
		}
		if t.claims.holder[key].serviceState == nil {
			continue
		}
		for s := range owners {
			t.markDirty(s)
		}
	}
	slices.SortFunc(m.listed, netip.Addr.Compare)
}

// clusterIPs returns notes about endpoints that are ClusterIPs.
func (r *resolver) clusterIPs() []note {
	var notes notes
	if r.owner.misplaced == 0 || r.owner.want == nil {
		return nil
	}
	for _, s := range r.owner.slices {
		for i := range s.endpoints {
			a := s.addr(i)
			if holder := r.tracker.claims.holder[clusterIPKey(a)]; holder.serviceState != nil {
				notes.add("endpointslice "+s.name+" endpoints",
					"%q is the ClusterIP of service %s, and is not translated a second time; want the address of a pod", a, holder.name)
			}
		}
	}
	return notes.all()
}
