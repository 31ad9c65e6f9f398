// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package userspace_test

import (
	"net/netip"
	"testing"

	"kubeproxy/common/service"
	"kubeproxy/test/xtables"
)

// TestRelayKeepsPortsOverRestart checks that a new process listens on the ports of the
// old one, so that no rule changes.
func TestRelayKeepsPortsOverRestart(t *testing.T) {
	tables := xtables.New(nil)
	endpoints := []service.Endpoint{{Addr: netip.MustParseAddrPort("10.244.1.1:8080"), Local: true}}
	var ports []*service.Port
	for i := range 20 {
		ports = append(ports, &service.Port{
			Name:      service.PortName{Namespace: "shop", Name: string(rune('a' + i)), Protocol: []service.Protocol{service.TCP, service.UDP}[i%2]},
			Frontends: []service.Frontend{{Addr: netip.AddrFrom4([4]byte{10, 96, 0, byte(i)}), Port: 80}, {Kind: service.NodePort, Port: uint16(30000 + i)}},
			Cluster:   endpoints, Local: endpoints, External: service.PolicyLocal,
		})
	}
	want := service.New(1, &service.Node{NodePorts: service.AnyAddress()}, ports)
	first := newRelayNode(service.IPv4, tables)
	apply := func(s *relayNode) {
		p, err := s.Plan(t.Context(), want)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Apply(t.Context()).Err; err != nil {
			t.Fatal(err)
		}
	}
	apply(first)
	before := tables.Text()
	first.Close()
	second := newRelayNode(service.IPv4, tables)
	defer second.Close()
	apply(second)
	if tables.Text() != before {
		t.Errorf("the rules are now\n%s\nand were\n%s", tables.Text(), before)
	}
	if p, err := second.Plan(t.Context(), want); err != nil || !p.Empty() {
		t.Errorf("still to do: %s, %v", p, err)
	}
}
