// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"kubeproxy/common/service"
	"kubeproxy/test/kit"
)

// Both families list at about the same time. One listing serves both, until one of them
// changes something.
func TestSharedListing(t *testing.T) {
	lists := 0
	k := newFake(Version{15, 5})
	k.balancers["1"] = LoadBalancer{ID: "1"}
	h := NewHost(onLists(k, func() { lists++ }), &memoryStore{}, "node", nil)
	list := func(f service.Family, want int) {
		t.Helper()
		_, err := h.list(t.Context(), f)
		kit.Need(t, err == nil && lists == want, "%s: listed %d times, want %d, %v", f, lists, want, err)
	}
	list(service.IPv6, 1)
	list(service.IPv4, 1)
	list(service.IPv6, 2)
	h.recordBalancer(&LoadBalancer{ID: "1"}, "shop/web")
	list(service.IPv4, 3) // the listing of IPv6 does not contain it
	list(service.IPv6, 3)
	list(service.IPv6, 4)
	h.release("1")
	list(service.IPv4, 5)
	h.markWritten()
	list(service.IPv6, 6) // a listing shows changes in place
	h.recordEndpoint(&Endpoint{ID: "2", Addrs: []netip.Addr{nodeA}})
	list(service.IPv4, 7)
	h.release("2")
	list(service.IPv6, 8)
	kit.Check(t, !h.owns("1") && !h.owns("2"), "what was deleted is ours")
}

// Load balancers differ if anything but the ID differs.
func TestEqual(t *testing.T) {
	lb := LoadBalancer{ID: "x", Address: service.Address{Addr: addr("10.96.0.10"), Port: 80, Protocol: service.TCP}, TargetPort: 80, Endpoints: []string{"a", "b"}, SourceVIP: nodeA}
	for name, change := range map[string]func(*LoadBalancer){
		"address":      func(l *LoadBalancer) { l.Addr = nodeA },
		"port":         func(l *LoadBalancer) { l.Port++ },
		"protocol":     func(l *LoadBalancer) { l.Protocol = service.UDP },
		"family":       func(l *LoadBalancer) { l.Family = service.IPv6 },
		"target port":  func(l *LoadBalancer) { l.TargetPort++ },
		"endpoints":    func(l *LoadBalancer) { l.Endpoints = []string{"a", "c"} },
		"source VIP":   func(l *LoadBalancer) { l.SourceVIP = nodeB },
		"DSR":          func(l *LoadBalancer) { l.DSR = true },
		"flags":        func(l *LoadBalancer) { l.Flags = ILB },
		"distribution": func(l *LoadBalancer) { l.Distribution = DistributionSourceIP },
		"more keys":    func(l *LoadBalancer) { l.ExtraKeys = []service.Address{{Port: 1}} },
		"odd":          func(l *LoadBalancer) { l.Unsupported = true },
	} {
		other := lb
		change(&other)
		kit.Check(t, !lb.equal(&other) && !other.equal(&lb), "%s does not count", name)
	}
	other := lb
	other.ID = "y"
	kit.Check(t, lb.equal(&other), "the ID counts")
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
		kit.Check(t, !strings.Contains(text, "10256") && !strings.Contains(text, "endpoint"),
			"what %s still needs goes:\n%s", left.Name, text)
		b.converge(snapshot(3, http, https))
	}
	text := b.converge(snapshot(4))
	for _, want := range []string{"- loadbalancer tcp 203.0.113.5:10256", "- endpoint 10.96.0.10"} {
		kit.Check(t, strings.Contains(text, want), "%q is missing in:\n%s", want, text)
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
			kit.Check(t, lb.Port != 10256 || lb.Flags == step.flags,
				"step %d: flags %v, want %v", i, lb.Flags, step.flags)
		}
	}
}

// TestEndpointOfOthersStays has a Service use a remote endpoint that the network plugin made, and leave.
func TestEndpointOfOthersStays(t *testing.T) {
	b := newTestNode(t, v13, bridgeN)
	b.hns.endpoints["theirs"] = Endpoint{ID: "theirs", Name: "other", Network: bridgeN.ID, Remote: true, MAC: remoteMAC(addr("10.244.2.11")), Addrs: []netip.Addr{addr("10.244.2.11")}}
	b.converge(snapshot(1, clusterIP("web", "10.96.0.10", "10.244.2.11:80@b")))
	kit.Check(t, len(b.hns.endpoints) == 1, "the endpoint is not used: %v", b.hns.endpoints)
	b.converge(snapshot(2))
	kit.Check(t, len(b.hns.endpoints) == 1, "the endpoint of others is gone")
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
		kit.Check(t, err != nil && strings.Contains(err.Error(), want), "%v, want %q", err, want)
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
	n := b.hns.calls["create endpoint"]
	kit.Check(t, n == 1, "asked %d times, want once", n)
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
	kit.Check(t, len(b.hns.balancers) == 1, "%d load balancers, want 1", len(b.hns.balancers))
}

// ownEndpoints returns the names of our endpoints with their networks.
func (tn *testNode) ownEndpoints() (names []string) {
	for _, e := range tn.hns.endpoints {
		if strings.HasPrefix(e.Name, "kube-proxy-") {
			names = append(names, e.Network+" "+e.Name+" "+e.Addrs[0].String())
		}
	}
	return names
}

// After a change of the network or of the source VIP, none of our objects remain for the
// old one.
func TestNetworkOrSourceVIPChanges(t *testing.T) {
	b := newTestNode(t, v13, overlayN)
	b.options.NetworkName = overlayN.Name
	b.restart()
	b.pods("10.244.1.11")
	want := snapshot(1, clusterIP("web", "10.96.0.10", "10.244.1.11:80", "10.244.2.11:80@b"))
	b.converge(want)

	b.options.SourceVIP = addr("10.244.1.77")
	b.restart()
	b.converge(want)
	got := strings.Join(b.ownEndpoints(), "\n")
	kit.Check(t, strings.Count(got, sourceVIPName) == 1 && strings.Contains(got, "10.244.1.77"), "after another source VIP was chosen:\n%s", got)

	b.hns.networks = append(b.hns.networks, bridgeN)
	b.hns.endpoints["pod"] = Endpoint{ID: "pod", Name: "pod", Network: bridgeN.ID, Addrs: []netip.Addr{addr("10.244.1.11")}}
	b.options = Options{NetworkName: bridgeN.Name}
	b.restart()
	b.converge(want)
	if got := b.ownEndpoints(); len(got) != 1 || got[0] != bridgeN.ID+" kube-proxy-remote-10.244.2.11 10.244.2.11" {
		t.Errorf("after another network was chosen: %v", got)
	}
}

// A source VIP that another owner's load balancer uses stays.
func TestSourceVIPOfOthers(t *testing.T) {
	b := newTestNode(t, v13, overlayN)
	b.pods("10.244.1.11")
	want := snapshot(1, clusterIP("web", "10.96.0.10", "10.244.1.11:80"))
	b.converge(want)
	k := service.Address{Addr: addr("172.30.0.1"), Port: 1, Protocol: service.TCP}
	b.hns.balancers["foreign"] = LoadBalancer{ID: "foreign", Address: k, TargetPort: 1, Endpoints: []string{"endpoint-000001"}, SourceVIP: addr("10.244.1.254")}
	b.options.SourceVIP = addr("10.244.1.77")
	b.restart()
	b.converge(want)
	got := strings.Join(b.ownEndpoints(), "\n")
	kit.Check(t, strings.Count(got, sourceVIPName) == 2, "endpoints of ours, want both source VIPs:\n%s", got)
}

// cleanupFailures are the causes that stop a Cleanup, and the expected error texts.
var cleanupFailures = map[string]struct {
	spoil func(*testNode)
	want  []string
}{
	"HNS goes down": {
		func(b *testNode) {
			n := 0
			b.hns.refuse = func(op string) error {
				if n++; n > 4 { // three listings and a deletion
					return codeError(op, 0x6ba)
				}
				return nil
			}
		},
		[]string{"HNS is not running", "load balancer tcp 10.96.0.11:80", "load balancer tcp 10.96.0.12:80", "endpoint kube-proxy-remote-10.244.2.11", "endpoint kube-proxy-remote-10.244.2.12"},
	},
	"HNS refuses one": {
		func(b *testNode) {
			n := 0
			b.hns.refuse = func(op string) error {
				if n++; n == 4 {
					return codeError(op, 0x57)
				}
				return nil
			}
		},
		[]string{"parameter (0x57)", "still in HNS: load balancer tcp 10.96.0.10:80, endpoint kube-proxy-remote-10.244.2.11;"},
	},
	"HNS says it did": {
		func(b *testNode) {
			b.restartOn(onWrites(b.hns, func(op string, do func()) {
				if op == "delete endpoint" {
					do()
				}
			}))
		},
		[]string{"still in HNS: load balancer tcp 10.96.0.10:80, load balancer tcp 10.96.0.11:80, load balancer tcp 10.96.0.12:80;"},
	},
	"somebody else uses it": {
		func(b *testNode) {
			k := service.Address{Addr: addr("172.30.0.1"), Port: 1, Protocol: service.TCP}
			other := k
			other.Port = 2
			for id, e := range b.hns.endpoints {
				if e.Remote && e.HasAddr(addr("10.244.2.11")) {
					b.hns.balancers["foreign"] = LoadBalancer{ID: "foreign", Address: k, ExtraKeys: []service.Address{other}, TargetPort: 1, Endpoints: []string{id}}
				}
			}
		},
		[]string{"still in HNS: endpoint kube-proxy-remote-10.244.2.11 (load balancer foreign, which is not ours, leads to it);"},
	},
}

// A Cleanup that cannot complete names what is left, whatever stopped it.
func TestCleanupNamesWhatIsLeft(t *testing.T) {
	for name, c := range cleanupFailures {
		t.Run(name, func(t *testing.T) {
			b := newTestNode(t, v13, bridgeN)
			b.pods("10.244.1.11")
			b.converge(snapshot(1, clusterIP("web", "10.96.0.10", "10.244.1.11:80", "10.244.2.11:80@b"), clusterIP("api", "10.96.0.11", "10.244.1.11:80"), clusterIP("out", "10.96.0.12", "10.244.2.12:80@b")))
			c.spoil(b)
			err := b.backend.Cleanup(t.Context())
			kit.Need(t, err != nil, "Cleanup says that all is well")
			for _, text := range c.want {
				kit.Check(t, strings.Contains(err.Error(), text), "want %q in:\n%v", text, err)
			}
		})
	}
}

// Two Services share an address. One has a frontend on the port of the other's forwarded
// health checks. It keeps the port through all changes. The health checks get the port
// once it is free.
func TestHealthCheckYieldsPort(t *testing.T) {
	b := newTestNode(t, v13, bridgeN)
	b.options = Options{ForwardHealthChecks: true, RootEndpoint: "cbr0", HealthzPort: 10256}
	b.restart()
	b.pods("10.244.1.11", "10.244.1.12")
	b.hns.endpoints["root"] = Endpoint{ID: "root", Name: "cbr0", Network: bridgeN.ID, Addrs: []netip.Addr{addr("10.244.1.2")}}
	balanced := func(name, vip string, port uint16, endpoints ...string) *service.Port {
		p := clusterIP(name, vip, endpoints...)
		p.Frontends = append(p.Frontends, service.Frontend{Kind: service.LoadBalancerIP, Addr: addr("203.0.113.5"), Port: port})
		return p
	}
	web, more := balanced("web", "10.96.0.10", 80, "10.244.1.11:80"), balanced("web", "10.96.0.10", 80, "10.244.1.11:80", "10.244.1.12:80")
	owner := balanced("owner", "10.96.0.11", 10256, "10.244.1.11:81")
	for i, step := range []struct {
		ports []*service.Port
		want  string
	}{
		{[]*service.Port{web}, "tcp 203.0.113.5:10256 [10.244.1.2]"},
		{[]*service.Port{web, owner}, "tcp 203.0.113.5:10256 [10.244.1.11]"},
		{[]*service.Port{more, owner}, "tcp 203.0.113.5:10256 [10.244.1.11]"},
		{[]*service.Port{owner}, "tcp 203.0.113.5:10256 [10.244.1.11]"},
		{[]*service.Port{web, owner}, "tcp 203.0.113.5:10256 [10.244.1.11]"},
		{[]*service.Port{web}, "tcp 203.0.113.5:10256 [10.244.1.2]"},
	} {
		want := snapshot(uint64(i), step.ports...)
		_, _ = b.round(want) // reports that the owner's health checks do not reach the node
		got := strings.Join(b.balancerTexts(), "\n")
		kit.Check(t, strings.Contains(got, step.want), "step %d, want %s in:\n%s", i, step.want, got)
		b.now = b.now.Add(time.Minute)
		text, _ := b.round(want)
		kit.Check(t, text == "", "step %d, a resync still has to do:\n%s", i, text)
	}
}

// The endpoint of the source VIP disappears. It is created again with the address that
// our load balancers use, whatever others use, so nothing else changes.
func TestSourceVIPVanishes(t *testing.T) {
	b := newTestNode(t, v13, overlayN)
	b.pods("10.244.1.11", "10.244.1.200")
	want := snapshot(1, clusterIP("web", "10.96.0.10", "10.244.1.11:80"), clusterIP("api", "10.96.0.11", "10.244.2.11:80@b"))
	b.converge(want)
	k := service.Address{Addr: addr("172.30.0.1"), Port: 1, Protocol: service.TCP}
	b.hns.balancers["a-foreign"] = LoadBalancer{ID: "a-foreign", Address: k, TargetPort: 1, Endpoints: []string{"endpoint-000001"}, SourceVIP: addr("10.244.1.200")}
	for id, e := range b.hns.endpoints {
		if e.Name == sourceVIPName {
			delete(b.hns.endpoints, id)
		}
	}
	b.now = b.now.Add(time.Minute)
	text := b.converge(want)
	kit.Check(t, text == "+ endpoint kube-proxy-source-vip 10.244.1.254\n", "plan:\n%s", text)
	n := b.hns.writes()
	kit.Check(t, n == 1, "%d writing calls, want the endpoint: %v", n, b.hns.calls)
}

// An HNS that is starting first has no objects, not even a network, and later the
// previous ones. A Service that was removed meanwhile is still known as ours.
func TestNothingYet(t *testing.T) {
	b := newTestNode(t, v13, bridgeN)
	b.pods("10.244.1.11")
	b.converge(snapshot(1, clusterIP("web", "10.96.0.10", "10.244.1.11:80"), clusterIP("api", "10.96.0.11", "10.244.1.11:80")))
	full := *b.hns
	b.hns.networks, b.hns.endpoints, b.hns.balancers = nil, nil, nil
	want := snapshot(2, clusterIP("web", "10.96.0.10", "10.244.1.11:80"))
	b.restart()
	if p, err := b.backend.Plan(t.Context(), want); err == nil {
		t.Errorf("a plan without a network:\n%s", p.Changes())
	}
	kit.Check(t, b.store.document != nil, "the state file is gone")
	b.hns.networks, b.hns.endpoints, b.hns.balancers = full.networks, full.endpoints, full.balancers
	b.now = b.now.Add(time.Minute)
	b.converge(want)
	got := b.balancerTexts()
	kit.Check(t, len(got) == 1, "left: %v", got)
	b.hns.networks, b.hns.endpoints, b.hns.balancers = nil, nil, nil
	err := b.backend.Cleanup(t.Context())
	kit.Check(t, err == nil && b.store.document == nil, "Cleanup of nothing: %v, state file %s", err, b.store.document)
}

// An endpoint of another owner with a wrong route is not changed. The error describes the
// difference, also on networks without provider addresses.
func TestMisroutedByOthers(t *testing.T) {
	b := newTestNode(t, v13, bridgeN)
	b.hns.endpoints["other"] = Endpoint{ID: "other", Name: "other", Network: bridgeN.ID, Remote: true, Addrs: []netip.Addr{addr("10.244.2.11")}, MAC: "AA-BB-CC-00-00-01"}
	_, err := b.round(snapshot(1, clusterIP("web", "10.96.0.10", "10.244.2.11:80@b")))
	wantFailed(t, err, "endpoint other leads elsewhere, and is not ours: 10.244.2.11 remote AA-BB-CC-00-00-01, want 10.244.2.11 remote 02-11-0a-f4-02-0b", "web")
	_, ok := b.hns.endpoints["other"]
	kit.Check(t, ok && len(b.hns.endpoints) == 1, "endpoints: %v", b.hns.endpoints)
}

// A load balancer that a crash left as pending, and that exists, is no longer pending
// after a sync, even if there is nothing else to do. Another owner may use that address
// later.
func TestPendingRecordsEnd(t *testing.T) {
	b := newTestNode(t, v13, bridgeN)
	b.pods("10.244.1.11")
	want := snapshot(1, clusterIP("web", "10.96.0.10", "10.244.1.11:80"))
	b.hns.after = func(op string) error {
		if op == "create load balancer" {
			panic(errCrash)
		}
		return nil
	}
	func() {
		defer func() { _ = recover() }()
		b.converge(want)
	}()
	b.hns.after = nil
	if text := string(b.store.document); !strings.Contains(text, "tcp 10.96.0.10:80") || len(b.hns.balancers) != 1 {
		t.Fatalf("after the crash: %s, %v", text, b.balancerTexts())
	}
	b.restart()
	b.converge(want)
	if text := string(b.store.document); strings.Contains(text, "intended") || !strings.Contains(text, "shop/web") {
		t.Errorf("the state file has %s, want the load balancer and no intention", text)
	}
}

// TestPlantedRecord has a state file that somebody else wrote: it names a load balancer of another program, a pod and an
// endpoint of another network as ours. They stay, and what is ours goes.
func TestPlantedRecord(t *testing.T) {
	for name, keys := range map[string]string{"no keys": `{}`, "keys of something else": `{"foreign-1":"tcp 10.96.0.10:80"}`} {
		b := newTestNode(t, v13, bridgeN)
		b.pods("10.244.1.11")
		var pod string
		for id := range b.hns.endpoints {
			pod = id
		}
		b.hns.endpoints["elsewhere"] = Endpoint{ID: "elsewhere", Name: "x", Network: "nat", Addrs: []netip.Addr{addr("172.20.0.5")}}
		b.hns.balancers["foreign-1"] = LoadBalancer{ID: "foreign-1", Address: service.Address{Addr: addr("172.30.0.1"), Port: 443, Protocol: service.TCP}, TargetPort: 443, Endpoints: []string{pod}}
		b.store.document = fmt.Appendf(nil, `{"version":1,"node":"node-a","loadBalancers":{"foreign-1":"x"},"keys":%s,"endpoints":{"elsewhere":"172.20.0.5",%q:"10.244.1.11"},"intended":{}}`, keys, pod)
		b.restart()
		b.converge(snapshot(1, clusterIP("web", "10.96.0.10", "10.244.1.11:80")))
		err := b.backend.Cleanup(t.Context())
		kit.Check(t, err == nil, "%s: %v", name, err)
		_, pods := b.hns.endpoints[pod]
		_, elsewhere := b.hns.endpoints["elsewhere"]
		if _, stays := b.hns.balancers["foreign-1"]; !stays || !pods || !elsewhere || len(b.hns.balancers) != 1 {
			t.Errorf("%s: %d load balancers, of another program: %t; a pod: %t, an endpoint elsewhere: %t", name, len(b.hns.balancers), stays, pods, elsewhere)
		}
	}
}

// addKubeProxyObjects creates what kube-proxy creates for a Service of allKinds with the
// source VIP. It returns the IDs of the load balancers. Port flags are 0 for a ClusterIP,
// 18 for a NodePort, and 16 for external addresses. Endpoints have no names.
func (tn *testNode) addKubeProxyObjects(vip netip.Addr) []string {
	tn.t.Helper()
	network := tn.hns.networks[0].ID
	create := func(e Endpoint) string {
		e.Network = network
		created, err := tn.hns.CreateEndpoint(tn.t.Context(), e)
		if err != nil {
			tn.t.Fatal(err)
		}
		return created.ID
	}
	if tn.hns.networks[0].Kind == Overlay {
		create(Endpoint{Addrs: []netip.Addr{vip}})
		create(Endpoint{Addrs: []netip.Addr{addr("10.96.0.10")}, MAC: "00-15-5D-AA-AA-AA", Provider: nodeA, Remote: true})
	}
	to := []string{"endpoint-000001", create(Endpoint{Addrs: []netip.Addr{addr("10.244.2.11")}, MAC: "02-11-0A-F4-02-0B", Provider: nodeB, Remote: true})}
	slices.Sort(to)
	for _, x := range []struct {
		vip   string
		port  uint16
		flags PortFlags
	}{{"10.96.0.10", 80, 0}, {"", 30080, 18}, {"198.51.100.10", 80, 16}, {"203.0.113.10", 80, 16}} {
		lb := LoadBalancer{Address: service.Address{Port: x.port, Protocol: service.TCP}, TargetPort: 80, Endpoints: to, SourceVIP: vip, Flags: x.flags}
		if x.vip != "" {
			lb.Addr = addr(x.vip)
		}
		if _, err := tn.hns.CreateLoadBalancer(tn.t.Context(), lb); err != nil {
			tn.t.Fatal(err)
		}
	}
	clear(tn.hns.calls)
	return slices.Sorted(maps.Keys(tn.hns.balancers))
}

// Objects of kube-proxy are taken over unchanged. Only on a network of type L2Bridge or
// L2Tunnel they may lack a source VIP, and are then created again with the node's
// address.
func TestTakesOverFromKubeProxy(t *testing.T) {
	for _, tt := range []struct {
		network    Network
		given, vip string // configured, and in kube-proxy's load balancers
		writes     int
	}{
		{overlayN, "10.244.1.77", "10.244.1.77", 0},
		{bridgeN, "", nodeA.String(), 0},
		{bridgeN, "10.244.1.77", "10.244.1.77", 0},
		{bridgeN, "", "", 8},
	} {
		t.Run(fmt.Sprintf("%s, source VIP %q", tt.network.Kind, tt.vip), func(t *testing.T) {
			b := newTestNode(t, v13, tt.network)
			if tt.given != "" {
				b.options.SourceVIP = addr(tt.given)
			}
			b.restart()
			b.pods("10.244.1.11")
			vip, _ := netip.ParseAddr(tt.vip)
			created := b.addKubeProxyObjects(vip)
			for id, e := range b.hns.endpoints { // on these networks kube-proxy chooses the provider address
				if e.Remote && tt.network.Kind != Overlay {
					e.Provider = netip.Addr{}
					b.hns.endpoints[id] = e
				}
			}
			want := snapshot(1, allKinds("10.244.1.11:80", "10.244.2.11:80@b"))
			text := b.converge(want)
			n := b.hns.writes()
			kit.Check(t, n == tt.writes, "%d writing calls, want %d:\n%s", n, tt.writes, text)
			kept := slices.Equal(created, slices.Sorted(maps.Keys(b.hns.balancers)))
			kit.Check(t, kept == (tt.writes == 0), "load balancers kept: %t\n%s", kept, text)
			for _, lb := range b.hns.balancers {
				kit.Check(t, lb.SourceVIP.IsValid(), "load balancer %s has no source VIP", lb.Address)
			}
		})
	}
}

// remote returns the ID of the remote endpoint with an address, "" if there is none.
func (tn *testNode) remote(a string) string {
	for id, e := range tn.hns.endpoints {
		if e.Remote && e.HasAddr(addr(a)) {
			return id
		}
	}
	return ""
}

// withListed returns p with addresses that EndpointSlices list and that get no new
// connections.
func withListed(p *service.Port, addrs ...string) *service.Port {
	for _, a := range addrs {
		p.Listed = append(p.Listed, addr(a))
	}
	return p
}

// The remote endpoint of a pod that is terminating or temporarily unready stays the same
// object while a slice of any Service lists it.
func TestListedEndpointsStay(t *testing.T) {
	for _, v := range []Version{v13, v15} {
		for _, n := range []Network{overlayN, bridgeN} {
			for _, restart := range []bool{false, true} {
				t.Run(fmt.Sprintf("HNS %s, %s, restart %t", v, n.Kind, restart), func(t *testing.T) { listedStays(t, newTestNode(t, v, n), restart) })
			}
		}
	}
}

func listedStays(t *testing.T, b *testNode, restart bool) {
	b.pods("10.244.1.11")
	const a, r1, r2 = "10.244.1.11:80", "10.244.2.11:80@b", "10.244.2.12:80@b"
	other := func(addrs ...string) *service.Port { return withListed(clusterIP("api", "10.96.0.11", a), addrs...) }
	b.converge(snapshot(1, clusterIP("web", "10.96.0.10", a, r1, r2), other()))
	id := b.remote("10.244.2.11")
	for i, s := range []struct {
		situation string
		web, api  *service.Port
		id        string
	}{
		{"not ready", withListed(clusterIP("web", "10.96.0.10", a, r2), "10.244.2.11"), other(), id},
		{"ready again", clusterIP("web", "10.96.0.10", a, r1, r2), other("10.244.2.11"), id},
		{"terminating, in two Services", withListed(clusterIP("web", "10.96.0.10", a), "10.244.2.11", "10.244.2.12"), other("10.244.2.11"), id},
		{"gone from one", clusterIP("web", "10.96.0.10", a), other("10.244.2.11"), id},
		{"gone from both", clusterIP("web", "10.96.0.10", a), other(), ""},
	} {
		if restart {
			b.restart()
		}
		b.converge(snapshot(uint64(i+2), s.web, s.api))
		b.now = b.now.Add(time.Minute) // no resync removes it either
		b.converge(snapshot(uint64(i+2), s.web, s.api))
		got := b.remote("10.244.2.11")
		kit.Check(t, got == s.id, "%s: endpoint %q, want %q", s.situation, got, s.id)
	}
	got := b.remote("10.244.2.12")
	kit.Check(t, got == "", "the endpoint of the other pod is left over")
}

// A local pod that receives the address of a terminating remote pod has no remote
// endpoint with that address, whatever slice still lists it.
func TestLocalPodTakesAListedAddress(t *testing.T) {
	const a = "10.244.1.11:80"
	stale := func() *service.Port { return withListed(clusterIP("old", "10.96.0.10", a), "10.244.1.12") }
	for name, want := range map[string][]*service.Port{
		"a slice lists it":     {stale(), clusterIP("new", "10.96.0.11", "10.244.1.12:80")},
		"the next resync sees": {stale()},
	} {
		t.Run(name, func(t *testing.T) {
			b := newTestNode(t, v13, overlayN)
			b.pods("10.244.1.11")
			b.converge(snapshot(1, clusterIP("old", "10.96.0.10", a, "10.244.1.12:80@b")))
			b.converge(snapshot(2, stale()))
			kit.Need(t, b.remote("10.244.1.12") != "", "the listed endpoint is gone already")
			b.pods("10.244.1.12")
			if len(want) == 1 {
				b.now = b.now.Add(time.Minute)
			}
			b.converge(snapshot(3, want...))
			kit.Check(t, b.remote("10.244.1.12") == "" && b.hns.hasAddr(overlayN.ID, addr("10.244.1.12"), false),
				"endpoints %v, want that of the pod here alone", b.hns.endpoints)
		})
	}
}

// A listed endpoint with a wrong route is useless, and is deleted.
func TestListedEndpointLeadsElsewhere(t *testing.T) {
	b := newTestNode(t, v13, overlayN)
	b.pods("10.244.1.11")
	b.converge(snapshot(1, clusterIP("web", "10.96.0.10", "10.244.1.11:80", "10.244.2.11:80@b")))
	want := snapshot(2, withListed(clusterIP("web", "10.96.0.10", "10.244.1.11:80"), "10.244.2.11"))
	b.converge(want)
	moved := overlayN
	moved.Routes = []Route{{prefix("10.244.2.0/24"), netip.MustParseAddr("192.0.2.77")}}
	b.hns.networks[0] = moved
	b.now = b.now.Add(time.Minute)
	b.converge(want)
	kit.Check(t, b.remote("10.244.2.11") == "", "an endpoint that leads to the former node is kept")
}
