// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"fmt"
	"net/netip"
	"slices"

	"kubeproxy/common/service"
)

// Retiring returns, for the UDP frontends in family f that from has and to lacks, ports
// without endpoints. A frontend that refuses its clients until their entries are deleted
// stays in the dataplane, so that the next process finds it there if this one is killed in
// between. Once it is gone, nothing tells a stale entry from one that others made.
func Retiring(from, to *service.Snapshot, f service.Family) []*service.Port {
	var gone []*service.Port
	if from == nil || to.Incomplete {
		return nil
	}
	for c := range service.Diff(from, to, f) {
		if c.Old == nil || c.Old.Name.Protocol != service.UDP {
			continue
		}
		var lost []service.Frontend
		for _, x := range c.Old.Frontends {
			if c.New == nil || !slices.ContainsFunc(c.New.Frontends, x.SameAddress) {
				lost = append(lost, x)
			}
		}
		gone = append(gone, retired(c.Old.Name, f, lost)...)
	}
	return withoutTaken(gone, to)
}

// RetiringLeftovers is like Retiring for the frontends that an earlier process left.
func RetiringLeftovers(left []*service.Port, to *service.Snapshot) []*service.Port {
	var gone []*service.Port
	for _, p := range left {
		if p.Name.Protocol == service.UDP {
			gone = append(gone, retired(p.Name, p.Family, p.Frontends)...)
		}
	}
	return withoutTaken(gone, to)
}

// retired returns a port for each frontend. Its name is none that a Service port can have.
func retired(name service.PortName, f service.Family, frontends []service.Frontend) []*service.Port {
	var all []*service.Port
	for _, x := range frontends {
		n := name
		n.Port = fmt.Sprintf("%s(%s)", name.Port, netip.AddrPortFrom(x.Addr, x.Port))
		all = append(all, &service.Port{Name: n, Family: f, Frontends: []service.Frontend{{Kind: x.Kind, Addr: x.Addr, Port: x.Port}}})
	}
	return all
}

// withoutTaken removes the ports whose frontend is one of s, and those that occur twice.
func withoutTaken(ports []*service.Port, s *service.Snapshot) []*service.Port {
	if len(ports) == 0 {
		return nil
	}
	taken := map[frontendKey]bool{}
	key := func(p *service.Port, x service.Frontend) frontendKey {
		return frontendKey{p.Family, p.Name.Protocol, Rule{Addr: x.Addr, Port: x.Port}.frontend()}
	}
	for p := range s.Ports(ports[0].Family) {
		for _, x := range p.Frontends {
			taken[key(p, x)] = true
		}
	}
	return slices.DeleteFunc(ports, func(p *service.Port) bool {
		k := key(p, p.Frontends[0])
		defer func() { taken[k] = true }()
		return taken[k]
	})
}
