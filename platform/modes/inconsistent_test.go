// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package modes

import (
	"net/netip"
	"testing"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

// TestInconsistent has a port ask for consistent selection, change its mind, and be removed.
func TestInconsistent(t *testing.T) {
	x := &inconsistent{mode: "iptables", family: service.IPv4}
	of := func(ports ...*service.Port) *service.Snapshot { return service.New(1, &service.Node{}, ports) }
	port := func(c service.Consistent) *service.Port {
		return &service.Port{Name: service.PortName{Namespace: "shop", Name: "web", Protocol: service.TCP}, Consistent: c,
			Frontends: []service.Frontend{{Kind: service.ClusterIP, Addr: netip.MustParseAddr("10.96.0.1"), Port: 80}}}
	}
	asks := of(port(service.Consistent{Slots: 1009, ClusterIPs: true}))
	for i, tt := range []struct {
		want    *service.Snapshot
		limited bool
	}{{of(), false}, {asks, true}, {asks, true}, {of(port(service.Consistent{Slots: 1009})), false}, {asks, true}, {of(), false}} {
		p, err := x.Plan(t.Context(), tt.want)
		if out := p.Outcome().Err; err != nil || (out != nil) != tt.limited || tt.limited && !(reconcile.Unsupported(out) && reconcile.InForce(out)) {
			t.Errorf("%d: %v, %v, want limited %t", i, out, err, tt.limited)
		}
	}
}
