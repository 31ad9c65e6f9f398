// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"net/netip"
	"slices"
	"testing"

	"kubeproxy/common/service"
)

// Elements that Ports share are split like others: they take the most memory of all.
func TestApplyCutsSharedElements(t *testing.T) {
	k := &fake{}
	b := &Backend{driver: k}
	var sizes []int
	k.refuse = func(ops []op) error {
		sizes = append(sizes, len(ops))
		return nil
	}
	const services, ends = 100, 200
	var ports []*service.Port
	for p := range simple(services).Ports(service.IPv4) {
		c := *p
		c.Cluster = nil
		for i := range ends {
			addr := netip.AddrFrom4([4]byte{10, 244, byte(len(ports)), byte(i)})
			c.Cluster = append(c.Cluster, service.Endpoint{Addr: netip.AddrPortFrom(addr, 8080)})
		}
		ports = append(ports, &c)
	}
	all := service.New(1, &service.Node{NodePorts: service.AnyAddress()}, ports)
	for _, want := range []*service.Snapshot{all, simple(0)} {
		sizes = nil
		apply(t, b, want)
		if most := slices.Max(sizes); most > chunk+sharedUnit || len(sizes) < 5 || len(sizes) > 7 {
			t.Errorf("transactions of %v operations, want some of about %d", sizes, chunk)
		}
		wantUpToDate(t, k, want)
	}
}
