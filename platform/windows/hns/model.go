// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"cmp"
	"net/netip"
	"slices"

	"kubeproxy/common/service"
)

// model is what HNS holds, according to a listing and the changes since. A fork shows the
// result of further changes and does not affect the original.
type model struct {
	base      *model                     // nil if this is no fork
	network   string                     // ID; addresses are looked up in this network only
	endpoints map[string]*Endpoint       // by ID, nil if deleted
	balancers map[string]*LoadBalancer   // by ID, nil if deleted
	keys      map[service.Address]string // the ID of the load balancer, empty if deleted
	local     map[netip.Addr]string      // the ID of the local endpoint
	remote    map[netip.Addr]string      // the ID of the remote endpoint
	refs      map[string]int             // number of load balancers of any owner, by endpoint ID
	names     map[string]string          // of networks, by ID
}

func emptyModel(base *model, network string) *model {
	return &model{
		base: base, network: network,
		endpoints: map[string]*Endpoint{}, balancers: map[string]*LoadBalancer{}, keys: map[service.Address]string{},
		local: map[netip.Addr]string{}, remote: map[netip.Addr]string{}, refs: map[string]int{},
	}
}

func newModel(l Listing, network string) *model {
	m := emptyModel(nil, network)
	m.names = map[string]string{}
	for _, n := range l.Networks {
		m.names[n.ID] = n.Name
	}
	for i := range l.Endpoints {
		m.putEndpoint(&l.Endpoints[i])
	}
	for i := range l.LoadBalancers {
		m.putBalancer(&l.LoadBalancers[i])
	}
	return m
}

// fork returns a model that starts as m. Changes to it do not affect m.
func (m *model) fork() *model { return emptyModel(m, m.network) }

// withEndpoints returns m with a new listing of endpoints. m must not be a fork.
func (m *model) withEndpoints(all []Endpoint) *model {
	next := emptyModel(nil, m.network)
	next.balancers, next.keys, next.refs, next.names = m.balancers, m.keys, m.refs, m.names
	for i := range all {
		next.putEndpoint(&all[i])
	}
	return next
}

// lookup returns the entry of k in m, or in the models that it is a fork of.
func lookup[K comparable, V any](m *model, in func(*model) map[K]V, k K) (v V) {
	for known := false; m != nil && !known; m = m.base {
		v, known = in(m)[k]
	}
	return v
}

func (m *model) endpoint(id string) *Endpoint {
	return lookup(m, func(m *model) map[string]*Endpoint { return m.endpoints }, id)
}

func (m *model) balancer(k service.Address) *LoadBalancer {
	return m.balancerByID(lookup(m, func(m *model) map[service.Address]string { return m.keys }, k))
}

func (m *model) balancerByID(id string) *LoadBalancer {
	return lookup(m, func(m *model) map[string]*LoadBalancer { return m.balancers }, id)
}

func (m *model) refCount(id string) int {
	return lookup(m, func(m *model) map[string]int { return m.refs }, id)
}

// endpointAt returns the local or remote endpoint of the network with address a, or nil.
func (m *model) endpointAt(a netip.Addr, w Location) *Endpoint {
	return m.endpoint(lookup(m, func(m *model) map[netip.Addr]string {
		if w == Local {
			return m.local
		}
		return m.remote
	}, a))
}

// listed returns the model that m is a fork of, which has what was listed.
func (m *model) listed() *model {
	for m.base != nil {
		m = m.base
	}
	return m
}

// endpointNamed returns the listed endpoint of the network with this name, or nil.
func (m *model) endpointNamed(name string) *Endpoint {
	for _, e := range m.listed().endpoints {
		if e != nil && e.Name == name && e.Network == m.network {
			return e
		}
	}
	return nil
}

// setEntry sets v under k. The zero value deletes the entry, which only a fork must store.
func setEntry[K, V comparable](m *model, of map[K]V, k K, v V) {
	var none V
	if v == none && m.base == nil {
		delete(of, k)
		return
	}
	of[k] = v
}

// elsewhere returns the network in which a pod has address a, the one of m aside, empty if none is listed.
func (m *model) elsewhere(a netip.Addr) string {
	for _, e := range m.listed().endpoints {
		if e != nil && e.usedByPod() && e.Network != m.network && e.HasAddr(a) {
			return cmp.Or(m.names[e.Network], e.Network)
		}
	}
	return ""
}

// moved reports whether the local endpoint with address a is in another network, and the
// network of m has no local endpoints. It uses only listed endpoints.
func (m *model) moved(a netip.Addr) bool {
	m = m.listed()
	if len(m.local) > 0 {
		return false
	}
	for _, e := range m.endpoints {
		if e != nil && !e.Remote && e.Network != m.network && e.HasAddr(a) {
			return true
		}
	}
	return false
}

func (m *model) index(e *Endpoint, id string) {
	if e.Network != m.network {
		return
	}
	for _, a := range e.Addrs {
		if e.Remote {
			setEntry(m, m.remote, a, id)
		} else {
			setEntry(m, m.local, a, id)
		}
	}
}

func (m *model) putEndpoint(e *Endpoint) {
	m.endpoints[e.ID] = e
	m.index(e, e.ID)
}

func (m *model) removeEndpoint(e *Endpoint) {
	setEntry(m, m.endpoints, e.ID, nil)
	m.index(e, "")
}

func (m *model) putBalancer(lb *LoadBalancer) {
	m.balancers[lb.ID] = lb
	for _, k := range append([]service.Address{lb.Address}, lb.ExtraKeys...) {
		m.keys[k] = lb.ID
	}
	for _, id := range lb.Endpoints {
		m.refs[id] = m.refCount(id) + 1
	}
}

func (m *model) removeBalancer(lb *LoadBalancer) {
	setEntry(m, m.balancers, lb.ID, nil)
	for _, k := range append([]service.Address{lb.Address}, lb.ExtraKeys...) {
		setEntry(m, m.keys, k, "")
	}
	for _, id := range lb.Endpoints {
		setEntry(m, m.refs, id, m.refCount(id)-1)
	}
}

// changeBalancer replaces from by lb, which has the same ID and key, and no further keys.
// Its cost is proportional to the endpoints that change.
func (m *model) changeBalancer(from, lb *LoadBalancer) {
	m.balancers[lb.ID] = lb
	for _, id := range notIn(from.Endpoints, lb.Endpoints) {
		setEntry(m, m.refs, id, m.refCount(id)-1)
	}
	for _, id := range notIn(lb.Endpoints, from.Endpoints) {
		m.refs[id] = m.refCount(id) + 1
	}
}

// sortedBalancers returns the load balancers for which fit returns true, in key order.
func (m *model) sortedBalancers(fit func(*LoadBalancer) bool) []*LoadBalancer {
	var all []*LoadBalancer
	for at := m; at != nil; at = at.base {
		for id, lb := range at.balancers {
			if lb != nil && fit(lb) && m.balancerByID(id) == lb {
				all = append(all, lb)
			}
		}
	}
	slices.SortFunc(all, func(a, b *LoadBalancer) int { return a.Address.Compare(b.Address) })
	return all
}

// balancersOf returns the load balancers of a family in key order.
func (m *model) balancersOf(f service.Family) []*LoadBalancer {
	return m.sortedBalancers(func(lb *LoadBalancer) bool { return lb.Family == f })
}

// balancersUsing returns the load balancers that have one of the endpoints, in key order.
func (m *model) balancersUsing(of map[string]bool) []*LoadBalancer {
	return m.sortedBalancers(func(lb *LoadBalancer) bool {
		return slices.ContainsFunc(lb.Endpoints, func(id string) bool { return of[id] })
	})
}

// sortedRemotes returns the network's remote endpoints of family f by address. m is no fork.
func (m *model) sortedRemotes(f service.Family) []*Endpoint {
	var all []*Endpoint
	for _, e := range m.endpoints {
		if e != nil && e.Remote && e.Network == m.network && len(e.Addrs) > 0 && service.FamilyOf(e.Addrs[0]) == f {
			all = append(all, e)
		}
	}
	slices.SortFunc(all, func(a, b *Endpoint) int { return a.Addrs[0].Compare(b.Addrs[0]) })
	return all
}
