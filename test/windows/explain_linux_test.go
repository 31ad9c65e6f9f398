// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"slices"
	"strings"
	"testing"

	"kubeproxy/test/hns"
)

// TestExplain asks the running proxy what happens to connections: while HNS has what it
// should, and after another program replaced a load balancer and deleted another one.
func TestExplain(t *testing.T) {
	n := newNode(t, hns.Options{Version: hns.Version{Major: 15, Minor: 5}})
	web, cart, _ := shop()
	n.save(t, web, cart)
	n.start(t, "--iptables-sync-period=1h") // nothing is repaired meanwhile
	n.awaitProgrammed(t, web, cart)
	explain := func(code int, destination string, words ...string) {
		t.Helper()
		got, out := n.run(t, "explain", "10.244.1.11", destination)
		for _, w := range words {
			if got != code || !strings.Contains(strings.Join(strings.Fields(out), " "), w) {
				t.Errorf("explain %s: exit %d, want %d; want %q in\n%s", destination, got, code, w, out)
			}
		}
	}
	ids := map[string]string{}
	for _, lb := range n.hns.Objects(hns.LoadBalancer) {
		ids[strings.Join(lb.VIPs(), "")] = strings.ToLower(lb.ID())
	}
	const agrees = "The node does what it should."
	explain(0, web.clusterIP()+":80", agrees, "network vxlan0 Overlay, HNS 15.5", "load balancer "+ids[web.clusterIP()]+" tcp 10.96.0.10:80 -> :8080", "10.244.1.11 local", "10.244.2.11 remote 02-11-0a-f4-02-0b via 192.0.2.11")
	explain(0, "node:30020", agrees, "tcp node:30020 -> :8080 local-routed external", "of shop/cart:web")

	n.replaceLoadBalancer(t, web.clusterIP())
	if err := n.hns.Delete(hns.LoadBalancer, ids[cart.clusterIP()]); err != nil {
		t.Fatal(err)
	}
	calls := n.hns.Calls()
	explain(1, web.clusterIP()+":80", "has the target port 9090, and should have 8080", "the node also sends it to 10.244.2.11:9090", "lacks endpoint")
	explain(1, cart.clusterIP()+":80", "no load balancer has tcp 10.96.0.20:80, of shop/cart:web", "the node does leave it alone, and should forward")
	if calls = n.hns.Calls().Sub(calls); calls.Writes("") > 0 || calls.Lists(hns.LoadBalancer) != 2 {
		t.Errorf("two questions cost %s, want a list each and no change", calls)
	}
	n.stop(t)
}

// replaceLoadBalancer replaces the load balancer at vip by one to another port and fewer
// endpoints.
func (n *node) replaceLoadBalancer(t *testing.T, vip string) {
	t.Helper()
	for _, lb := range n.hns.Objects(hns.LoadBalancer) {
		if !slices.Contains(lb.VIPs(), vip) {
			continue
		}
		if err := n.hns.Delete(hns.LoadBalancer, lb.ID()); err != nil {
			t.Fatal(err)
		}
		var ends []any
		for _, e := range n.hns.Objects(hns.Endpoint) {
			if e.IPs()[0].String() == "10.244.2.11" {
				ends = append(ends, e.ID())
			}
		}
		if _, err := n.hns.AddLoadBalancer(hns.Document{
			"HostComputeEndpoints": ends, "FrontendVIPs": []any{vip},
			"PortMappings": []any{map[string]any{"Protocol": 6, "InternalPort": 9090, "ExternalPort": 80}},
		}); err != nil {
			t.Fatal(err)
		}
	}
}
