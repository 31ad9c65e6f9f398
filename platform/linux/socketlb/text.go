// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package socketlb

import (
	"net/netip"
	"slices"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

// shown is a frontend as text shows it.
type shown struct {
	addr      netip.AddrPort
	endpoints []netip.AddrPort
	fault     string // of its list
}

// Objects returns the lists that s asks for in family f, as comments that nft,
// iptables-restore, ipvsadm and ipset ignore: each frontend, and each of its endpoints in
// a line of its own, by address.
func Objects(s *service.Snapshot, f service.Family) reconcile.Objects {
	var all []shown
	for x := range allFrontends(s, f) {
		to := shown{addr: x.addr}
		for _, e := range x.endpoints {
			to.endpoints = append(to.endpoints, e.Addr)
		}
		all = append(all, to)
	}
	return objects(s, f, "", all)
}

// ReadBack returns the lists that the kernel has, and those that it would have for want,
// both as Objects does. Nothing is held if there are no programs, and nothing wanted if the
// layer is off.
func (b *Backend) ReadBack(want *service.Snapshot) (held, wanted reconcile.Objects, err error) {
	if !b.off {
		wanted = Objects(want, b.family)
	}
	if there, err := b.driver.Installed(); err != nil || !there {
		return nil, wanted, err
	}
	s, err := b.Inspect()
	if err != nil || s == nil {
		return nil, wanted, err
	}
	var all []shown
	for i := range s.entries() {
		if n := s.at(i); s.used(n) && s.list(i) != 0 {
			to := shown{addr: n.addrPort(b.family)}
			damaged := false
			if to.endpoints, damaged = s.endpoints(to.addr); damaged {
				to.fault = "its list is damaged"
			}
			all = append(all, to)
		}
	}
	return objects(want, b.family, s.Fault, all), wanted, nil
}

// objects returns frontends, with the names that want has for them.
func objects(want *service.Snapshot, f service.Family, fault string, all []shown) reconcile.Objects {
	names := map[netip.AddrPort]service.PortName{}
	for p := range want.Ports(f) {
		for _, x := range p.Frontends {
			if x.Kind == service.ClusterIP && p.Name.Protocol == service.TCP {
				names[netip.AddrPortFrom(x.Addr, x.Port)] = p.Name
			}
		}
	}
	var out reconcile.Objects
	none := service.PortName{}
	out.Add("# socket acceleration, %s\n", f)
	if fault != "" {
		out.Add("# not in force: %s\n", fault)
	}
	slices.SortFunc(all, func(a, b shown) int { return a.addr.Compare(b.addr) })
	for _, to := range all {
		of, owner := names[to.addr], "of no Service"
		if of != none {
			owner = of.String()
		}
		out.AddFor(of, "# connect tcp %s, %s\n", to.addr, owner)
		if to.fault != "" {
			out.AddFor(of, "#   %s\n", to.fault)
		}
		slices.SortFunc(to.endpoints, netip.AddrPort.Compare)
		for _, e := range to.endpoints {
			out.AddFor(of, "#   %s\n", e)
		}
	}
	return out
}
