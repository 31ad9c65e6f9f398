// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"math/rand/v2"
	"net/netip"
	"reflect"
	"testing"

	"kubeproxy/common/service"
)

// TestChangedElements checks that changedElements leads to the same changes as elements,
// for Ports of all routes.
func TestChangedElements(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	draw := func(kinds []service.Kind, internal, external service.Policy) *service.Port {
		p := &service.Port{Name: service.PortName{Namespace: "shop", Name: "web", Protocol: service.TCP}, Internal: internal, External: external}
		for i, k := range kinds {
			f := service.Frontend{Kind: k, Port: uint16(80 + i)}
			if k != service.NodePort {
				f.Addr = netip.AddrFrom4([4]byte{10, 96, 0, byte(i)})
			}
			p.Frontends = append(p.Frontends, f)
		}
		for i := range r.IntN(8) {
			if e := (service.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 0, byte(i)}), 8080)}); r.IntN(3) > 0 {
				p.Cluster = append(p.Cluster, e)
				if r.IntN(2) > 0 {
					p.Local = append(p.Local, e)
				}
			}
		}
		return p
	}
	kinds := []service.Kind{service.ClusterIP, service.NodePort, service.ExternalIP, service.LoadBalancerIP}
	policies := []service.Policy{service.PolicyCluster, service.PolicyLocal}
	sameRouted := 0
	for range 5000 {
		some := kinds[:1+r.IntN(len(kinds))]
		internal, external := policies[r.IntN(2)], policies[r.IntN(2)]
		from := layout{}.next(draw(some, internal, external))
		to := from.next(draw(some, internal, external))
		if r.IntN(9) == 0 {
			to = from.next(draw(some, policies[r.IntN(2)], policies[r.IntN(2)]))
		}
		if sameRoutes(from.port, to.port) {
			sameRouted++
		}
		got, want := portOps(from, to, Options{}), appendAffinityChanges(appendElements(nil, from.elements(), to.elements()), from.port, to.port, Options{})
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("from %+v to %+v:\n%v, want\n%v", from.port, to.port, got, want)
		}
	}
	if sameRouted < 1000 {
		t.Errorf("only %d pairs have the same routes", sameRouted)
	}
}
