// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"net/netip"
	"testing"

	"kubeproxy/common/service"
	"kubeproxy/test/generate"
)

// TestPendingNodePorts restarts while the Node is not known. The addresses that answered
// NodePorts continue to answer until it is.
func TestPendingNodePorts(t *testing.T) {
	a := generate.NodeAddr[0]
	k := newFake(service.IPv4)
	p := web(0, 1, service.TCP)
	p.Frontends = append(p.Frontends, service.Frontend{Kind: service.NodePort, Port: 30080})
	ports := []*service.Port{p}
	answers := func() bool { return k.servers[key{a, 30080, service.TCP}] != nil }
	pending := &service.Node{NodePortsPending: [2]bool{true, true}}
	apply(t, newBackend(service.IPv4, k, Options{}), service.New(1, pending, ports))
	if answers() {
		t.Fatal("an unknown node answers NodePorts")
	}
	known := &service.Node{Addrs: []netip.Addr{a}, NodePorts: []netip.Prefix{netip.PrefixFrom(a, 32)}}
	apply(t, newBackend(service.IPv4, k, Options{}), service.New(1, known, ports))
	b := newBackend(service.IPv4, k, Options{})
	s := service.New(2, pending, ports)
	apply(t, b, s)
	if !answers() {
		t.Fatal("NodePorts are closed before the node is known")
	}
	apply(t, b, service.New(3, &service.Node{}, ports))
	if answers() {
		t.Error("the node is known and has no address, and NodePorts are answered")
	}
}
