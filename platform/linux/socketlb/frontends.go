// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package socketlb

import (
	"iter"
	"net/netip"

	"kubeproxy/common/service"
)

// frontend is a ClusterIP and port whose connections are taken, with its endpoints. There
// is at least one.
type frontend struct {
	addr      netip.AddrPort
	endpoints []service.Endpoint
	port      *service.Port
}

// frontendsOf yields the frontends of p that mean the same at connect(2) as in a rule.
// The rules keep the others: UDP, whose sockets would stay at an endpoint that left;
// session affinity, of which the rules keep the clients; and lists without an endpoint,
// which the rules refuse.
func frontendsOf(p *service.Port) iter.Seq[frontend] {
	return func(yield func(frontend) bool) {
		if p == nil || p.Name.Protocol != service.TCP || p.Affinity != 0 || len(p.Endpoints(service.ClusterIP)) == 0 {
			return
		}
		for _, f := range p.Frontends {
			if f.Kind == service.ClusterIP && !yield(frontend{netip.AddrPortFrom(f.Addr, f.Port), p.Endpoints(service.ClusterIP), p}) {
				return
			}
		}
	}
}

// takes reports whether anything is taken on a node. With masqueradeAll, an endpoint must
// see the address of the node, which connect cannot arrange for a pod.
func takes(n *service.Node) bool { return !n.MasqueradeAll }

// allFrontends yields what is taken of s in family f.
func allFrontends(s *service.Snapshot, f service.Family) iter.Seq[frontend] {
	return func(yield func(frontend) bool) {
		if !takes(s.Node) {
			return
		}
		for p := range s.Ports(f) {
			for x := range frontendsOf(p) {
				if !yield(x) {
					return
				}
			}
		}
	}
}
