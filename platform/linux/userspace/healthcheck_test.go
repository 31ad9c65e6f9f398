// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package userspace_test

import (
	"net/netip"
	"strings"
	"testing"

	"kubeproxy/common/service"
	"kubeproxy/test/xtables"
)

// TestHealthCheckChangesAlone changes only the port of a Service's health check.
func TestHealthCheckChangesAlone(t *testing.T) {
	tables := xtables.New(nil)
	n := newRelayNode(service.IPv4, tables)
	defer n.Close()
	for i, check := range []uint16{30100, 30200, 0} {
		want := service.New(uint64(i), &service.Node{NodePorts: service.AnyAddress()}, []*service.Port{{
			Name:      service.PortName{Namespace: "shop", Name: "web", Protocol: service.TCP},
			Frontends: []service.Frontend{{Kind: service.LoadBalancerIP, Addr: netip.MustParseAddr("203.0.113.1"), Port: 80}},
			Local:     []service.Endpoint{{Addr: netip.MustParseAddrPort("10.244.1.1:8080"), Local: true}},
			External:  service.PolicyLocal, HealthCheck: check,
		}})
		p, err := n.Plan(t.Context(), want)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Apply(t.Context()).Err; err != nil {
			t.Fatal(err)
		}
		text := tables.Text()
		for port, rule := range map[uint16]string{30100: "--dport 30100 ", 30200: "--dport 30200 "} {
			if strings.Contains(text, rule) != (port == check) {
				t.Errorf("with a check at port %d:\n%s", check, text)
			}
		}
	}
}
