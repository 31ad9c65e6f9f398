// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/test/generate"
	"kubeproxy/test/kit"
)

// wantFailed checks that err is about exactly these Services and contains text.
func wantFailed(t *testing.T, err error, text string, names ...string) {
	t.Helper()
	var got []string
	for _, f := range reconcile.PortErrors(err) {
		got = append(got, f.Name.Name)
	}
	kit.Need(t, slices.Equal(got, names) && (err == nil || strings.Contains(err.Error(), text)),
		"failed = %v, want %v and %q in:\n%v", got, names, text, err)
}

// While HNS is down its state is unknown. The sync fails as a whole, and no object counts
// as deleted.
func TestHNSDown(t *testing.T) {
	b := newTestNode(t, v13, bridgeN)
	b.pods("10.244.1.11")
	want := snapshot(1, clusterIP("web", "10.96.0.10", "10.244.1.11:80"))
	b.converge(want)
	b.hns.down = true
	next := snapshot(2, clusterIP("web", "10.96.0.10", "10.244.1.11:80"), clusterIP("api", "10.96.0.11", "10.244.1.11:80"))
	_, err := b.round(next)
	kit.Check(t, errors.Is(err, ErrNotRunning) && len(reconcile.PortErrors(err)) == 0,
		"Apply = %v, want ErrNotRunning for all", err)
	_, err = b.backend.Plan(t.Context(), next)
	kit.Check(t, errors.Is(err, ErrNotRunning) && !errors.Is(err, ErrNotFound), "Plan = %v, want ErrNotRunning", err)
	b.hns.down = false
	b.converge(next)
	n := b.hns.writes()
	kit.Check(t, n == 1, "%d writing calls, want the one that is new: %v", n, b.hns.calls)
}

// A load balancer that another process deletes at the same moment counts as deleted. HNS
// is not listed for that.
func TestGoneMeanwhile(t *testing.T) {
	b := newTestNode(t, v13, bridgeN)
	b.pods("10.244.1.11")
	b.converge(snapshot(1, clusterIP("web", "10.96.0.10", "10.244.1.11:80")))
	p := b.plan(snapshot(2))
	clear(b.hns.balancers)
	clear(b.hns.calls)
	err := p.Apply(t.Context()).Err
	kit.Check(t, err == nil && maps.Equal(b.hns.calls, map[string]int{"delete load balancer": 1}), "Apply = %v, with the calls %v", err, b.hns.calls)
}

// Another process deleted all endpoints, including that of the source VIP. The sync that
// finds this creates the source VIP again and continues.
func TestAllEndpointsVanish(t *testing.T) {
	b := newTestNode(t, v13, overlayN)
	b.pods("10.244.1.11")
	b.converge(snapshot(1, clusterIP("web", "10.96.0.10", "10.244.1.11:80", "10.244.2.11:80@b")))
	p := b.plan(snapshot(2, clusterIP("web", "10.96.0.10", "10.244.2.11:80@b"), clusterIP("api", "10.96.0.11", "10.244.1.11:80")))
	clear(b.hns.endpoints)
	_ = p.Apply(t.Context()).Err // api's only pod is gone
	kit.Same(t, "after one round (-want +got)", []string{"tcp 10.96.0.10:80 [10.244.2.11]"}, b.balancerTexts())
}

// A pod without an endpoint yet does not block other Services. Each retry costs one
// listing of endpoints.
func TestLocalEndpointComesLater(t *testing.T) {
	b := newTestNode(t, v13, bridgeN)
	b.pods("10.244.1.11")
	want := snapshot(1, clusterIP("early", "10.96.0.10", "10.244.1.12:80"), clusterIP("late", "10.96.0.11", "10.244.1.11:80", "10.244.1.12:80"))
	_, err := b.round(want)
	wantFailed(t, err, "the network plugin makes it", "early", "late")
	n := len(b.hns.balancers)
	kit.Check(t, n == 1, "%d load balancers, want the one that has an endpoint", n)
	_, err = b.round(want)
	wantFailed(t, err, "the network plugin makes it", "early", "late")
	kit.Check(t, b.hns.calls["list load balancers"] <= 0 && b.hns.writes() <= 0,
		"calls = %v, want endpoints listed only", b.hns.calls)
	b.pods("10.244.1.12")
	b.converge(want)
}

// After reuse of an address, it belongs to a local pod for one Service and to a remote
// pod for another.
func TestOneAddressLocalAndRemote(t *testing.T) {
	b := newTestNode(t, v13, overlayN)
	b.pods("10.244.1.11")
	local, other := clusterIP("here", "10.96.0.10", "10.244.1.11:80"), clusterIP("there", "10.96.0.11", "10.244.1.11:80@b")
	b.converge(snapshot(1, local, other))
	remote := func() int {
		n := 0
		for _, e := range b.hns.endpoints {
			if e.Remote && e.HasAddr(addr("10.244.1.11")) {
				n++
			}
		}
		return n
	}
	kit.Check(t, remote() == 1, "no remote endpoint for the reused address")
	b.converge(snapshot(2, local))
	kit.Check(t, remote() == 0 && b.hns.hasAddr(overlayN.ID, addr("10.244.1.11"), false),
		"the wrong endpoint was deleted")
}

// Pods that moved to another node get a correct route. Each load balancer changes at most
// twice.
func TestProviderChanges(t *testing.T) {
	b := newTestNode(t, v15, overlayN)
	var many []string
	for i := range 50 {
		many = append(many, fmt.Sprintf("10.244.2.%d:80@b", 10+i))
	}
	want := snapshot(1, clusterIP("web", "10.96.0.10", append(many, "10.244.3.9:80@b")...))
	b.converge(want)
	moved := overlayN
	moved.Routes = []Route{{prefix("10.244.2.0/24"), addr("192.0.2.77")}, overlayN.Routes[1]}
	b.hns.networks[0] = moved
	b.converge(want)
	n := b.hns.calls["update load balancer"]
	kit.Check(t, n == 2, "%d changes of the load balancer, want one without the endpoints and one with the new ones", n)
	for _, e := range b.hns.endpoints {
		if e.Remote && moved.Routes[0].Subnet.Contains(e.Addrs[0]) && e.Provider != moved.Routes[0].Provider {
			t.Errorf("endpoint %s still leads to the old node", e.describe())
		}
	}
}

// Objects of other owners are never changed, even if they conflict with ours.
func TestForeignInTheWay(t *testing.T) {
	b := newTestNode(t, v13, bridgeN)
	b.pods("10.244.1.11")
	key := service.Address{Addr: addr("10.96.0.10"), Port: 80, Protocol: service.TCP}
	other := key
	other.Port = 443
	b.hns.balancers["foreign"] = LoadBalancer{ID: "foreign", Address: key, ExtraKeys: []service.Address{other}, TargetPort: 1, Endpoints: []string{"endpoint-000001"}}
	b.hns.heldPorts[service.Address{Addr: addr("10.96.0.11"), Port: 80, Protocol: service.TCP}] = true
	want := snapshot(1, clusterIP("blocked", "10.96.0.10", "10.244.1.11:80"), clusterIP("free", "10.96.0.12", "10.244.1.11:80"), clusterIP("held", "10.96.0.11", "10.244.1.11:80"))
	_, err := b.round(want)
	wantFailed(t, err, "belongs to load balancer foreign, which is not ours", "blocked", "held")
	kit.Check(t, strings.Contains(err.Error(), "a program of this node listens there"),
		"error = %v, want a hint at the program", err)
	if _, ok := b.hns.balancers["foreign"]; !ok || len(b.hns.balancers) != 2 {
		t.Errorf("load balancers = %v, want the foreign one and one of ours", b.hns.balancers)
	}
	kit.Must(t, b.backend.Cleanup(t.Context()))
	_, ok := b.hns.balancers["foreign"]
	kit.Check(t, ok && len(b.hns.balancers) == 1, "after Cleanup: %v, want the foreign one", b.hns.balancers)
}

// A load balancer that appears between the listing and our own attempt, as after a
// restart of HNS, is adopted if it is correct, and corrected if not.
func TestExistsAlready(t *testing.T) {
	for name, port := range map[string]uint16{"equal": 80, "different": 81} {
		t.Run(name, func(t *testing.T) {
			b := newTestNode(t, v13, bridgeN)
			b.pods("10.244.1.11")
			p := b.plan(snapshot(1, clusterIP("web", "10.96.0.10", "10.244.1.11:80")))
			made, err := b.hns.CreateLoadBalancer(t.Context(), LoadBalancer{
				Address: service.Address{Addr: addr("10.96.0.10"), Port: 80, Protocol: service.TCP}, TargetPort: port, SourceVIP: nodeA, Endpoints: []string{"endpoint-000001"},
			})
			kit.Must(t, err)
			kit.Must(t, p.Apply(t.Context()).Err)
			_, kept := b.hns.balancers[made.ID]
			kit.Check(t, kept == (port == 80) && len(b.hns.balancers) == 1, "load balancers = %v, want one, the old one only if it was equal", b.hns.balancers)
		})
	}
}

// The next resync restores what other processes deleted, and reports it.
func TestDrift(t *testing.T) {
	b := newTestNode(t, v13, bridgeN)
	b.pods("10.244.1.11")
	want := snapshot(1, clusterIP("web", "10.96.0.10", "10.244.1.11:80", "10.244.2.11:80@b"), clusterIP("api", "10.96.0.11", "10.244.1.11:80"))
	b.converge(want)
	for id, lb := range b.hns.balancers {
		if lb.Addr == addr("10.96.0.10") {
			delete(b.hns.balancers, id)
		} else {
			lb.DSR = true
			b.hns.balancers[id] = lb
		}
	}
	p := b.plan(want)
	got := strings.Join(p.Outcome().Drift, "\n")
	kit.Check(t, got == "missing: loadbalancer tcp 10.96.0.10:80\naltered: loadbalancer tcp 10.96.0.11:80",
		"drift:\n%s", got)
	kit.Must(t, p.Apply(t.Context()).Err)
	b.converge(want)
	d := b.plan(want).Outcome().Drift
	kit.Check(t, len(d) == 0, "our own repair counts as drift: %v", d)
}

// What the first plan of a round found counts, also where Apply has to list and plan once more.
func TestFirstPlanCounts(t *testing.T) {
	web, api := clusterIP("web", "10.96.0.10", "10.244.1.11:80"), clusterIP("api", "10.96.0.11", "10.244.1.11:80")
	taken := LoadBalancer{Address: service.Address{Addr: addr("10.96.0.10"), Port: 80, Protocol: service.TCP}, TargetPort: 81, SourceVIP: nodeA, Endpoints: []string{"endpoint-000001"}}
	for name, full := range map[string]bool{"resync": true, "change": false} {
		t.Run(name, func(t *testing.T) {
			b := newTestNode(t, v13, bridgeN)
			b.pods("10.244.1.11")
			want, drift := snapshot(1, api), ""
			if full {
				want, drift = snapshot(1, api, web), "missing: loadbalancer tcp 10.96.0.10:80"
			}
			b.converge(want)
			maps.DeleteFunc(b.hns.balancers, func(_ string, lb LoadBalancer) bool { return lb.Addr == taken.Addr })
			if b.now = b.now.Add(time.Second); !full {
				want = snapshot(2, api, web)
			}
			p := b.plan(want)
			_, err := b.hns.CreateLoadBalancer(t.Context(), taken)
			kit.Must(t, err)
			b.hns.calls["list load balancers"] = 0
			out := p.Apply(t.Context())
			kit.Need(t, out.Err == nil && b.hns.calls["list load balancers"] == 1,
				"Apply listed %d times, %v: want it to find the load balancer of another program", b.hns.calls["list load balancers"], out.Err)
			got := strings.Join(out.Drift, "\n")
			kit.Check(t, got == drift && out.FullSync == full, "full sync %v, drift %q: want %v, %q", out.FullSync, got, full, drift)
		})
	}
}

// The API and DNS come first, whatever their names are.
func TestUrgentFirst(t *testing.T) {
	b := newTestNode(t, v13, bridgeN)
	b.pods("10.244.1.11")
	api, dns := clusterIP("kubernetes", "10.96.0.1", "10.244.1.11:80"), clusterIP("zdns", "10.96.0.53", "10.244.1.11:80")
	api.Name = service.PortName{Namespace: "default", Name: "kubernetes", Port: "https", Protocol: service.TCP}
	dns.Name = service.PortName{Namespace: "kube-system", Name: "zdns", Port: "dns-tcp", Protocol: service.TCP}
	text := b.converge(snapshot(1, clusterIP("aaa", "10.96.0.10", "10.244.1.11:80"), api, dns))
	order := []string{"10.96.0.1:80", "10.96.0.53:80", "10.96.0.10:80"}
	at := -1
	for _, s := range order {
		i := strings.Index(text, s)
		kit.Check(t, i >= at && i >= 0, "want %v in this order:\n%s", order, text)
		at = i
	}
}

// A first sync creates each object once and lists each kind once, for any number of
// objects.
func TestCountsAtScale(t *testing.T) {
	const services, endpoints = 2000, 5000
	wide := overlayN
	wide.Routes = []Route{{prefix("10.200.0.0/16"), nodeB}}
	b := newTestNode(t, v13, wide)
	var ports []*service.Port
	pod := addr("10.200.0.1")
	vip := addr("10.96.0.1")
	created := 0
	for i := range services {
		p := clusterIP(fmt.Sprintf("web-%04d", i), vip.String())
		for range 3 { // some endpoints serve several Services
			if created++; created > endpoints {
				created, pod = 1, addr("10.200.0.1")
			}
			p.Cluster = append(p.Cluster, service.Endpoint{Addr: netip.AddrPortFrom(pod, 80), Remote: true})
			pod = pod.Next()
		}
		ports, vip = append(ports, p), vip.Next()
	}
	want := snapshot(1, ports...)
	start := time.Now()
	_, err := b.round(want)
	kit.Must(t, err)
	took := time.Since(start)
	limits := map[string]int{"list networks": 1, "list endpoints": 1, "list load balancers": 1, "create load balancer": services, "create endpoint": endpoints + services + 1}
	calls := 0
	for op, n := range b.hns.calls {
		if calls += n; n > limits[op] {
			t.Errorf("%s %d times, want %d at most", op, n, limits[op])
		}
	}
	t.Logf("%d Services, %d endpoints: %d calls, planned and applied in %v; at 20 ms a call %v", services, endpoints, calls, took.Round(time.Millisecond), time.Duration(calls)*20*time.Millisecond)
}

// After Cleanup, neither HNS nor the state file contains objects of ours.
func TestCleanup(t *testing.T) {
	for name, spoil := range map[string]func(*testNode){
		"state file kept": func(*testNode) {},
		"state file lost": func(b *testNode) { b.store.document = nil },
	} {
		t.Run(name, func(t *testing.T) {
			b := newTestNode(t, v13, overlayN)
			b.pods("10.244.1.11")
			b.converge(snapshot(1, clusterIP("web", "10.96.0.10", "10.244.1.11:80", "10.244.2.11:80@b")))
			spoil(b)
			b.restart()
			kit.Must(t, b.backend.Cleanup(context.Background()))
			kit.Check(t, len(b.hns.balancers) == 0 && len(b.hns.endpoints) == 1 && len(b.hns.warnings) == 0,
				"left: %v, %v; warnings %v", b.hns.balancers, b.hns.endpoints, b.hns.warnings)
			kit.Check(t, b.store.document == nil, "state file: %s", b.store.document)
		})
	}
}

// While the snapshot is incomplete since the start, objects of an earlier process stay.
func TestPartialSnapshot(t *testing.T) {
	b := newTestNode(t, v13, bridgeN)
	b.pods("10.244.1.11")
	b.converge(snapshot(1, clusterIP("web", "10.96.0.10", "10.244.1.11:80"), clusterIP("api", "10.96.0.11", "10.244.1.11:80", "10.244.2.11:80@b")))
	b.restart()
	partial := snapshot(2, clusterIP("web", "10.96.0.10", "10.244.1.11:80"))
	partial.Incomplete = true
	text, err := b.round(partial)
	kit.Check(t, err == nil && text == "", "partial: %v\n%s", err, text)
	b.converge(snapshot(3, clusterIP("web", "10.96.0.10", "10.244.1.11:80")))
	kit.Check(t, len(b.hns.balancers) == 1, "%d load balancers after all was read, want 1", len(b.hns.balancers))
}

// Prepare reserves the source VIP that Pending names, and the proxy finds it.
func TestPrepare(t *testing.T) {
	b := newTestNode(t, v13, overlayN)
	want := []string{"+ endpoint kube-proxy-source-vip 10.244.1.254"}
	if got, err := b.backend.Pending(t.Context(), theNode); err != nil || !slices.Equal(got, want) || len(b.hns.endpoints) > 0 {
		t.Errorf("Pending = %q, %v and made %d endpoints, want %q and none", got, err, len(b.hns.endpoints), want)
	}
	kit.Must(t, b.backend.Prepare(t.Context(), theNode))
	kit.Need(t, len(b.hns.endpoints) == 1, "%d endpoints, want that of the source VIP", len(b.hns.endpoints))
	got, err := b.backend.Pending(t.Context(), theNode)
	kit.Check(t, err == nil && len(got) == 0, "then Pending = %q, %v, want nothing", got, err)
	b.restart()
	b.converge(snapshot(1, clusterIP("web", "10.96.0.10", "10.244.2.11:80@b")))
	for _, lb := range b.hns.balancers {
		kit.Check(t, lb.SourceVIP == addr("10.244.1.254"),
			"source VIP %s, want the one that was reserved", lb.SourceVIP)
	}
}

// The source VIP is at the end of the subnet, since an IPAM begins at the other one. HNS may refuse that address.
func TestSourceVIPFromTheEnd(t *testing.T) {
	for name, tt := range map[string]struct {
		pods   []string
		refuse int // creations
		want   string
	}{
		"last":          {nil, 0, "10.244.1.254"},
		"last is taken": {[]string{"10.244.1.254", "10.244.1.253"}, 0, "10.244.1.252"},
		"last routes":   {nil, 0, "10.244.1.253"},
		"refused":       {nil, 1, "10.244.1.2"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newTestNode(t, v13, overlayN)
			b.pods(tt.pods...)
			if name == "last routes" {
				b.hns.networks[0].Gateways = []netip.Addr{addr("10.244.1.254")}
			}
			b.hns.refuse = func(op string) error {
				if op != "create endpoint" || tt.refuse == 0 {
					return nil
				}
				tt.refuse--
				return codeError(op, 0x57)
			}
			kit.Must(t, b.backend.Prepare(t.Context(), theNode))
			got := strings.Join(b.ownEndpoints(), "; ")
			kit.Check(t, got == "net-overlay kube-proxy-source-vip "+tt.want, "reserved %q, want %s", got, tt.want)
		})
	}
}

// Both families run in parallel. At the start they share a listing, unless the family
// wrote after the listing began.
func TestFamiliesShareAListing(t *testing.T) {
	b := newTestNode(t, v13, bridgeN)
	b.pods("10.244.1.11", "fd00:10:244:1::11")
	four := clusterIP("web", "10.96.0.10", "10.244.1.11:80")
	six := clusterIP("web", "fd00:10:96::10", "[fd00:10:244:1::11]:80")
	six.Family = service.IPv6
	want := snapshot(1, four, six)
	h := b.backend.host
	var plans []reconcile.Plan
	var backends []*Backend
	for _, f := range service.Families {
		backends = append(backends, New(h, f, Options{}, time.Minute))
		p, err := backends[f].Plan(t.Context(), want)
		kit.Need(t, err == nil, "%s: %v", f, err)
		plans = append(plans, p)
	}
	for _, p := range plans {
		kit.Must(t, p.Apply(t.Context()).Err)
	}
	if n := b.hns.calls["list endpoints"]; n != 1 || len(b.hns.balancers) != 2 {
		t.Errorf("endpoints listed %d times, want once; load balancers %v", n, b.hns.balancers)
	}
	n := strings.Count(string(b.store.document), "shop/web:http")
	kit.Check(t, n == 2, "the state file has %d of 2 load balancers:\n%s", n, b.store.document)
	for i := range 4 { // alternately, without a pause
		if p, err := backends[i%2].Plan(t.Context(), want); err != nil || !p.Empty() {
			t.Errorf("still to do: %v\n%s", err, generate.Text(p))
		}
	}
}

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
	kit.Must(t, err)
	if got := p.Outcome().Unavailable; got != without || p.Empty() != (without != "") {
		t.Fatalf("%s: without %q, want %q; plan:\n%s", f, got, without, p.Changes())
	}
	if p.Empty() {
		return
	}
	err = p.Apply(t.Context()).Err
	kit.Check(t, err == nil && len(b.hns.balancers) == 1, "%s: %d load balancers, %v", f, len(b.hns.balancers), err)
}

// Notes are returned after each sync, also by one without changes. Notes that were
// returned are never modified.
func TestNotesOfRounds(t *testing.T) {
	b := newTestNode(t, v13, bridgeN)
	b.pods("10.244.1.11")
	notesOf := func(want *service.Snapshot) reconcile.Notes {
		b.now = b.now.Add(time.Second)
		p := b.plan(want)
		if !p.Empty() {
			kit.Must(t, p.Apply(t.Context()).Err)
		}
		return p.Outcome().Notes
	}
	const timeout, refuse = "session affinity has no timeout: HNS has none", "it has no ready endpoint, and HNS cannot refuse connections: they time out"
	sticky := clusterIP("sticky", "10.96.0.10", "10.244.1.11:80")
	sticky.Affinity = time.Hour
	plain := clusterIP("plain", "10.96.0.11", "10.244.1.11:80")
	first := notesOf(snapshot(1, sticky, plain))
	var all []string
	for i, want := range []*service.Snapshot{
		snapshot(2, sticky, plain),
		snapshot(3, sticky, clusterIP("plain", "10.96.0.11")),
		snapshot(4, sticky, clusterIP("plain", "10.96.0.11")),
		snapshot(5, clusterIP("sticky", "10.96.0.10", "10.244.1.11:80"), plain),
	} {
		notes := notesOf(want)
		for _, name := range []service.PortName{plain.Name, sticky.Name} {
			for _, n := range notes[name] {
				all = append(all, fmt.Sprint(i, " ", name.Name, " ", n.Text, " ", n.Transient))
			}
		}
	}
	want := []string{
		"0 sticky " + timeout + " false", "1 plain " + refuse + " true", "1 sticky " + timeout + " false",
		"2 plain " + refuse + " true", "2 sticky " + timeout + " false",
	}
	kit.Same(t, "(-want +got)", want, all)
	kit.Same(t, "what was reported first (-want +now)", reconcile.Notes{sticky.Name: {{Text: timeout}}}, first)
}

// Slow listings leave time for other work, and changes need not wait for them.
func TestSlowListingsAreRare(t *testing.T) {
	b := newTestNode(t, v13, bridgeN)
	b.pods("10.244.1.11")
	b.restartOn(onLists(b.hns, func() { b.now = b.now.Add(time.Minute) }))
	want := snapshot(1, clusterIP("web", "10.96.0.10", "10.244.1.11:80"))
	listed := 0
	round := func(rounds int) {
		for range rounds {
			_, err := b.round(want)
			kit.Must(t, err)
			listed += b.hns.calls["list load balancers"]
			b.now = b.now.Add(29 * time.Second) // each sync adds one
		}
	}
	round(1)
	listed = 0
	round(9)
	want = snapshot(2, clusterIP("web", "10.96.0.10", "10.244.1.11:80"), clusterIP("cart", "10.96.0.11", "10.244.1.11:80"))
	round(9)
	kit.Check(t, listed == 0 && len(b.hns.balancers) == 2,
		"listed %d times in 9 minutes, want not yet; %d load balancers, want 2", listed, len(b.hns.balancers))
	round(4)
	kit.Check(t, listed == 1, "listed %d times in 11 minutes, want once", listed)
	b.backend.SetResync(3 * time.Minute)
	listed = 0
	round(9)
	kit.Check(t, listed == 9, "listed %d times in 9 resyncs of which a listing takes a third, want in each", listed)
}

// The sync period of a reloaded configuration applies.
func TestSetResync(t *testing.T) {
	b := newTestNode(t, v13, bridgeN)
	b.pods("10.244.1.11")
	b.converge(snapshot(1, clusterIP("web", "10.96.0.10", "10.244.1.11:80")))
	b.backend.SetResync(5 * time.Second)
	b.now = b.now.Add(10 * time.Second)
	clear(b.hns.calls)
	b.plan(snapshot(2))
	n := b.hns.calls["list load balancers"]
	kit.Check(t, n == 1, "a change after two sync periods: listed %d times, want once", n)
}
