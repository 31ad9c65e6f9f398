// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package listeners

import (
	"kubeproxy/common/service"
)

// Hidden is a listener that a NodePort hides: its clients reach the Service.
type Hidden struct {
	Port     *service.Port
	NodePort uint16
	Listener Listener
}

// HiddenBy returns the listeners among found that NodePorts of s hide, in the order of
// the Service ports.
func HiddenBy(s *service.Snapshot, found []Listener) []Hidden {
	if s == nil || len(found) == 0 {
		return nil
	}
	type key struct {
		protocol service.Protocol
		port     uint16
	}
	var all []Hidden
	for _, f := range service.Families {
		by := map[key]Listener{}
		for _, l := range found {
			if isHidden(s.Node, f, l) {
				by[key{l.Protocol, l.Addr.Port()}] = l
			}
		}
		for p := range s.Ports(f) {
			n := p.NodePort()
			if l, hides := by[key{p.Name.Protocol, n}]; hides {
				all = append(all, Hidden{p, n, l})
			}
		}
	}
	return all
}

// isHidden returns whether NodePorts of f take the traffic to l.
func isHidden(node *service.Node, f service.Family, l Listener) bool {
	a := l.Addr.Addr()
	if a.IsUnspecified() {
		return a.Is6() || f == service.IPv4 // an IPv6 wildcard socket serves both families, see IPV6_V6ONLY in ipv6(7)
	}
	return service.FamilyOf(a) == f && node.AnswersNodePorts(a)
}
