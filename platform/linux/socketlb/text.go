// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package socketlb

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"kubeproxy/common/service"
)

// shown is a frontend as text shows it.
type shown struct {
	addr      netip.AddrPort
	endpoints []netip.AddrPort
	fault     string // of its list
}

// Text returns the lists that s asks for in family f, as comments that nft,
// iptables-restore, ipvsadm and ipset ignore: each frontend, and each of its endpoints in
// a line of its own, by address.
func Text(s *service.Snapshot, f service.Family) string {
	var all []shown
	for x := range allFrontends(s, f) {
		to := shown{addr: x.addr}
		for _, e := range x.endpoints {
			to.endpoints = append(to.endpoints, e.Addr)
		}
		all = append(all, to)
	}
	return text(s, f, "", all)
}

// ReadBack returns the lists that the kernel has, and those that it would have for want,
// both as Text does. Nothing is held if there are no programs, and nothing wanted if the
// layer is off.
func (b *Backend) ReadBack(want *service.Snapshot) (held, wanted string, err error) {
	if !b.off {
		wanted = Text(want, b.family)
	}
	if there, err := b.driver.Installed(); err != nil || !there {
		return "", wanted, err
	}
	s, err := b.Inspect()
	if err != nil || s == nil {
		return "", wanted, err
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
	return text(want, b.family, s.Fault, all), wanted, nil
}

// text writes frontends, with the names that want has for them.
func text(want *service.Snapshot, f service.Family, fault string, all []shown) string {
	names := map[netip.AddrPort]service.PortName{}
	for p := range want.Ports(f) {
		for _, x := range p.Frontends {
			if x.Kind == service.ClusterIP && p.Name.Protocol == service.TCP {
				names[netip.AddrPortFrom(x.Addr, x.Port)] = p.Name
			}
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# socket acceleration, %s\n", f)
	if fault != "" {
		fmt.Fprintf(&b, "# not in force: %s\n", fault)
	}
	slices.SortFunc(all, func(a, b shown) int { return a.addr.Compare(b.addr) })
	for _, to := range all {
		of := "of no Service"
		if n, ok := names[to.addr]; ok {
			of = n.String()
		}
		fmt.Fprintf(&b, "# connect tcp %s, %s\n", to.addr, of)
		if to.fault != "" {
			fmt.Fprintf(&b, "#   %s\n", to.fault)
		}
		slices.SortFunc(to.endpoints, netip.AddrPort.Compare)
		for _, e := range to.endpoints {
			fmt.Fprintf(&b, "#   %s\n", e)
		}
	}
	return b.String()
}
