// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package conntrack removes flows that connection tracking keeps on a wrong
// way: a flow is translated when its first packet passes, and later packets
// follow that even after the endpoint or the whole Service has left. Of TCP
// and SCTP these are only the entries whose first packet nobody has answered:
// the client sends it again and again, to where the first one went. Established
// connections end by themselves and are not touched.
//
// What is stale is decided from the kernel's table, not from remembered
// events, so a missed round does not matter. Only entries to a Service's
// frontends are ever deleted, one by one; nothing is flushed. Programming the
// rules that new flows follow is left to the backends.
package conntrack

import (
	"net/netip"
	"slices"

	"kubeproxy/common/service"
)

// Rule says where the flows to one frontend may be answered from.
type Rule struct {
	Family   service.Family
	Protocol service.Protocol
	Addr     netip.Addr // invalid for a NodePort
	Port     uint16
	// Endpoints are the places that may answer, sorted. Where there are none
	// every flow is stale.
	Endpoints []netip.AddrPort
	// Deleted means that the frontend is no more. Then only translated flows
	// are stale: the others never were a Service's.
	Deleted bool
}

// frontend returns what r is about, with an invalid address for a NodePort.
func (r Rule) frontend() netip.AddrPort { return netip.AddrPortFrom(r.Addr, r.Port) }

// All returns a rule for each frontend of s in family f.
func All(s *service.Snapshot, f service.Family) []Rule {
	var all []Rule
	for p := range s.Ports(f) {
		all = append(all, rules(p)...)
	}
	return all
}

// Between returns the rules for what changed in family f from one snapshot to
// the next. A nil from makes it All; so does a change of the addresses that answer
// NodePorts, together with what left.
func Between(from, to *service.Snapshot, f service.Family) []Rule {
	if from == nil {
		return All(to, f)
	}
	var between []Rule
	if !sameNodePorts(from.Node, to.Node) {
		between = All(to, f)
	}
	for c := range service.Diff(from, to, f) {
		between = append(between, Changes(c.Old, c.New)...)
	}
	return between
}

func sameNodePorts(a, b *service.Node) bool {
	return a == b || slices.Equal(a.NodePorts, b.NodePorts) && slices.Equal(a.Addrs, b.Addrs)
}

// Changes returns the rules for the frontends whose flows may have become
// stale between old and new, either of which may be nil: one that left, one
// that came, one that lost an endpoint and one that got its first.
func Changes(old, new *service.Port) []Rule {
	if differOnlyInCluster(old, new) && len(old.Cluster) > 0 {
		if len(removedEndpoints(old.Cluster, new.Cluster)) == 0 {
			return nil
		}
		return rules(new) // all of its frontends lead to the same endpoints
	}
	return compareRules(rules(old), rules(new))
}

// compareRules compares frontend by frontend.
func compareRules(before, after []Rule) []Rule {
	var changed []Rule
	for _, r := range after {
		i := slices.IndexFunc(before, func(b Rule) bool { return b.frontend() == r.frontend() })
		if i < 0 || invalidates(before[i].Endpoints, r.Endpoints) {
			changed = append(changed, r)
		}
	}
	for _, r := range before {
		if !slices.ContainsFunc(after, func(a Rule) bool { return a.frontend() == r.frontend() }) {
			r.Endpoints, r.Deleted = nil, true
			changed = append(changed, r)
		}
	}
	return changed
}

// differOnlyInCluster reports that all frontends of both Ports are the same, and lead to
// nothing but the endpoints in Cluster.
func differOnlyInCluster(a, b *service.Port) bool {
	return usesOnlyCluster(a) && usesOnlyCluster(b) && a.Family == b.Family && a.Name.Protocol == b.Name.Protocol &&
		slices.EqualFunc(a.Frontends, b.Frontends, func(f, g service.Frontend) bool {
			return f.Kind == g.Kind && f.Addr == g.Addr && f.Port == g.Port
		})
}

func usesOnlyCluster(p *service.Port) bool {
	return p != nil && len(p.Draining) == 0 && p.Internal == service.PolicyCluster && p.External == service.PolicyCluster
}

// removedEndpoints returns the endpoints in before whose addresses are not in after. Both are
// sorted.
func removedEndpoints(before, after []service.Endpoint) []service.Endpoint {
	removed, added := service.TrimCommon(before, after)
	return slices.DeleteFunc(slices.Clone(removed), func(e service.Endpoint) bool {
		_, found := slices.BinarySearchFunc(added, e, func(a, b service.Endpoint) int { return a.Addr.Compare(b.Addr) })
		return found
	})
}

// invalidates reports that a flow which was fine with the endpoints before may
// not be so after.
func invalidates(before, after []netip.AddrPort) bool {
	if len(before) == 0 {
		return len(after) > 0
	}
	removed, _ := service.TrimCommon(before, after)
	return slices.ContainsFunc(removed, func(e netip.AddrPort) bool { return !contains(after, e) })
}

// rules returns one rule per frontend of p, in the order of the frontends.
// There are none for nil.
func rules(p *service.Port) []Rule {
	if p == nil {
		return nil
	}
	internal, external := allowedEndpoints(p)
	var all []Rule
	for _, f := range p.Frontends {
		r := Rule{Family: p.Family, Protocol: p.Name.Protocol, Addr: f.Addr, Port: f.Port, Endpoints: internal}
		if f.Kind.External() {
			r.Endpoints = external
		}
		i := slices.IndexFunc(all, func(a Rule) bool { return a.frontend() == r.frontend() })
		if i < 0 {
			all = append(all, r)
		} else { // one address of two kinds
			all[i].Endpoints = union(all[i].Endpoints, r.Endpoints)
		}
	}
	return all
}

// allowedEndpoints returns where flows to the ClusterIP and to the external frontends
// of p may be answered from. Pods and the node itself reach an external
// frontend with policy Local through the Cluster endpoints, so these count too;
// so do endpoints that serve on without getting new flows.
func allowedEndpoints(p *service.Port) (internal, external []netip.AddrPort) {
	cluster := union(addrs(p.Cluster), addrs(p.Draining))
	if p.Internal == service.PolicyCluster && p.External == service.PolicyCluster {
		return cluster, cluster
	}
	internal, external = cluster, cluster
	local := union(addrs(p.Local), addrs(localEndpoints(p.Draining)))
	if p.Internal == service.PolicyLocal {
		internal = local
	}
	if p.External == service.PolicyLocal {
		external = union(local, cluster)
	}
	return internal, external
}

func localEndpoints(endpoints []service.Endpoint) []service.Endpoint {
	var ones []service.Endpoint
	for _, e := range endpoints {
		if e.Local {
			ones = append(ones, e)
		}
	}
	return ones
}

func addrs(endpoints []service.Endpoint) []netip.AddrPort {
	sorted := make([]netip.AddrPort, len(endpoints))
	for i, e := range endpoints {
		sorted[i] = e.Addr
	}
	return sorted
}

// union returns what is in a or b, which are sorted and stay as they are.
func union(a, b []netip.AddrPort) []netip.AddrPort {
	both := slices.Concat(a, b)
	slices.SortFunc(both, netip.AddrPort.Compare)
	return slices.Compact(both)
}

func contains(sorted []netip.AddrPort, e netip.AddrPort) bool {
	_, found := slices.BinarySearchFunc(sorted, e, netip.AddrPort.Compare)
	return found
}
