// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package beside

import (
	"cmp"
	"net/netip"
	"slices"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/ipset"
	"kubeproxy/platform/linux/iptables"
)

// element is an entry of a set, by the set's name without what all begin with.
type element struct {
	set string
	ipset.Entry
}

func (e element) compare(o element) int {
	return cmp.Or(cmp.Compare(e.set, o.set), e.Entry.Compare(o.Entry))
}

// LocalNode is a node with what Services take of its own addresses.
type LocalNode struct {
	node *service.Node
	// reserved are addresses and ports of the node that are not for NodePorts: a
	// Service has them as external ones.
	reserved map[ipset.Entry]bool
}

// NewLocalNode returns the site of s in one family.
func NewLocalNode(s *service.Snapshot, f service.Family) LocalNode {
	at := LocalNode{s.Node, map[ipset.Entry]bool{}}
	for p := range s.Ports(f) {
		for _, e := range at.reservedBy(p) {
			at.reserved[e] = true
		}
	}
	return at
}

// reservedBy returns what p, which may be nil, takes of the node's own addresses.
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

// elements calls add with what p has in sets. The same may come more than once.
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

// healthChecks returns where health checks of p are answered: where NodePorts are.
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

// addRestricted has only the sources of f be admitted at e.
func addRestricted(f *service.Frontend, e ipset.Entry, add func(element)) {
	add(element{iptables.SetRestricted, e})
	for _, s := range f.Sources {
		for _, half := range ipset.Halves(s) {
			e.Net = half
			add(element{iptables.SetSources, e})
		}
	}
}

// setsFor returns the sets that tell what is special about f, none if it is
// nothing.
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

// localPolicySets tells clients inside and outside apart. An external virtual server of p
// has one list of endpoints, see Direct; who needs the other one is led to the
// ClusterIP, which has that.
func localPolicySets(p *service.Port) []string {
	var in []string
	if len(p.Cluster) == 0 {
		in = append(in, iptables.SetInternalDropped)
	}
	if len(p.Local) == 0 {
		in = append(in, iptables.SetExternalDropped)
	}
	switch {
	case !hasClusterIP(p): // one list has to do for all
	case p.Internal == service.PolicyCluster && len(p.Cluster) > 0:
		in = append(in, iptables.SetInternalRedirect)
	case p.Internal == service.PolicyLocal && len(p.Local) > 0:
		in = append(in, iptables.SetExternalRedirect)
	}
	return in
}

// ServerEndpoints returns the endpoints that the virtual server for frontends of kind
// k has: with external policy Local those that its ClusterIP has not.
func ServerEndpoints(p *service.Port, k service.Kind) []service.Endpoint {
	switch {
	case !k.External() || p.External == service.PolicyCluster:
		return p.Endpoints(k)
	case PreservesClientIP(p, k):
		return p.Local
	}
	return p.Cluster
}

// PreservesClientIP reports that it is the virtual server for frontends of kind k that
// clients outside are led to that are not masqueraded, so that an endpoint
// elsewhere would answer them itself.
func PreservesClientIP(p *service.Port, k service.Kind) bool {
	byClusterIP := hasClusterIP(p) && p.Internal == service.PolicyLocal
	return p.External == service.PolicyLocal && k.External() != byClusterIP
}

func hasClusterIP(p *service.Port) bool {
	return slices.ContainsFunc(p.Frontends, func(f service.Frontend) bool { return f.Kind == service.ClusterIP })
}
