// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"net/netip"
	"slices"
	"strings"
)

// index finds objects without a walk over all of them: a node has thousands.
type index struct {
	// addresses maps an address to its endpoint. A local and a remote endpoint may share
	// one.
	addresses map[address]string
	// fronts maps an address and port to its load balancer.
	fronts map[front]string
	// users are the load balancers of an endpoint.
	users map[string]map[string]bool
	// mapped are ports of the host that endpoints have taken.
	mapped map[hostPort]string
}

type address struct {
	network string
	ip      netip.Addr
	remote  bool
}

// front is a frontend, which belongs to one load balancer only. An empty VIP stands for
// all addresses of the node in one family.
type front struct {
	vip string
	v6  bool
	hostPort
}

// hostPort is a port of an IP protocol's number.
type hostPort struct{ protocol, port int }

func newIndex() index {
	return index{map[address]string{}, map[front]string{}, map[string]map[string]bool{}, map[hostPort]string{}}
}

func addressesOf(e Document) []address {
	var list []address
	for _, ip := range e.IPs() {
		list = append(list, address{e.NetworkID(), ip, e.Remote()})
	}
	return list
}

func mappedBy(e Document) []hostPort {
	var list []hostPort
	for _, m := range e.policies("PortMapping") {
		list = append(list, hostPort{m.number("Protocol"), m.number("ExternalPort")})
	}
	return list
}

func frontsOf(lb Document) []front {
	vips := lb.VIPs()
	if len(vips) == 0 {
		vips = []string{""}
	}
	var list []front
	for _, p := range lb.Ports() {
		for _, vip := range vips {
			list = append(list, front{vip, lb.v6(), hostPort{p.number("Protocol"), p.number("ExternalPort")}})
		}
	}
	return list
}

func (d Document) v6() bool { return d.Flags()&2 != 0 }

// add and remove update the index; they ignore the kinds that it does not cover.
func (x index) add(kind Kind, d Document) {
	id := d.ID()
	switch kind {
	case Endpoint:
		for _, a := range addressesOf(d) {
			x.addresses[a] = id
		}
		for _, m := range mappedBy(d) {
			x.mapped[m] = id
		}
	case LoadBalancer:
		for _, f := range frontsOf(d) {
			x.fronts[f] = id
		}
		for _, e := range d.Endpoints() {
			if x.users[e] == nil {
				x.users[e] = map[string]bool{}
			}
			x.users[e][id] = true
		}
	}
}

func (x index) remove(kind Kind, d Document) {
	switch kind {
	case Endpoint:
		for _, a := range addressesOf(d) {
			delete(x.addresses, a)
		}
		for _, m := range mappedBy(d) {
			delete(x.mapped, m)
		}
	case LoadBalancer:
		for _, f := range frontsOf(d) {
			delete(x.fronts, f)
		}
		for _, e := range d.Endpoints() {
			delete(x.users[e], d.ID())
		}
	}
}

// usersOf names the load balancers of an endpoint that are not deleted.
func (s *Simulator) usersOf(endpoint string) string {
	var ids []string
	for id := range s.index.users[endpoint] {
		if s.store[LoadBalancer].objects[id].gone == 0 {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return strings.Join(ids, ", ")
}
