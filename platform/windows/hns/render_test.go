// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"net/netip"
	"strings"
	"testing"
)

// TestRenderUnknownMAC renders for a dump in which kube-proxy has endpoints with the MAC of the node, which the dump does
// not have.
func TestRenderUnknownMAC(t *testing.T) {
	want := snapshot(1, clusterIP("web", "10.96.0.10", "10.244.2.11:80@b"), clusterIP("api", "10.96.0.11", "10.244.2.11:80@b"))
	l := Listing{Version: v13, Networks: []Network{overlayN}, Endpoints: []Endpoint{
		{ID: "k", Name: "Ethernet", Network: overlayN.ID, Addrs: []netip.Addr{addr("10.96.0.10")}, MAC: "00-15-5D-AA-AA-AA", Provider: nodeA, Remote: true},
	}}
	all, _, err := Render(want, l, Options{})
	if err != nil {
		t.Fatal(err)
	}
	text := all.String()
	for _, line := range []string{
		"endpoint 10.96.0.10 remote 00-15-5D-AA-AA-AA via 192.0.2.10", "endpoint 10.96.0.11 remote the node's MAC via 192.0.2.10",
	} {
		if !strings.Contains(text, line+"\n") {
			t.Errorf("want %q in\n%s", line, text)
		}
	}
	if strings.Contains(text, "leads elsewhere") || strings.Contains(text, "00-00-00") {
		t.Errorf("an unknown MAC counts:\n%s", text)
	}
}
