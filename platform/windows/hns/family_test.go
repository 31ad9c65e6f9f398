// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"net/netip"
	"testing"
	"time"

	"kubeproxy/common/service"
)

// TestFamiliesOfNetworks checks that the families that a network and its HNS support are
// programmed. The reason for an unsupported one is reported, without a call that changes
// anything.
func TestFamiliesOfNetworks(t *testing.T) {
	only4, only6 := bridgeN, bridgeN
	only4.Subnets, only6.Subnets = bridgeN.Subnets[:1], bridgeN.Subnets[1:]
	for name, tt := range map[string]struct {
		network Network
		version Version
		without [2]string
	}{
		"both":               {bridgeN, v13, [2]string{}},
		"an old HNS":         {bridgeN, Version{9, 5}, [2]string{1: "HNS 9.5 has no dual stack: want Windows Server 2022 or newer"}},
		"an overlay":         {overlayN, v15, [2]string{1: "HNS has no IPv6 on overlay networks"}},
		"IPv4 subnets alone": {only4, v13, [2]string{1: `network "cbr0" has no IPv6 subnet`}},
		"IPv6 subnets alone": {only6, v13, [2]string{`network "cbr0" has no IPv4 subnet`, ""}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, f := range service.Families {
				programFamily(t, f, newTestNode(t, tt.version, tt.network), tt.without[f])
			}
		})
	}
}

func programFamily(t *testing.T, f service.Family, b *testNode, without string) {
	t.Helper()
	h := NewHost(b.hns, b.store, "node-a", nil)
	backend := New(h, f, Options{SourceVIP: addr("10.244.1.2")}, time.Minute)
	backend.hostMAC = func(netip.Addr) (string, error) { return "00-15-5d-aa-aa-aa", nil }
	web := clusterIP("web", "10.96.0.10", "10.244.2.11:80@b")
	if f == service.IPv6 {
		web = clusterIP("web", "fd00:10:96::10", "[fd00:10:244:2::11]:80@b")
		web.Family = f
	}
	want := snapshot(1, web)
	p, err := backend.Plan(t.Context(), want)
	if err != nil {
		t.Fatal(err)
	}
	if got := p.Outcome().Unavailable; got != without || p.Empty() != (without != "") {
		t.Fatalf("%s: without %q, want %q; plan:\n%s", f, got, without, p.Changes())
	}
	if p.Empty() {
		return
	}
	if err := p.Apply(t.Context()).Err; err != nil || len(b.hns.balancers) != 1 {
		t.Errorf("%s: %d load balancers, %v", f, len(b.hns.balancers), err)
	}
}
