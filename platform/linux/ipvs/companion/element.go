// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package companion

import (
	"cmp"
	"net/netip"
	"slices"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/ipset"
	"kubeproxy/platform/linux/iptables"
)

// element is an entry of a set. set is the name without the common prefix.
type element struct {
	set string
	ipset.Entry
}

func (e element) compare(o element) int {
	return cmp.Or(cmp.Compare(e.set, o.set), e.Entry.Compare(o.Entry))
}

// LocalNode is a node with the reservations of its own addresses.
type LocalNode struct {
	node *service.Node
	// reserved are addresses and ports of the node that are not for NodePorts, because a
	// Service has them as external ones.
	reserved map[ipset.Entry]bool
}

// NewLocalNode returns the LocalNode of s in one family.
func NewLocalNode(s *service.Snapshot, f service.Family) LocalNode {
	at := LocalNode{s.Node, map[ipset.Entry]bool{}}
	for p := range s.Ports(f) {
		for _, e := range at.reservedBy(p) {
			at.reserved[e] = true
		}
	}
	return at
}

// reservedBy returns the node addresses and ports that p, which may be nil, reserves.
func (at LocalNode) reservedBy(p *service.Port) []ipset.Entry {
	if p == nil {
		return nil
	}
	var all []ipset.Entry
	for _, f := range p.Frontends {
		if f.Kind != service.NodePort && at.hasAddr(f.Addr) {
			all = append(all, ipset.Entry{Addr: f.Addr, Protocol: p.Name.Protocol, Port: f.Port})
		}
	}
	return all
}

func (at LocalNode) hasAddr(a netip.Addr) bool { return slices.Contains(at.node.Addrs, a) }

// entries returns the addresses and ports of a frontend.
func (at LocalNode) entries(p *service.Port, f *service.Frontend) []ipset.Entry {
	var all []ipset.Entry
	for _, a := range iptables.FrontendAddrs(p, f, at.node) {
		e := ipset.Entry{Addr: a.Addr(), Protocol: p.Name.Protocol, Port: a.Port()}
		if f.Kind != service.NodePort || !at.reserved[e] {
			all = append(all, e)
		}
	}
	return all
}

// elements calls add with each set element of p. The same element may occur more than
// once.
func (at LocalNode) elements(p *service.Port, add func(element)) {
	for _, e := range at.healthChecks(p) {
		add(e)
	}
	for i := range p.Frontends {
		f := &p.Frontends[i]
		if f.Kind == service.ClusterIP {
			add(element{iptables.SetClusterIPs, ipset.Entry{Addr: f.Addr}})
		}
		if f.Kind != service.NodePort && !at.hasAddr(f.Addr) {
			add(element{iptables.SetVirtualIPs, ipset.Entry{Addr: f.Addr}})
		}
		for _, e := range at.entries(p, f) {
			for _, set := range setsFor(p, f) {
				add(element{set, e})
			}
			if f.Sources != nil {
				addRestricted(f, e, add)
			}
		}
	}
}

// healthChecks returns the elements for health checks of p. They are answered where
// NodePorts are.
func (at LocalNode) healthChecks(p *service.Port) []element {
	if p.HealthCheck == 0 {
		return nil
	}
	var all []element
	for _, a := range iptables.FrontendAddrs(p, &service.Frontend{Kind: service.NodePort, Port: p.HealthCheck}, at.node) {
		e := ipset.Entry{Addr: a.Addr(), Protocol: service.TCP, Port: a.Port()}
		all = append(all, element{iptables.SetHealthChecks, e})
	}
	return all
}

// addRestricted adds the elements that admit only the sources of f at e.
func addRestricted(f *service.Frontend, e ipset.Entry, add func(element)) {
	add(element{iptables.SetRestricted, e})
	for _, s := range f.Sources {
		for _, half := range ipset.Halves(s) {
			e.Net = half
			add(element{iptables.SetSources, e})
		}
	}
}

// setsFor returns the sets that f belongs to, none if it needs no special treatment.
func setsFor(p *service.Port, f *service.Frontend) []string {
	switch {
	case !p.HasEndpoints():
		return []string{iptables.SetRefused}
	case f.Kind.External() && p.External == service.PolicyLocal:
		return append(localPolicySets(p), iptables.SetLocal)
	case len(p.Endpoints(f.Kind)) == 0:
		return []string{iptables.SetDropped}
	case f.Kind.External():
		return []string{iptables.SetExternal}
	}
	return nil
}

// localPolicySets returns the sets for external policy Local, which distinguish internal
// and external clients. An external virtual server of p has one list of endpoints, see
// PreservesClientIP. Clients that need the other list are redirected to the ClusterIP,
// which has it.
func localPolicySets(p *service.Port) []string {
	var in []string
	if len(p.Cluster) == 0 {
		in = append(in, iptables.SetInternalDropped)
	}
	if len(p.Local) == 0 {
		in = append(in, iptables.SetExternalDropped)
	}
	switch {
	case !hasClusterIP(p): // all clients use the same list
	case p.Internal == service.PolicyCluster && len(p.Cluster) > 0:
		in = append(in, iptables.SetInternalRedirect)
	case p.Internal == service.PolicyLocal && len(p.Local) > 0:
		in = append(in, iptables.SetExternalRedirect)
	}
	return in
}

// ServerEndpoints returns the endpoints of the virtual server for frontends of kind k.
// With external policy Local these are the endpoints that its ClusterIP does not have.
func ServerEndpoints(p *service.Port, k service.Kind) []service.Endpoint {
	switch {
	case !k.External() || p.External == service.PolicyCluster:
		return p.Endpoints(k)
	case PreservesClientIP(p, k):
		return p.Local
	}
	return p.Cluster
}

// PreservesClientIP reports whether the virtual server for frontends of kind k receives
// external clients that are not masqueraded. A remote endpoint would reply to them
// directly.
func PreservesClientIP(p *service.Port, k service.Kind) bool {
	byClusterIP := hasClusterIP(p) && p.Internal == service.PolicyLocal
	return p.External == service.PolicyLocal && k.External() != byClusterIP
}

func hasClusterIP(p *service.Port) bool {
	return slices.ContainsFunc(p.Frontends, func(f service.Frontend) bool { return f.Kind == service.ClusterIP })
}
