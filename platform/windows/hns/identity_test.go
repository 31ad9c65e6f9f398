// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"kubeproxy/common/service"
)

// Load balancers differ if anything but the ID differs.
func TestEqual(t *testing.T) {
	lb := LoadBalancer{ID: "x", Key: Key{VIP: addr("10.96.0.10"), Port: 80, Protocol: service.TCP}, TargetPort: 80, Endpoints: []string{"a", "b"}, SourceVIP: nodeA}
	for name, change := range map[string]func(*LoadBalancer){
		"address":      func(l *LoadBalancer) { l.VIP = nodeA },
		"port":         func(l *LoadBalancer) { l.Port++ },
		"protocol":     func(l *LoadBalancer) { l.Protocol = service.UDP },
		"family":       func(l *LoadBalancer) { l.Family = service.IPv6 },
		"target port":  func(l *LoadBalancer) { l.TargetPort++ },
		"endpoints":    func(l *LoadBalancer) { l.Endpoints = []string{"a", "c"} },
		"source VIP":   func(l *LoadBalancer) { l.SourceVIP = nodeB },
		"DSR":          func(l *LoadBalancer) { l.DSR = true },
		"flags":        func(l *LoadBalancer) { l.Flags = ILB },
		"distribution": func(l *LoadBalancer) { l.Distribution = DistributionSourceIP },
		"more keys":    func(l *LoadBalancer) { l.ExtraKeys = []Key{{Port: 1}} },
		"odd":          func(l *LoadBalancer) { l.Unsupported = true },
	} {
		other := lb
		change(&other)
		if lb.equal(&other) || other.equal(&lb) {
			t.Errorf("%s does not count", name)
		}
	}
	other := lb
	other.ID = "y"
	if !lb.equal(&other) {
		t.Error("the ID counts")
	}
}

// Ports of one Service share forwarded health checks and the endpoint of its address.
// Shared objects stay until the last port is removed.
func TestSharedByPorts(t *testing.T) {
	b := newTestNode(t, v13, overlayN)
	b.options = Options{ForwardHealthChecks: true, RootEndpoint: "cbr0", HealthzPort: 10256}
	b.restart()
	b.pods("10.244.1.11")
	b.addRootEndpoint()
	port := func(name string, n uint16) *service.Port {
		p := clusterIP("store", "10.96.0.10", "10.244.1.11:80")
		p.Name.Port, p.Frontends[0].Port = name, n
		p.Frontends = append(p.Frontends, frontend(service.LoadBalancerIP, "203.0.113.5", n))
		return p
	}
	http, https := port("http", 80), port("https", 443)
	b.converge(snapshot(1, http, https))
	for _, left := range []*service.Port{http, https} {
		text := b.converge(snapshot(2, left))
		if strings.Contains(text, "10256") || strings.Contains(text, "endpoint") {
			t.Errorf("what %s still needs goes:\n%s", left.Name, text)
		}
		b.converge(snapshot(3, http, https))
	}
	text := b.converge(snapshot(4))
	for _, want := range []string{"- loadbalancer tcp 203.0.113.5:10256", "- endpoint 10.96.0.10"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in:\n%s", want, text)
		}
	}
}

// TestSharedFlags has Services share a health check that one of them needs with other flags.
func TestSharedFlags(t *testing.T) {
	b := newTestNode(t, v13, overlayN)
	b.options = Options{ForwardHealthChecks: true, RootEndpoint: "cbr0", HealthzPort: 10256}
	b.restart()
	b.pods("10.244.1.11")
	b.addRootEndpoint()
	port := func(name string, n uint16, keep bool) *service.Port {
		p := clusterIP(name, fmt.Sprintf("10.96.0.%d", n), "10.244.1.11:80")
		p.KeepVIP, p.Frontends = keep, append(p.Frontends, frontend(service.LoadBalancerIP, "203.0.113.5", n))
		return p
	}
	plain, kept := port("plain", 80, false), port("kept", 81, true)
	for i, step := range []struct {
		ports []*service.Port
		flags PortFlags
	}{
		{[]*service.Port{plain}, 0}, {[]*service.Port{kept, plain}, preserveFlags}, {[]*service.Port{plain}, 0},
		{[]*service.Port{plain, kept}, preserveFlags}, {[]*service.Port{kept}, preserveFlags},
	} {
		b.converge(snapshot(uint64(i+1), step.ports...))
		for _, lb := range b.hns.balancers {
			if lb.Port == 10256 && lb.Flags != step.flags {
				t.Errorf("step %d: flags %v, want %v", i, lb.Flags, step.flags)
			}
		}
	}
}

// TestEndpointOfOthersStays has a Service use a remote endpoint that the network plugin made, and leave.
func TestEndpointOfOthersStays(t *testing.T) {
	b := newTestNode(t, v13, bridgeN)
	b.hns.endpoints["theirs"] = Endpoint{ID: "theirs", Name: "other", Network: bridgeN.ID, Remote: true, MAC: remoteMAC(addr("10.244.2.11")), Addrs: []netip.Addr{addr("10.244.2.11")}}
	b.converge(snapshot(1, clusterIP("web", "10.96.0.10", "10.244.2.11:80@b")))
	if len(b.hns.endpoints) != 1 {
		t.Errorf("the endpoint is not used: %v", b.hns.endpoints)
	}
	b.converge(snapshot(2))
	if len(b.hns.endpoints) != 1 {
		t.Error("the endpoint of others is gone")
	}
}

// TestPodInAnotherNetwork names the network into which the container runtime put a pod.
func TestPodInAnotherNetwork(t *testing.T) {
	b := newTestNode(t, v13, bridgeN)
	b.pods("10.244.1.11")
	b.hns.networks = append(b.hns.networks, Network{ID: "net-nat", Name: "nat", Kind: "NAT"})
	b.hns.endpoints["n"] = Endpoint{ID: "n", Name: "pod", Network: "net-nat", HasNamespace: true, Addrs: []netip.Addr{addr("172.25.74.145")}}
	b.hns.endpoints["r"] = Endpoint{ID: "r", Network: "net-nat", Remote: true, Addrs: []netip.Addr{addr("10.244.1.99")}} // of no pod here
	_, err := b.round(snapshot(1, clusterIP("web", "10.96.0.10", "172.25.74.145:80"), clusterIP("api", "10.96.0.11", "10.244.1.99:80")))
	for _, want := range []string{`endpoint 172.25.74.145 is in network "nat", not in "cbr0"`, `network "cbr0" does not have it yet`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// An endpoint that HNS rejects is requested once per sync. Every Service that needs it
// reports the error.
func TestRefusedEndpointIsAskedForOnce(t *testing.T) {
	b := newTestNode(t, v13, bridgeN)
	b.hns.refuse = func(op string) error {
		if op == "create endpoint" {
			return codeError(op, 0x57)
		}
		return nil
	}
	_, err := b.round(snapshot(1, clusterIP("a", "10.96.0.10", "10.244.2.11:80@b"), clusterIP("b", "10.96.0.11", "10.244.2.11:80@b")))
	wantFailed(t, err, "HNS rejects a parameter", "a", "b")
	if n := b.hns.calls["create endpoint"]; n != 1 {
		t.Errorf("asked %d times, want once", n)
	}
}

// A Service that is removed while its endpoints have a wrong route is removed for good.
func TestMisroutedAndGone(t *testing.T) {
	b := newTestNode(t, v13, overlayN)
	b.pods("10.244.1.11")
	web := clusterIP("web", "10.96.0.10", "10.244.1.11:80", "10.244.2.11:80@b")
	gone := clusterIP("gone", "10.96.0.11", "10.244.1.11:80", "10.244.2.11:80@b")
	b.converge(snapshot(1, web, gone))
	moved := overlayN
	moved.Routes = []Route{{prefix("10.244.2.0/24"), addr("192.0.2.77")}}
	b.hns.networks[0] = moved
	b.restart()
	b.converge(snapshot(2, web))
	if n := len(b.hns.balancers); n != 1 {
		t.Errorf("%d load balancers, want 1", n)
	}
}
