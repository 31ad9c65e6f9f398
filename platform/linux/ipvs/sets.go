// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"cmp"
	"net/netip"
	"slices"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/ipset"
)

// The ipsets that the chains refer to, see setName. Sets of addresses have type hash:ip,
// sourcesSet has hash:ip,port,net and the others have hash:ip,port.
const (
	clusterIPSet        = "CLUSTER-IPS"
	virtualIPSet        = "VIRTUAL-IPS"       // on the node for Services only
	nodeIPSet           = "NODE-IPS"          // the node's own, once they are served
	virtualServerSet    = "VIRTUAL-SERVERS"   // a virtual server exists, whoever made it
	refusedSet          = "REFUSED"           // there are no endpoints
	droppedSet          = "DROPPED"           // there are endpoints, but the policy leaves none
	externalSet         = "EXTERNAL"          // policy Cluster: masqueraded
	localSet            = "LOCAL"             // policy Local: internal and external clients differ
	internalDroppedSet  = "INTERNAL-DROPPED"  // no endpoint is left for pods and the node
	externalDroppedSet  = "EXTERNAL-DROPPED"  // no endpoint is left for external clients
	internalRedirectSet = "INTERNAL-REDIRECT" // pods and the node are redirected
	externalRedirectSet = "EXTERNAL-REDIRECT" // external clients are redirected
	restrictedSet       = "RESTRICTED"        // only some sources are allowed
	sourcesSet          = "SOURCES"           // the allowed sources
	healthCheckSet      = "HEALTH-CHECKS"     // where health checks are answered
)

// setName returns the name of a set in family f: both families share one namespace.
func setName(f service.Family, set string) string {
	if f == service.IPv6 {
		return "KUBE-VS6-" + set
	}
	return chainPrefix + set
}

// setNames lists the sets whose elements depend only on a snapshot.
var setNames = []string{
	clusterIPSet, virtualIPSet, refusedSet, droppedSet,
	externalSet, localSet, internalDroppedSet, externalDroppedSet,
	internalRedirectSet, externalRedirectSet, restrictedSet, sourcesSet,
	healthCheckSet,
}

func allNames() []string {
	return append(setNames[:len(setNames):len(setNames)], virtualServerSet, nodeIPSet)
}

func setOf(f service.Family, name string) ipset.Set {
	s := ipset.Set{Name: setName(f, name), Type: ipset.HashIPPort, Family: f}
	switch name {
	case clusterIPSet, virtualIPSet, nodeIPSet:
		s.Type = ipset.HashIP
	case sourcesSet:
		s.Type = ipset.HashIPPortNet
	}
	return s
}

// localNode is the node on which virtual servers are made.
type localNode struct {
	node *service.Node
	// reserved are the addresses and ports of the node that are not for NodePorts, because a
	// Service has the address as an external one.
	reserved map[service.Address]bool
}

func newLocalNode(s *service.Snapshot, f service.Family) localNode {
	at := localNode{s.Node, map[service.Address]bool{}}
	for p := range s.Ports(f) {
		for _, a := range at.reservedBy(p) {
			at.reserved[a] = true
		}
	}
	return at
}

// reservedBy returns the node addresses and ports that p, which may be nil, reserves.
func (l localNode) reservedBy(p *service.Port) []service.Address {
	if p == nil {
		return nil
	}
	var all []service.Address
	for _, f := range p.Frontends {
		if f.Kind != service.NodePort && slices.Contains(l.node.Addrs, f.Addr) {
			all = append(all, p.Address(f))
		}
	}
	return all
}

// reservationsChange reports whether cs change reservations, and so what other Ports have.
func (l localNode) reservationsChange(cs []service.Change) bool {
	return slices.ContainsFunc(cs, func(c service.Change) bool { return !slices.Equal(l.reservedBy(c.Old), l.reservedBy(c.New)) })
}

func (l localNode) addresses(p *service.Port, f *service.Frontend) []service.Address {
	all := addressesOf(p, f, l.node)
	if f.Kind == service.NodePort {
		all = slices.DeleteFunc(all, func(a service.Address) bool { return l.reserved[a] })
	}
	return all
}

// addressesOf returns where frontend f of p answers on node: at its own address, or for a
// NodePort at the node addresses that answer it.
func addressesOf(p *service.Port, f *service.Frontend, node *service.Node) []service.Address {
	if f.Kind != service.NodePort {
		return []service.Address{p.Address(*f)}
	}
	var all []service.Address
	for _, a := range node.Addrs {
		if service.FamilyOf(a) == p.Family && node.AnswersNodePorts(a) {
			all = append(all, service.AddressOf(p.Name.Protocol, netip.AddrPortFrom(a, f.Port)))
		}
	}
	return all
}

// element is an entry of a set. set is the name without the common prefix.
type element struct {
	set string
	ipset.Entry
}

func (e element) compare(o element) int {
	return cmp.Or(cmp.Compare(e.set, o.set), e.Entry.Compare(o.Entry))
}

// elements calls add with each set element of p, some maybe more than once.
func (l localNode) elements(p *service.Port, add func(element)) {
	for _, e := range l.healthChecks(p) {
		add(e)
	}
	for i := range p.Frontends {
		f := &p.Frontends[i]
		if f.Kind == service.ClusterIP {
			add(element{clusterIPSet, ipset.Entry{Addr: f.Addr}})
		}
		if f.Kind != service.NodePort && !slices.Contains(l.node.Addrs, f.Addr) {
			add(element{virtualIPSet, ipset.Entry{Addr: f.Addr}})
		}
		for _, a := range l.addresses(p, f) {
			e := entryOf(a)
			for _, set := range setsFor(p, f) {
				add(element{set, e})
			}
			if f.Sources != nil {
				addRestricted(f, e, add)
			}
		}
	}
}

// healthChecks returns the elements for health checks of p, answered where NodePorts are.
func (l localNode) healthChecks(p *service.Port) []element {
	if p.HealthCheck == 0 {
		return nil
	}
	var all []element
	for _, a := range addressesOf(p, &service.Frontend{Kind: service.NodePort, Port: p.HealthCheck}, l.node) {
		all = append(all, element{healthCheckSet, ipset.Entry{Addr: a.Addr, Protocol: service.TCP, Port: a.Port}})
	}
	return all
}

// addRestricted adds the elements that admit only the sources of f at e.
func addRestricted(f *service.Frontend, e ipset.Entry, add func(element)) {
	add(element{restrictedSet, e})
	for _, s := range f.Sources {
		for _, half := range ipset.Halves(s) {
			e.Net = half
			add(element{sourcesSet, e})
		}
	}
}

// setsFor returns the sets that f belongs to, none if it needs no special treatment.
func setsFor(p *service.Port, f *service.Frontend) []string {
	switch {
	case !p.HasEndpoints():
		return []string{refusedSet}
	case f.Kind.External() && p.External == service.PolicyLocal:
		return append(localPolicySets(p), localSet)
	case len(p.Endpoints(f.Kind)) == 0:
		return []string{droppedSet}
	case f.Kind.External():
		return []string{externalSet}
	}
	return nil
}

// localPolicySets returns the sets for external policy Local, which tell internal clients from
// external ones. A server of p has one list of endpoints, see preservesClientIP: clients that need
// the other are redirected to the ClusterIP, which has it.
func localPolicySets(p *service.Port) []string {
	var in []string
	if len(p.Cluster) == 0 {
		in = append(in, internalDroppedSet)
	}
	if len(p.Local) == 0 {
		in = append(in, externalDroppedSet)
	}
	switch {
	case !hasClusterIP(p): // all clients use the same list
	case p.Internal == service.PolicyCluster && len(p.Cluster) > 0:
		in = append(in, internalRedirectSet)
	case p.Internal == service.PolicyLocal && len(p.Local) > 0:
		in = append(in, externalRedirectSet)
	}
	return in
}

// serverEndpoints returns the endpoints of the virtual server for frontends of kind k.
// With external policy Local these are the endpoints that its ClusterIP does not have.
func serverEndpoints(p *service.Port, k service.Kind) []service.Endpoint {
	switch {
	case !k.External() || p.External == service.PolicyCluster:
		return p.Endpoints(k)
	case preservesClientIP(p, k):
		return p.Local
	}
	return p.Cluster
}

// preservesClientIP reports whether external clients of kind k are not masqueraded, so that no
// remote endpoint may reply to them.
func preservesClientIP(p *service.Port, k service.Kind) bool {
	byClusterIP := hasClusterIP(p) && p.Internal == service.PolicyLocal
	return p.External == service.PolicyLocal && k.External() != byClusterIP
}

func hasClusterIP(p *service.Port) bool {
	return slices.ContainsFunc(p.Frontends, func(f service.Frontend) bool { return f.Kind == service.ClusterIP })
}
