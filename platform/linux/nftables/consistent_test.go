// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"kubeproxy/common/service"
)

// TestConsistent has a Service select consistently and lose an endpoint. That writes the slots that
// differ, once for all frontends. Afterwards it selects at random.
func TestConsistent(t *testing.T) {
	all := []service.Frontend{{Kind: service.ClusterIP, Addr: netip.MustParseAddr("10.96.0.1"), Port: 80}, {Kind: service.NodePort, Port: 30080}, {Kind: service.LoadBalancerIP, Addr: netip.MustParseAddr("203.0.113.1"), Port: 80}}
	with := func(ends int, c service.Consistent) *service.Snapshot {
		p := &service.Port{Name: service.PortName{Namespace: "shop", Name: "web", Protocol: service.TCP}, Frontends: all, Consistent: c}
		return service.New(1, &service.Node{}, []*service.Port{withEndpoints(p, 1, ends)})
	}
	verdicts := func(k *fake) string {
		return fmt.Sprint(k.table.sets[services.name].elements, k.table.sets[nodePorts.name].elements)
	}
	k := &fake{}
	b := &Backend{family: service.IPv4, driver: k}
	external := service.Consistent{Slots: service.DefaultSlots}
	apply(t, b, with(4, external))
	if v := verdicts(k); strings.Count(v, "consistent-external-") != 2 || strings.Contains(v, "consistent-cluster-") {
		t.Errorf("not for external addresses and NodePorts alone: %s", v)
	}
	table := func(ends int) []uint16 {
		for p := range with(ends, external).Ports(service.IPv4) {
			return service.Table(p.Cluster, external.Slots)
		}
		return nil
	}
	before, after := table(4), table(3)
	moved := 0
	for i := range before {
		if before[i] != after[i] {
			moved++
		}
	}
	slots := 0
	for _, c := range planNow(t, b, with(3, external)).Changes() {
		if strings.Contains(c.Text, "choices-") {
			slots++
		}
	}
	if slots != 2*moved || moved > int(external.Slots)/3 {
		t.Errorf("%d of %d slots move, and %d elements change", moved, external.Slots, slots)
	}
	apply(t, b, with(3, service.Consistent{Slots: external.Slots, ClusterIPs: true}))
	if v := verdicts(k); !strings.Contains(v, "consistent-cluster-") {
		t.Errorf("not for the ClusterIP: %s", v)
	}
	apply(t, b, with(3, service.Consistent{}))
	if v := verdicts(k); strings.Contains(v, "consistent-") {
		t.Errorf("still consistent: %s", v)
	}
	wantUpToDate(t, k, with(3, service.Consistent{}))
}
