// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"net/netip"
	"strings"
	"testing"

	"kubeproxy/common/service"
)

// TestPendingNodePorts restarts while the node's addresses are unknown. Addresses that
// accepted NodePorts before keep doing so until then.
func TestPendingNodePorts(t *testing.T) {
	const leads = "goto " + nodePortChain
	own := &service.Node{NodePorts: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/32")}}
	pending := &service.Node{NodePortsPending: [2]bool{true, true}}
	ports := []*service.Port{{
		Name:      service.PortName{Namespace: "shop", Name: "web", Protocol: service.TCP},
		Frontends: []service.Frontend{{Kind: service.NodePort, Port: 30080}}, Cluster: letterEndpoints("a"),
	}}
	k := &fake{}
	dispatched := func() string {
		return (&chain{name: dispatchChain, rules: k.table.chains[dispatchChain].rules}).text(service.IPv4)
	}
	apply(t, &Backend{driver: k}, service.New(1, pending, ports))
	if strings.Contains(dispatched(), leads) {
		t.Fatalf("an unknown node answers NodePorts:\n%s", dispatched())
	}
	apply(t, &Backend{driver: k}, service.New(1, own, ports))
	b := &Backend{driver: k}
	for range 2 {
		apply(t, b, service.New(2, pending, ports))
		if !strings.Contains(dispatched(), "ip daddr 192.0.2.1 fib daddr type local") {
			t.Fatalf("NodePorts are closed before the node is known:\n%s", dispatched())
		}
		k.touched = true
	}
	apply(t, b, service.New(3, &service.Node{}, ports))
	if strings.Contains(dispatched(), leads) {
		t.Errorf("the node is known and has no address, and NodePorts are answered:\n%s", dispatched())
	}
}
