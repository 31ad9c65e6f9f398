// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"net/netip"

	"kubeproxy/common/service"
)

// names finds the Service port of an address.
type names struct {
	snapshot *service.Snapshot
	at       map[frontend]service.PortName
}

// frontend is an address that clients dial. A NodePort has a port only.
type frontend struct {
	protocol service.Protocol
	addr     netip.AddrPort
}

// namesOf returns the names in s.
func namesOf(s *service.Snapshot) *names {
	n := &names{s, map[frontend]service.PortName{}}
	for _, f := range service.Families {
		for p := range s.Ports(f) {
			for i := range p.Frontends {
				x := &p.Frontends[i]
				n.at[frontend{p.Name.Protocol, netip.AddrPortFrom(x.Addr, x.Port)}] = p.Name
			}
		}
	}
	return n
}

// find returns the Service port of the address that clients of c dialled, false if that
// is no Service's. A NodePort has every address of the node.
func (n *names) find(c Counter) (service.PortName, bool) {
	name, found := n.at[frontend{c.Protocol, c.Frontend}]
	if !found {
		name, found = n.at[frontend{c.Protocol, netip.AddrPortFrom(netip.Addr{}, c.Frontend.Port())}]
	}
	return name, found
}
