// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"kubeproxy/common/service"
)

// addKubeProxyObjects creates what kube-proxy creates for a Service of allKinds with the
// source VIP. It returns the IDs of the load balancers. Port flags are 0 for a ClusterIP,
// 18 for a NodePort, and 16 for external addresses. Endpoints have no names.
func (tn *testNode) addKubeProxyObjects(vip netip.Addr) []string {
	tn.t.Helper()
	network := tn.hns.networks[0].ID
	create := func(e Endpoint) string {
		e.Network = network
		created, err := tn.hns.CreateEndpoint(tn.t.Context(), e)
		if err != nil {
			tn.t.Fatal(err)
		}
		return created.ID
	}
	if tn.hns.networks[0].Kind == Overlay {
		create(Endpoint{Addrs: []netip.Addr{vip}})
		create(Endpoint{Addrs: []netip.Addr{addr("10.96.0.10")}, MAC: "00-15-5D-AA-AA-AA", Provider: nodeA, Remote: true})
	}
	to := []string{"endpoint-000001", create(Endpoint{Addrs: []netip.Addr{addr("10.244.2.11")}, MAC: "02-11-0A-F4-02-0B", Provider: nodeB, Remote: true})}
	slices.Sort(to)
	for _, x := range []struct {
		vip   string
		port  uint16
		flags PortFlags
	}{{"10.96.0.10", 80, 0}, {"", 30080, 18}, {"198.51.100.10", 80, 16}, {"203.0.113.10", 80, 16}} {
		lb := LoadBalancer{Key: Key{Port: x.port, Protocol: service.TCP}, TargetPort: 80, Endpoints: to, SourceVIP: vip, Flags: x.flags}
		if x.vip != "" {
			lb.VIP = addr(x.vip)
		}
		if _, err := tn.hns.CreateLoadBalancer(tn.t.Context(), lb); err != nil {
			tn.t.Fatal(err)
		}
	}
	clear(tn.hns.calls)
	return slices.Sorted(maps.Keys(tn.hns.balancers))
}

// Objects of kube-proxy are taken over unchanged. Only on a network of type L2Bridge or
// L2Tunnel they may lack a source VIP, and are then created again with the node's
// address.
func TestTakesOverFromKubeProxy(t *testing.T) {
	for _, tt := range []struct {
		network    Network
		given, vip string // configured, and in kube-proxy's load balancers
		writes     int
	}{
		{overlayN, "10.244.1.77", "10.244.1.77", 0},
		{bridgeN, "", nodeA.String(), 0},
		{bridgeN, "10.244.1.77", "10.244.1.77", 0},
		{bridgeN, "", "", 8},
	} {
		t.Run(fmt.Sprintf("%s, source VIP %q", tt.network.Kind, tt.vip), func(t *testing.T) {
			b := newTestNode(t, v13, tt.network)
			if tt.given != "" {
				b.options.SourceVIP = addr(tt.given)
			}
			b.restart()
			b.pods("10.244.1.11")
			vip, _ := netip.ParseAddr(tt.vip)
			created := b.addKubeProxyObjects(vip)
			for id, e := range b.hns.endpoints { // on these networks kube-proxy chooses the provider address
				if e.Remote && tt.network.Kind != Overlay {
					e.Provider = netip.Addr{}
					b.hns.endpoints[id] = e
				}
			}
			want := snapshot(1, allKinds("10.244.1.11:80", "10.244.2.11:80@b"))
			text := b.converge(want)
			if n := b.hns.writes(); n != tt.writes {
				t.Errorf("%d writing calls, want %d:\n%s", n, tt.writes, text)
			}
			if kept := slices.Equal(created, slices.Sorted(maps.Keys(b.hns.balancers))); kept != (tt.writes == 0) {
				t.Errorf("load balancers kept: %t\n%s", kept, text)
			}
			for _, lb := range b.hns.balancers {
				if !lb.SourceVIP.IsValid() {
					t.Errorf("load balancer %s has no source VIP", lb.Key)
				}
			}
		})
	}
}
