// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"maps"
	"net/netip"
	"slices"
	"testing"

	"kubeproxy/test/hns"
)

// TestTakesOverFromKubeProxy has load balancers as kube-proxy creates them for a
// ClusterIP and a NodePort, with port flags 0 and 18. The proxy keeps them unchanged. See
// pkg/proxy/winkernel in kubernetes/kubernetes.
func TestTakesOverFromKubeProxy(t *testing.T) {
	n := newNode(t, hns.Options{Version: hns.Version{Major: 13, Minor: 3}})
	web := app{"web", 10, []string{"10.244.1.11", "10.244.2.11"}}
	vip := netip.MustParseAddr("10.244.1.77")
	if _, err := n.hns.AddPod("vxlan0", "sourceVip", vip); err != nil {
		t.Fatal(err)
	}
	remote, err := n.hns.AddRemote("vxlan0", netip.MustParseAddr("10.244.2.11"), n.Other.IPv4, "02-11-0a-f4-02-0b")
	if err != nil {
		t.Fatal(err)
	}
	to := []any{remote}
	for _, e := range n.hns.Objects(hns.Endpoint) {
		if !e.Remote() && e.IPs()[0].String() == web.pods[0] {
			to = append(to, e.ID())
		}
	}
	made := map[string]bool{}
	for _, d := range []hns.Document{
		{"FrontendVIPs": []any{web.clusterIP()}, "PortMappings": []any{map[string]any{"Protocol": 6, "InternalPort": target, "ExternalPort": 80}}},
		{"PortMappings": []any{map[string]any{"Protocol": 6, "InternalPort": target, "ExternalPort": int(web.nodePort()), "Flags": 18}}},
	} {
		d["SourceVIP"], d["HostComputeEndpoints"] = vip.String(), to
		id, err := n.hns.AddLoadBalancer(d)
		if err != nil {
			t.Fatal(err)
		}
		made[id] = true
	}
	n.save(t, web)
	n.start(t, "--source-vip="+vip.String())
	n.await(t, "two resyncs", func() bool { return n.hns.Calls().Lists(hns.LoadBalancer) >= 3 })
	n.awaitProgrammed(t, web)
	if calls := n.hns.Calls(); calls.Writes(hns.LoadBalancer) != 0 {
		t.Errorf("%s, want no load balancer changed", calls)
	}
	for _, lb := range n.hns.Objects(hns.LoadBalancer) {
		if !made[lb.ID()] {
			t.Errorf("load balancer %s is new, want %v kept", lb.ID(), slices.Collect(maps.Keys(made)))
		}
	}
	n.stop(t)
}
