// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"net/netip"
	"slices"

	"kubeproxy/common/service"
)

// model is what HNS holds, from a listing and from what was done since. A fork
// of it shows what would be without touching it.
type model struct {
	base      *model                   // nil for what is
	network   string                   // ID; addresses are looked up in it alone
	endpoints map[string]*Endpoint     // nil for one that is gone
	balancers map[string]*LoadBalancer // the same
	keys      map[Key]string           // to a load balancer's ID, empty for none
	local     map[netip.Addr]string    // to the ID of an endpoint of this node
	remote    map[netip.Addr]string    // to that of a remote one
	refs      map[string]int           // load balancers, anyone's, by endpoint
}

func emptyModel(base *model, network string) *model {
	return &model{
		base: base, network: network,
		endpoints: map[string]*Endpoint{}, balancers: map[string]*LoadBalancer{}, keys: map[Key]string{},
		local: map[netip.Addr]string{}, remote: map[netip.Addr]string{}, refs: map[string]int{},
	}
}

func newModel(l Listing, network string) *model {
	m := emptyModel(nil, network)
	for i := range l.Endpoints {
		m.putEndpoint(&l.Endpoints[i])
	}
	for i := range l.LoadBalancers {
		m.putBalancer(&l.LoadBalancers[i])
	}
	return m
}

// fork returns a model that starts from m and changes without m.
func (m *model) fork() *model { return emptyModel(m, m.network) }

// withEndpoints returns m, which must be no fork, with endpoints listed anew.
func (m *model) withEndpoints(all []Endpoint) *model {
	next := emptyModel(nil, m.network)
	next.balancers, next.keys, next.refs = m.balancers, m.keys, m.refs
	for i := range all {
		next.putEndpoint(&all[i])
	}
	return next
}

func (m *model) endpoint(id string) *Endpoint {
	for ; m != nil; m = m.base {
		if e, ok := m.endpoints[id]; ok {
			return e
		}
	}
	return nil
}

func (m *model) balancer(k Key) *LoadBalancer {
	id := ""
	for at := m; at != nil; at = at.base {
		if x, ok := at.keys[k]; ok {
			id = x
			break
		}
	}
	for ; m != nil && id != ""; m = m.base {
		if lb, ok := m.balancers[id]; ok {
			return lb
		}
	}
	return nil
}

func (m *model) refCount(id string) int {
	for ; m != nil; m = m.base {
		if n, ok := m.refs[id]; ok {
			return n
		}
	}
	return 0
}

// endpointAt returns the endpoint of the network that has address a, here or remote.
func (m *model) endpointAt(a netip.Addr, w Location) *Endpoint {
	for at := m; at != nil; at = at.base {
		index := at.remote
		if w == Local {
			index = at.local
		}
		if id, ok := index[a]; ok {
			return m.endpoint(id)
		}
	}
	return nil
}

// endpointNamed returns an endpoint of the network by its name. It looks at what is
// listed only.
func (m *model) endpointNamed(name string) *Endpoint {
	for m.base != nil {
		m = m.base
	}
	for _, e := range m.endpoints {
		if e != nil && e.Name == name && e.Network == m.network {
			return e
		}
	}
	return nil
}

// setEntry notes v under k; the zero value means that there is none, which only a
// fork needs to remember.
func setEntry[K, V comparable](m *model, of map[K]V, k K, v V) {
	var none V
	if v == none && m.base == nil {
		delete(of, k)
		return
	}
	of[k] = v
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
	for _, k := range append([]Key{lb.Key}, lb.ExtraKeys...) {
		m.keys[k] = lb.ID
	}
	for _, id := range lb.Endpoints {
		m.refs[id] = m.refCount(id) + 1
	}
}

func (m *model) removeBalancer(lb *LoadBalancer) {
	setEntry(m, m.balancers, lb.ID, nil)
	for _, k := range append([]Key{lb.Key}, lb.ExtraKeys...) {
		setEntry(m, m.keys, k, "")
	}
	for _, id := range lb.Endpoints {
		setEntry(m, m.refs, id, m.refCount(id)-1)
	}
}

// sortedBalancers returns the load balancers of a family in key order. m must
// be no fork.
func (m *model) sortedBalancers(f service.Family) []*LoadBalancer {
	var all []*LoadBalancer
	for _, lb := range m.balancers {
		if lb != nil && lb.Family == f {
			all = append(all, lb)
		}
	}
	slices.SortFunc(all, func(a, b *LoadBalancer) int { return a.Key.Compare(b.Key) })
	return all
}

// sortedRemotes returns the network's remote endpoints with an address of
// family f, in address order. m must be no fork.
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
