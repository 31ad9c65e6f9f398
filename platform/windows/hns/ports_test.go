// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"fmt"
	"strings"
	"testing"

	"kubeproxy/common/service"
)

func webName(i int) string { return fmt.Sprintf("web-%03d", i) }

// webNames returns the names of those from first on.
func webNames(first, n int) []string {
	var all []string
	for i := range n {
		all = append(all, webName(first+i))
	}
	return all
}

// manyServices is a snapshot of n Services with a ClusterIP, whose names count from 0.
func manyServices(generation uint64, n int) *service.Snapshot {
	var all []*service.Port
	for i := range n {
		all = append(all, clusterIP(webName(i), fmt.Sprintf("10.96.%d.%d", i/250, 1+i%250), "10.244.1.11:80"))
	}
	return snapshot(generation, all...)
}

// TestDynamicPortsRunOut checks load balancers that HNS rejects without dynamic ports.
// The error names the remedy and does not blame a listening program. There are few calls
// and no listings, and available ports are noticed. If the system does not report what is
// left, load balancers are counted.
func TestDynamicPortsRunOut(t *testing.T) {
	for name, tt := range map[string]struct {
		blocks int
		silent bool
	}{"asked": {3, false}, "counted": {UsualDynamicPorts / PortBlockSize, true}} {
		t.Run(name, func(t *testing.T) {
			b := newTestNode(t, v13, bridgeN)
			b.pods("10.244.1.11")
			var condition string
			b.backend.host.OnShortage(func(text string) { condition = text })
			b.hns.portBlocks, b.hns.portsUnknown = tt.blocks, tt.silent
			want := manyServices(1, tt.blocks+4)
			creates, lists := 0, 0
			for range 33 { // one second each
				_, err := b.round(want)
				wantFailed(t, err, "no 64 dynamic TCP ports of the node are left; --enable-dsr or winkernel.enableDSR", webNames(tt.blocks, 4)...)
				if strings.Contains(err.Error(), "listens") {
					t.Fatalf("somebody is said to listen: %v", err)
				}
				creates += b.hns.calls["create load balancer"]
				lists += b.hns.calls["list load balancers"]
			}
			if len(b.hns.balancers) != tt.blocks || creates > tt.blocks+6 || lists > 3 {
				t.Errorf("%d load balancers by %d creating calls and %d listings", len(b.hns.balancers), creates, lists)
			}
			if !strings.HasPrefix(condition, "4 load balancers over IPv4 and TCP are missing") || strings.Contains(condition, "web") {
				t.Errorf("the condition is %q", condition)
			}
			b.hns.portBlocks += 10
			b.now = b.now.Add(maxBackoff)
			b.converge(want)
			if condition != "" {
				t.Errorf("the condition stays: %q", condition)
			}
		})
	}
}

// TestDirectReturnNeedsNoPorts applies the remedy.
func TestDirectReturnNeedsNoPorts(t *testing.T) {
	b := newTestNode(t, v13, bridgeN)
	b.pods("10.244.1.11")
	b.hns.portBlocks = 3
	want := manyServices(1, 7)
	_, err := b.round(want)
	wantFailed(t, err, "dynamic TCP ports", webNames(3, 4)...)
	b.options.DSR = true
	b.restart()
	b.converge(want)
	if len(b.hns.balancers) != 7 {
		t.Errorf("%d load balancers, want 7", len(b.hns.balancers))
	}
}

// An exhausted pool does not block load balancers that need no port of it.
func TestOtherPoolsGoOn(t *testing.T) {
	b := newTestNode(t, v13, bridgeN)
	b.pods("10.244.1.11")
	b.hns.portBlocks = 1
	udp := clusterIP("dns", "10.96.0.10", "10.244.1.11:53")
	udp.Name.Protocol = service.UDP
	local := clusterIP("zz-local", "10.96.0.12", "10.244.1.11:80")
	local.External, local.Local = service.PolicyLocal, local.Cluster
	local.Frontends = []service.Frontend{{Kind: service.ExternalIP, Addr: addr("198.51.100.10"), Port: 80}}
	want := snapshot(1, clusterIP("a", "10.96.0.13", "10.244.1.11:80"), clusterIP("b", "10.96.0.14", "10.244.1.11:80"), udp, local)
	_, err := b.round(want)
	wantFailed(t, err, "dynamic TCP ports", "b")
	if len(b.hns.balancers) != 3 {
		t.Errorf("%v, want all but one", b.balancerTexts())
	}
}

func TestMorePorts(t *testing.T) {
	tcp, udp6 := Key{Protocol: service.TCP}, Key{Family: service.IPv6, Protocol: service.UDP}
	for _, tt := range []struct {
		site Site
		key  Key
		want string
	}{
		{Site{Version: Version{10, 1}}, tcp, "HNS 10.1 has no direct server return, which needs none: netsh int ipv4 set dynamicportrange tcp"},
		{Site{Version: v13}, tcp, "--enable-dsr or winkernel.enableDSR serves ClusterIPs without them"},
		{Site{Version: v13, Options: Options{DSR: true}}, udp6, "externalTrafficPolicy Local serves other addresses than ClusterIPs without them; netsh int ipv6 set dynamicportrange udp"},
	} {
		if got := tt.site.portShortageHint(tt.key); !strings.HasPrefix(got, tt.want) {
			t.Errorf("%q, want %q", got, tt.want)
		}
	}
}

// TestDriversPassPortsOn calls PortsLeft through the program's wrapping drivers.
func TestDriversPassPortsOn(t *testing.T) {
	k := newFake(v13)
	k.portBlocks = 1
	d := Metered(WithTimeout(k, func(string) {}, func() {}), func(Call) { t.Error("that is no call to HNS") })
	for _, want := range []bool{true, false} {
		if left, err := d.PortsLeft(t.Context(), Key{Protocol: service.TCP}); err != nil || left != want {
			t.Errorf("left %t, %v; want %t", left, err, want)
		}
		k.balancers["x"] = LoadBalancer{ID: "x", Key: Key{Protocol: service.TCP}}
	}
	k.portsUnknown = true
	if _, err := d.PortsLeft(t.Context(), Key{}); err == nil {
		t.Error("no error where nobody knows")
	}
}
