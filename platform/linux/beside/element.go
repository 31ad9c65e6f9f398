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

// Site is a node with what Services take of its own addresses.
type Site struct {
	node *service.Node
	// taken are addresses and ports of the node that are not for NodePorts: a
	// Service has them as external ones.
	taken map[ipset.Entry]bool
}

// NewSite returns the site of s in one family.
func NewSite(s *service.Snapshot, f service.Family) Site {
	at := Site{s.Node, map[ipset.Entry]bool{}}
	for p := range s.Ports(f) {
		for _, e := range at.takes(p) {
			at.taken[e] = true
		}
	}
	return at
}

// takes returns what p, which may be nil, takes of the node's own addresses.
func (at Site) takes(p *service.Port) []ipset.Entry {
	if p == nil {
		return nil
	}
	var all []ipset.Entry
	for _, f := range p.Frontends {
		if f.Kind != service.NodePort && at.own(f.Addr) {
			all = append(all, ipset.Entry{Addr: f.Addr, Protocol: p.Name.Protocol, Port: f.Port})
		}
	}
	return all
}

func (at Site) own(a netip.Addr) bool { return slices.Contains(at.node.Addrs, a) }

// fronts returns the addresses and ports of a frontend.
func (at Site) fronts(p *service.Port, f *service.Frontend) []ipset.Entry {
	var all []ipset.Entry
	for _, a := range iptables.Fronts(p, f, at.node) {
		e := ipset.Entry{Addr: a.Addr(), Protocol: p.Name.Protocol, Port: a.Port()}
		if f.Kind != service.NodePort || !at.taken[e] {
			all = append(all, e)
		}
	}
	return all
}

// elements calls add with what p has in sets. The same may come more than once.
func (at Site) elements(p *service.Port, add func(element)) {
	for _, e := range at.checks(p) {
		add(e)
	}
	for i := range p.Frontends {
		f := &p.Frontends[i]
		if f.Kind == service.ClusterIP {
			add(element{iptables.SetClusterIPs, ipset.Entry{Addr: f.Addr}})
		}
		if f.Kind != service.NodePort && !at.own(f.Addr) {
			add(element{iptables.SetVirtualIPs, ipset.Entry{Addr: f.Addr}})
		}
		for _, e := range at.fronts(p, f) {
			for _, set := range special(p, f) {
				add(element{set, e})
			}
			if f.Sources != nil {
				restrict(f, e, add)
			}
		}
	}
}

// checks returns where health checks of p are answered: where NodePorts are.
func (at Site) checks(p *service.Port) []element {
	if p.HealthCheck == 0 {
		return nil
	}
	var all []element
	for _, a := range iptables.Fronts(p, &service.Frontend{Kind: service.NodePort, Port: p.HealthCheck}, at.node) {
		e := ipset.Entry{Addr: a.Addr(), Protocol: service.TCP, Port: a.Port()}
		all = append(all, element{iptables.SetHealthChecks, e})
	}
	return all
}

// restrict has only the sources of f be admitted at e.
func restrict(f *service.Frontend, e ipset.Entry, add func(element)) {
	add(element{iptables.SetRestricted, e})
	for _, s := range f.Sources {
		for _, half := range ipset.Halves(s) {
			e.Net = half
			add(element{iptables.SetSources, e})
		}
	}
}

// special returns the sets that tell what is special about f, none if it is
// nothing.
func special(p *service.Port, f *service.Frontend) []string {
	switch {
	case !p.Served():
		return []string{iptables.SetRefused}
	case f.Kind.External() && p.External == service.PolicyLocal:
		return append(split(p), iptables.SetLocal)
	case len(p.Endpoints(f.Kind)) == 0:
		return []string{iptables.SetDropped}
	case f.Kind.External():
		return []string{iptables.SetExternal}
	}
	return nil
}

// split tells clients inside and outside apart. An external virtual server of p
// has one list of endpoints, see Direct; who needs the other one is led to the
// ClusterIP, which has that.
func split(p *service.Port) []string {
	var in []string
	if len(p.Cluster) == 0 {
		in = append(in, iptables.SetInsideDropped)
	}
	if len(p.Local) == 0 {
		in = append(in, iptables.SetOutsideDropped)
	}
	switch {
	case !hasClusterIP(p): // one list has to do for all
	case p.Internal == service.PolicyCluster && len(p.Cluster) > 0:
		in = append(in, iptables.SetInsideLed)
	case p.Internal == service.PolicyLocal && len(p.Local) > 0:
		in = append(in, iptables.SetOutsideLed)
	}
	return in
}

// Direct returns the endpoints that the virtual server for frontends of kind
// k has: with external policy Local those that its ClusterIP has not.
func Direct(p *service.Port, k service.Kind) []service.Endpoint {
	switch {
	case !k.External() || p.External == service.PolicyCluster:
		return p.Endpoints(k)
	case Plain(p, k):
		return p.Local
	}
	return p.Cluster
}

// Plain reports that it is the virtual server for frontends of kind k that
// clients outside are led to that are not masqueraded, so that an endpoint
// elsewhere would answer them itself.
func Plain(p *service.Port, k service.Kind) bool {
	byClusterIP := hasClusterIP(p) && p.Internal == service.PolicyLocal
	return p.External == service.PolicyLocal && k.External() != byClusterIP
}

func hasClusterIP(p *service.Port) bool {
	return slices.ContainsFunc(p.Frontends, func(f service.Frontend) bool { return f.Kind == service.ClusterIP })
}
