// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/test/generate"
)

// web is a Service with n endpoints.
func web(i, n int, proto service.Protocol) *service.Port {
	p := &service.Port{
		Name:      service.PortName{Namespace: "shop", Name: fmt.Sprintf("web-%d", i), Protocol: proto},
		Frontends: []service.Frontend{{Addr: generate.NthAddr("10.96.0.0", i), Port: 80}},
	}
	for e := range n {
		p.Cluster = append(p.Cluster, service.Endpoint{Addr: netip.AddrPortFrom(generate.NthAddr("10.244.1.0", e+1), 8080)})
	}
	return p
}

func snapshot(ports ...*service.Port) *service.Snapshot {
	return service.New(1, &service.Node{NodePorts: service.AnyAddress(), Addrs: []netip.Addr{generate.NodeAddr[0]}}, ports)
}

// lines returns the ops of p, sorted.
func lines(p reconcile.Plan) []string {
	all := strings.Split(strings.TrimSpace(p.Changes().String()), "\n")
	slices.Sort(all)
	return all
}

func wantLines(t *testing.T, p reconcile.Plan, want ...string) {
	t.Helper()
	slices.Sort(want)
	if want == nil {
		want = []string{""}
	}
	got := lines(p)
	for i := range got { // whom a line is for, see TestFirstPlan
		got[i], _, _ = strings.Cut(got[i], " # ")
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("plan (-want +got):\n%s", diff)
	}
}

func planOf(t *testing.T, b *Backend, want *service.Snapshot) reconcile.Plan {
	t.Helper()
	return generate.Plan(t, b, want)
}

func TestFirstPlan(t *testing.T) {
	b := newBackend(service.IPv4, newFake(service.IPv4), Options{})
	p := web(0, 1, service.TCP)
	p.Affinity = 3 * time.Hour
	p.Frontends = append(p.Frontends, service.Frontend{Kind: service.NodePort, Port: 30080})
	plan := planOf(t, b, snapshot(p))
	if want := "+ destination 10.244.1.1:8080 of 10.96.0.0:80 tcp # shop/web-0\n"; !strings.Contains(plan.Changes().String(), want) {
		t.Errorf("no %q in\n%s", want, plan.Changes())
	}
	wantLines(t, plan,
		"+ setting net.ipv4.vs.conntrack = 1",
		"+ interface kube-ipvs0",
		"+ 192.0.2.1 in the ipset of the node's addresses",
		"+ 198.51.100.1 in the ipset of the node's addresses",
		"+ ipsets of virtual servers and of the node's addresses",
		"+ virtual server 10.96.0.0:80 tcp, scheduler rr, clients stay for 10800 s",
		"+ destination 10.244.1.1:8080 of 10.96.0.0:80 tcp",
		"+ virtual server 192.0.2.1:30080 tcp, scheduler rr, clients stay for 10800 s",
		"+ destination 10.244.1.1:8080 of 192.0.2.1:30080 tcp",
		"+ virtual server 198.51.100.1:30080 tcp, scheduler rr, clients stay for 10800 s",
		"+ destination 10.244.1.1:8080 of 198.51.100.1:30080 tcp",
		"+ address 10.96.0.0, reached from 192.0.2.1",
	)
}

// TestEndpointsDrain checks that a removed endpoint keeps its connections for a while,
// and that one of UDP is deleted at once.
func TestEndpointsDrain(t *testing.T) {
	k := newFake(service.IPv4)
	b := newBackend(service.IPv4, k, Options{})
	apply(t, b, snapshot(web(0, 2, service.TCP), web(1, 2, service.UDP)))
	setConns(k, 3)
	less := snapshot(web(0, 1, service.TCP), web(1, 1, service.UDP))
	p := planOf(t, b, less)
	wantLines(t, p,
		"~ destination 10.244.1.2:8080 of 10.96.0.0:80 tcp drains, for 1h0m0s at most",
		"- destination 10.244.1.2:8080 of 10.96.0.1:80 udp",
	)
	if err := p.Apply(context.Background()).Err; err != nil {
		t.Fatal(err)
	}
	k.clock = k.clock.Add(DrainTimeout - time.Second)
	wantLines(t, planOf(t, b, less))
	k.clock = k.clock.Add(time.Second)
	wantLines(t, planOf(t, b, less), "- destination 10.244.1.2:8080 of 10.96.0.0:80 tcp")
}

// setConns sets the number of connections of each destination.
func setConns(k *fake, conns uint32) {
	for _, s := range k.servers {
		for a, x := range s.dests {
			x.conns = conns
			s.dests[a] = x
		}
	}
}

// TestTheLastEndpointDrains checks that the last endpoint drains, too: the virtual
// server stays for it and is deleted with it. An endpoint that returns meanwhile gets
// its weight back.
func TestTheLastEndpointDrains(t *testing.T) {
	k := newFake(service.IPv4)
	b := newBackend(service.IPv4, k, Options{})
	one, nobody := web(0, 1, service.TCP), web(0, 0, service.TCP)
	full := snapshot(one)
	apply(t, b, full)
	none := full.With(2, full.Node, []service.Change{{Old: one, New: nobody}})
	setConns(k, 1)
	apply(t, b, none)
	again := none.With(3, full.Node, []service.Change{{Old: nobody, New: one}})
	wantLines(t, apply(t, b, again), "~ destination 10.244.1.1:8080 of 10.96.0.0:80 tcp has weight 1")
	setConns(k, 0)
	k.clock = k.clock.Add(drainPollInterval)
	wantLines(t, planOf(t, b, again))
	none = again.With(4, full.Node, []service.Change{{Old: one, New: nobody}})
	apply(t, b, none)
	setConns(k, 0)
	k.clock = k.clock.Add(drainPollInterval)
	wantLines(t, planOf(t, b, none),
		"- destination 10.244.1.1:8080 of 10.96.0.0:80 tcp", "- virtual server 10.96.0.0:80 tcp")
}

// TestRestartRestoresWeights checks that a new process finds draining destinations, lets
// them drain, and restores the weight of those that serve again.
func TestRestartRestoresWeights(t *testing.T) {
	k := newFake(service.IPv4)
	apply(t, newBackend(service.IPv4, k, Options{}), snapshot(web(0, 3, service.TCP)))
	setConns(k, 1)
	for _, s := range k.servers {
		for a, x := range s.dests {
			x.weight = 0
			s.dests[a] = x
		}
	}
	wantLines(t, planOf(t, newBackend(service.IPv4, k, Options{}), snapshot(web(0, 1, service.TCP))),
		"~ destination 10.244.1.1:8080 of 10.96.0.0:80 tcp has weight 1")
}

// TestAdoption checks that a restart writes nothing if nothing has changed.
func TestAdoption(t *testing.T) {
	k := newFake(service.IPv4)
	apply(t, newBackend(service.IPv4, k, Options{Scheduler: "mh"}), snapshot(web(0, 3, service.TCP), web(1, 1, service.SCTP)))
	ops := k.ops
	p := apply(t, newBackend(service.IPv4, k, Options{Scheduler: "mh"}), snapshot(web(0, 3, service.TCP), web(1, 1, service.SCTP)))
	if s := p.Changes().String(); s != "" || k.ops != ops {
		t.Errorf("a new process would do:\n%s", s)
	}
}

// TestDrift checks that foreign changes are found within the sync period, and reported.
func TestDrift(t *testing.T) {
	k := newFake(service.IPv4)
	b := newBackend(service.IPv4, k, Options{})
	want := snapshot(web(0, 2, service.TCP), web(1, 1, service.TCP))
	apply(t, b, want)
	first, second := key{generate.NthAddr("10.96.0.0", 0), 80, service.TCP}, key{generate.NthAddr("10.96.0.0", 1), 80, service.TCP}
	wrongMode := netip.MustParseAddrPort("10.244.1.2:8080")
	delete(k.servers, second)
	delete(k.servers[first].dests, netip.MustParseAddrPort("10.244.1.1:8080"))
	k.servers[first].scheduler = "lc"
	k.servers[first].dests[wrongMode] = dest{addr: wrongMode, weight: 1, wrongMode: true}
	delete(k.routes, second.addr)
	if p := planOf(t, b, want); !p.Empty() {
		t.Errorf("the kernel was asked before the sync period was over: %s", p.Changes())
	}
	k.clock = k.clock.Add(30 * time.Second)
	p := planOf(t, b, want)
	if diff := cmp.Diff([]string{
		"altered: virtual server 10.96.0.0:80 tcp, scheduler rr",
		"altered: destination 10.244.1.2:8080 of 10.96.0.0:80 tcp has weight 1",
		"missing: destination 10.244.1.1:8080 of 10.96.0.0:80 tcp",
		"missing: virtual server 10.96.0.1:80 tcp, scheduler rr",
		"missing: destination 10.244.1.1:8080 of 10.96.0.1:80 tcp",
		"missing: address 10.96.0.1, reached from 192.0.2.1",
	}, p.Outcome().Drift); diff != "" {
		t.Errorf("drift (-want +got):\n%s", diff)
	}
	if err := p.Apply(context.Background()).Err; err != nil {
		t.Fatal(err)
	}
	k.clock = k.clock.Add(30 * time.Second)
	if p := planOf(t, b, want); !p.Empty() || len(p.Outcome().Drift) > 0 {
		t.Errorf("after the repair: %v\n%s", p.Outcome().Drift, p.Changes())
	}
}

// TestSetResync checks that a shorter sync period applies from the next sync on.
func TestSetResync(t *testing.T) {
	k := newFake(service.IPv4)
	b := newBackend(service.IPv4, k, Options{})
	want := snapshot(web(0, 2, service.TCP))
	apply(t, b, want)
	clear(k.servers)
	k.clock = k.clock.Add(5 * time.Second)
	if p := planOf(t, b, want); !p.Empty() {
		t.Errorf("the kernel was asked before the sync period was over: %s", p.Changes())
	}
	b.SetResync(5 * time.Second)
	if p := planOf(t, b, want); len(p.Outcome().Drift) != 3 {
		t.Errorf("after a sync period of 5 s the drift is %q", p.Outcome().Drift)
	}
}

// TestForeignServers checks that a foreign virtual server stays unchanged on an address
// of the node, and in an excluded prefix.
func TestForeignServers(t *testing.T) {
	excluded := Options{Exclude: []netip.Prefix{netip.MustParsePrefix("10.96.0.1/32")}}
	k := newFake(service.IPv4)
	other := server{scheduler: "wlc"}
	at := []key{{generate.NodeAddr[0], 30080, service.TCP}, {generate.NthAddr("10.96.0.0", 1), 80, service.TCP}, {generate.NthAddr("10.96.0.0", 1), 81, service.TCP}}
	for _, x := range at {
		k.servers[x] = &fakeServer{other, nil}
	}
	k.servers[at[2]].flags = flagOwned
	node := web(0, 1, service.TCP)
	node.Frontends = append(node.Frontends, service.Frontend{Kind: service.NodePort, Port: 30080})
	b := newBackend(service.IPv4, k, excluded)
	err := planOf(t, b, snapshot(node, web(1, 1, service.TCP))).Apply(context.Background()).Err
	failed := reconcile.PortErrors(err)
	if len(failed) != 2 || !errors.Is(failed[0], errForeign) || !errors.Is(failed[1], errForeign) {
		t.Errorf("Apply = %v, want two that somebody else has", err)
	}
	if err := b.Cleanup(context.Background()); err != nil {
		t.Fatal(err)
	}
	for _, x := range at {
		if k.servers[x] == nil || k.servers[x].scheduler != "wlc" {
			t.Errorf("the virtual server at %s is now %v", x, k.servers[x])
		}
	}
	if len(k.servers) != 3 || len(k.routes) > 0 || k.device {
		t.Errorf("cleanup left %v, %v, device %t", k.servers, k.routes, k.device)
	}
}

// TestNoAddressWithoutRules checks that an address gets no route without rules: packets
// to it would reach any local listener.
func TestNoAddressWithoutRules(t *testing.T) {
	k := newFake(service.IPv4)
	b := newBackend(service.IPv4, k, Options{})
	b.rules.(*fakeRules).refuse = func(op) error { return errInjected }
	if err := planOf(t, b, snapshot(web(0, 1, service.TCP))).Apply(context.Background()).Err; !errors.Is(err, errInjected) {
		t.Errorf("Apply = %v", err)
	}
	if len(k.routes) > 0 {
		t.Errorf("addresses without rules: %v", k.routes)
	}
}

// TestOneBadPort checks that a Service that cannot be programmed does not hold back the
// others, and is named.
func TestOneBadPort(t *testing.T) {
	k := newFake(service.IPv4)
	b := newBackend(service.IPv4, k, Options{})
	k.refuse = func(o op) error {
		if o.key.addr == generate.NthAddr("10.96.0.0", 1) {
			return errInjected
		}
		return nil
	}
	err := planOf(t, b, snapshot(web(0, 1, service.TCP), web(1, 9, service.TCP), web(2, 1, service.TCP))).Apply(context.Background()).Err
	if failed := reconcile.PortErrors(err); len(failed) != 1 || failed[0].Name.Name != "web-1" || !strings.Contains(err.Error(), "virtual server 10.96.0.1:80") {
		t.Errorf("Apply = %v, want one failure of web-1", err)
	}
	if len(k.servers) != 2 {
		t.Errorf("%d virtual servers, want 2", len(k.servers))
	}
}

// TestChangeAsksNothing checks that the cost of a change depends only on the change.
func TestChangeAsksNothing(t *testing.T) {
	k := newFake(service.IPv4)
	b := newBackend(service.IPv4, k, Options{})
	var ports []*service.Port
	for i := range 200 {
		ports = append(ports, web(i, 2, service.TCP))
	}
	first := snapshot(ports...)
	apply(t, b, first)
	reads, ops := k.reads, k.ops
	apply(t, b, first.With(2, first.Node, []service.Change{{Old: ports[7], New: web(7, 3, service.TCP)}}))
	if k.reads != reads || k.ops != ops+1 {
		t.Errorf("%d listings and %d steps for one endpoint, want 0 and 1", k.reads-reads, k.ops-ops)
	}
}

// TestPartialSnapshotTakesNothingAway checks that leftovers of an earlier process stay
// while something could not be read.
func TestPartialSnapshotTakesNothingAway(t *testing.T) {
	k := newFake(service.IPv4)
	apply(t, newBackend(service.IPv4, k, Options{}), snapshot(web(0, 1, service.TCP), web(1, 1, service.TCP)))
	b := newBackend(service.IPv4, k, Options{})
	part := snapshot(web(0, 1, service.TCP))
	part.Incomplete = true
	apply(t, b, part)
	if len(k.servers) != 2 || len(k.routes) != 2 {
		t.Errorf("%d virtual servers and %d addresses, want 2 and 2", len(k.servers), len(k.routes))
	}
	whole := snapshot(web(0, 1, service.TCP))
	if p := apply(t, b, whole); len(p.Outcome().Removed) != 1 || len(k.servers) != 1 || len(k.routes) != 1 {
		t.Errorf("%d reported as removed, %d virtual servers and %d addresses left, want 1, 1 and 1", len(p.Outcome().Removed), len(k.servers), len(k.routes))
	}
}
