// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"kubeproxy/common/service"
)

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
	if got := strings.Join(b.ownEndpoints(), "\n"); strings.Count(got, sourceVIPName) != 1 || !strings.Contains(got, "10.244.1.77") {
		t.Errorf("after another source VIP was chosen:\n%s", got)
	}

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
	k := Key{VIP: addr("172.30.0.1"), Port: 1, Protocol: service.TCP}
	b.hns.balancers["foreign"] = LoadBalancer{ID: "foreign", Key: k, TargetPort: 1, Endpoints: []string{"endpoint-000001"}, SourceVIP: addr("10.244.1.254")}
	b.options.SourceVIP = addr("10.244.1.77")
	b.restart()
	b.converge(want)
	if got := strings.Join(b.ownEndpoints(), "\n"); strings.Count(got, sourceVIPName) != 2 {
		t.Errorf("endpoints of ours, want both source VIPs:\n%s", got)
	}
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
			b.restartOn(&interceptor{b.hns, func(op string, do func()) bool {
				if op == "delete endpoint" {
					do()
				}
				return true
			}})
		},
		[]string{"still in HNS: load balancer tcp 10.96.0.10:80, load balancer tcp 10.96.0.11:80, load balancer tcp 10.96.0.12:80;"},
	},
	"somebody else uses it": {
		func(b *testNode) {
			k := Key{VIP: addr("172.30.0.1"), Port: 1, Protocol: service.TCP}
			other := k
			other.Port = 2
			for id, e := range b.hns.endpoints {
				if e.Remote && e.HasAddr(addr("10.244.2.11")) {
					b.hns.balancers["foreign"] = LoadBalancer{ID: "foreign", Key: k, ExtraKeys: []Key{other}, TargetPort: 1, Endpoints: []string{id}}
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
			if err == nil {
				t.Fatal("Cleanup says that all is well")
			}
			for _, text := range c.want {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("want %q in:\n%v", text, err)
				}
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
		if got := strings.Join(b.balancerTexts(), "\n"); !strings.Contains(got, step.want) {
			t.Errorf("step %d, want %s in:\n%s", i, step.want, got)
		}
		b.now = b.now.Add(time.Minute)
		if text, _ := b.round(want); text != "" {
			t.Errorf("step %d, a resync still has to do:\n%s", i, text)
		}
	}
}

// The endpoint of the source VIP disappears. It is created again with the address that
// our load balancers use, whatever others use, so nothing else changes.
func TestSourceVIPVanishes(t *testing.T) {
	b := newTestNode(t, v13, overlayN)
	b.pods("10.244.1.11", "10.244.1.200")
	want := snapshot(1, clusterIP("web", "10.96.0.10", "10.244.1.11:80"), clusterIP("api", "10.96.0.11", "10.244.2.11:80@b"))
	b.converge(want)
	k := Key{VIP: addr("172.30.0.1"), Port: 1, Protocol: service.TCP}
	b.hns.balancers["a-foreign"] = LoadBalancer{ID: "a-foreign", Key: k, TargetPort: 1, Endpoints: []string{"endpoint-000001"}, SourceVIP: addr("10.244.1.200")}
	for id, e := range b.hns.endpoints {
		if e.Name == sourceVIPName {
			delete(b.hns.endpoints, id)
		}
	}
	b.now = b.now.Add(time.Minute)
	if text := b.converge(want); text != "+ endpoint kube-proxy-source-vip 10.244.1.254\n" {
		t.Errorf("plan:\n%s", text)
	}
	if n := b.hns.writes(); n != 1 {
		t.Errorf("%d writing calls, want the endpoint: %v", n, b.hns.calls)
	}
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
	if b.store.document == nil {
		t.Error("the state file is gone")
	}
	b.hns.networks, b.hns.endpoints, b.hns.balancers = full.networks, full.endpoints, full.balancers
	b.now = b.now.Add(time.Minute)
	b.converge(want)
	if got := b.balancerTexts(); len(got) != 1 {
		t.Errorf("left: %v", got)
	}
	b.hns.networks, b.hns.endpoints, b.hns.balancers = nil, nil, nil
	if err := b.backend.Cleanup(t.Context()); err != nil || b.store.document != nil {
		t.Errorf("Cleanup of nothing: %v, state file %s", err, b.store.document)
	}
}

// An endpoint of another owner with a wrong route is not changed. The error describes the
// difference, also on networks without provider addresses.
func TestMisroutedByOthers(t *testing.T) {
	b := newTestNode(t, v13, bridgeN)
	b.hns.endpoints["other"] = Endpoint{ID: "other", Name: "other", Network: bridgeN.ID, Remote: true, Addrs: []netip.Addr{addr("10.244.2.11")}, MAC: "AA-BB-CC-00-00-01"}
	_, err := b.round(snapshot(1, clusterIP("web", "10.96.0.10", "10.244.2.11:80@b")))
	wantFailed(t, err, "endpoint other leads elsewhere, and is not ours: 10.244.2.11 remote AA-BB-CC-00-00-01, want 10.244.2.11 remote 02-11-0a-f4-02-0b", "web")
	if _, ok := b.hns.endpoints["other"]; !ok || len(b.hns.endpoints) != 1 {
		t.Errorf("endpoints: %v", b.hns.endpoints)
	}
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
		b.hns.balancers["foreign-1"] = LoadBalancer{ID: "foreign-1", Key: Key{VIP: addr("172.30.0.1"), Port: 443, Protocol: service.TCP}, TargetPort: 443, Endpoints: []string{pod}}
		b.store.document = fmt.Appendf(nil, `{"version":1,"node":"node-a","loadBalancers":{"foreign-1":"x"},"keys":%s,"endpoints":{"elsewhere":"172.20.0.5",%q:"10.244.1.11"},"intended":{}}`, keys, pod)
		b.restart()
		b.converge(snapshot(1, clusterIP("web", "10.96.0.10", "10.244.1.11:80")))
		if err := b.backend.Cleanup(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		_, pods := b.hns.endpoints[pod]
		_, elsewhere := b.hns.endpoints["elsewhere"]
		if _, stays := b.hns.balancers["foreign-1"]; !stays || !pods || !elsewhere || len(b.hns.balancers) != 1 {
			t.Errorf("%s: %d load balancers, of another program: %t; a pod: %t, an endpoint elsewhere: %t", name, len(b.hns.balancers), stays, pods, elsewhere)
		}
	}
}
