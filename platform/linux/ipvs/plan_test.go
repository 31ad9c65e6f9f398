// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

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

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/test/generate"
	"kubeproxy/test/kit"
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
	kit.Same(t, "plan (-want +got)", want, got)
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
	want := "+ destination 10.244.1.1:8080 of 10.96.0.0:80 tcp # shop/web-0\n"
	kit.Check(t, strings.Contains(plan.Changes().String(), want), "no %q in\n%s", want, plan.Changes())
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
	kit.Must(t, p.Apply(context.Background()).Err)
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
	s := p.Changes().String()
	kit.Check(t, s == "" && k.ops == ops, "a new process would do:\n%s", s)
}

// TestDrift checks that foreign changes are found within the sync period, and reported.
func TestDrift(t *testing.T) {
	k := newFake(service.IPv4)
	b := newBackend(service.IPv4, k, Options{})
	want := snapshot(web(0, 2, service.TCP), web(1, 1, service.TCP))
	apply(t, b, want)
	first, second := addressAt(generate.NthAddr("10.96.0.0", 0), 80, service.TCP), addressAt(generate.NthAddr("10.96.0.0", 1), 80, service.TCP)
	wrongMode := netip.MustParseAddrPort("10.244.1.2:8080")
	delete(k.servers, second)
	delete(k.servers[first].dests, netip.MustParseAddrPort("10.244.1.1:8080"))
	k.servers[first].scheduler = "lc"
	k.servers[first].dests[wrongMode] = dest{addr: wrongMode, weight: 1, wrongMode: true}
	delete(k.routes, second.Addr)
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
	kit.Must(t, p.Apply(context.Background()).Err)
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
	p := planOf(t, b, want)
	kit.Check(t, len(p.Outcome().Drift) == 3, "after a sync period of 5 s the drift is %q", p.Outcome().Drift)
}

// TestForeignServers checks that a foreign virtual server stays unchanged on an address
// of the node, and in an excluded prefix.
func TestForeignServers(t *testing.T) {
	excluded := Options{Exclude: []netip.Prefix{netip.MustParsePrefix("10.96.0.1/32")}}
	k := newFake(service.IPv4)
	other := server{scheduler: "wlc"}
	at := []service.Address{addressAt(generate.NodeAddr[0], 30080, service.TCP), addressAt(generate.NthAddr("10.96.0.0", 1), 80, service.TCP), addressAt(generate.NthAddr("10.96.0.0", 1), 81, service.TCP)}
	for _, x := range at {
		k.servers[x] = &fakeServer{other, nil}
	}
	k.servers[at[2]].flags = flagOwned
	node := web(0, 1, service.TCP)
	node.Frontends = append(node.Frontends, service.Frontend{Kind: service.NodePort, Port: 30080})
	b := newBackend(service.IPv4, k, excluded)
	err := planOf(t, b, snapshot(node, web(1, 1, service.TCP))).Apply(context.Background()).Err
	failed := reconcile.PortErrors(err)
	kit.Check(t, len(failed) == 2 && errors.Is(failed[0], errForeign) && errors.Is(failed[1], errForeign),
		"Apply = %v, want two that somebody else has", err)
	kit.Must(t, b.Cleanup(context.Background()))
	for _, x := range at {
		kit.Check(t, k.servers[x] != nil && k.servers[x].scheduler == "wlc", "the virtual server at %s is now %v", x, k.servers[x])
	}
	kit.Check(t, len(k.servers) == 3 && len(k.routes) == 0 && !k.device,
		"cleanup left %v, %v, device %t", k.servers, k.routes, k.device)
}

// TestNoAddressWithoutRules checks that an address gets no route without rules: packets
// to it would reach any local listener.
func TestNoAddressWithoutRules(t *testing.T) {
	k := newFake(service.IPv4)
	b := newBackend(service.IPv4, k, Options{})
	b.rules.(*fakeRules).refuse = func(op) error { return errInjected }
	err := planOf(t, b, snapshot(web(0, 1, service.TCP))).Apply(context.Background()).Err
	kit.Check(t, errors.Is(err, errInjected), "Apply = %v", err)
	kit.Check(t, len(k.routes) == 0, "addresses without rules: %v", k.routes)
}

// TestOneBadPort checks that a Service that cannot be programmed does not hold back the
// others, and is named.
func TestOneBadPort(t *testing.T) {
	k := newFake(service.IPv4)
	b := newBackend(service.IPv4, k, Options{})
	k.refuse = func(o op) error {
		if o.key.Addr == generate.NthAddr("10.96.0.0", 1) {
			return errInjected
		}
		return nil
	}
	err := planOf(t, b, snapshot(web(0, 1, service.TCP), web(1, 9, service.TCP), web(2, 1, service.TCP))).Apply(context.Background()).Err
	if failed := reconcile.PortErrors(err); len(failed) != 1 || failed[0].Name.Name != "web-1" || !strings.Contains(err.Error(), "virtual server 10.96.0.1:80") {
		t.Errorf("Apply = %v, want one failure of web-1", err)
	}
	kit.Check(t, len(k.servers) == 2, "%d virtual servers, want 2", len(k.servers))
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
	kit.Check(t, k.reads == reads && k.ops == ops+1,
		"%d listings and %d steps for one endpoint, want 0 and 1", k.reads-reads, k.ops-ops)
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
	kit.Check(t, len(k.servers) == 2 && len(k.routes) == 2,
		"%d virtual servers and %d addresses, want 2 and 2", len(k.servers), len(k.routes))
	whole := snapshot(web(0, 1, service.TCP))
	if p := apply(t, b, whole); len(p.Outcome().Removed) != 1 || len(k.servers) != 1 || len(k.routes) != 1 {
		t.Errorf("%d reported as removed, %d virtual servers and %d addresses left, want 1, 1 and 1", len(p.Outcome().Removed), len(k.servers), len(k.routes))
	}
}

// first is the virtual server of web(0, ...) over TCP.
var first = addressAt(generate.NthAddr("10.96.0.0", 0), 80, service.TCP)

// withRemoteEndpoint returns p with one endpoint, which is remote.
func withRemoteEndpoint(p *service.Port, name string) *service.Port {
	q := *p
	q.Name.Port = name
	q.Cluster = []service.Endpoint{{Addr: netip.MustParseAddrPort("10.244.1.9:8080")}}
	return &q
}

// applyChanges runs one sync after the changes cs.
func applyChanges(t *testing.T, b *Backend, s *service.Snapshot, cs ...service.Change) (*service.Snapshot, *plan) {
	t.Helper()
	next := s.With(s.Generation+1, s.Node, cs)
	return next, apply(t, b, next)
}

// lastEndpointDraining returns a fake kernel in which the only endpoint that a Service
// has left is draining.
func lastEndpointDraining(t *testing.T) (k *fake, b *Backend, s *service.Snapshot, one, nobody *service.Port) {
	t.Helper()
	k = newFake(service.IPv4)
	b = newBackend(service.IPv4, k, Options{})
	one, nobody = web(0, 1, service.TCP), web(0, 0, service.TCP)
	s = snapshot(one)
	apply(t, b, s)
	setConns(k, 1)
	s, _ = applyChanges(t, b, s, service.Change{Old: one, New: nobody})
	return k, b, s, one, nobody
}

// TestEndpointComesAsTheLastHasDrained adds an endpoint in the sync that ends the
// draining of the last one.
func TestEndpointComesAsTheLastHasDrained(t *testing.T) {
	k, b, s, one, nobody := lastEndpointDraining(t)
	setConns(k, 0)
	k.clock = k.clock.Add(drainPollInterval)
	_, p := applyChanges(t, b, s, service.Change{Old: nobody, New: withRemoteEndpoint(one, "")})
	wantLines(t, p, "+ destination 10.244.1.9:8080 of 10.96.0.0:80 tcp", "- destination 10.244.1.1:8080 of 10.96.0.0:80 tcp")
}

// TestAffinityComesWhileTheLastDrains changes the settings of a virtual server that
// exists only for draining endpoints.
func TestAffinityComesWhileTheLastDrains(t *testing.T) {
	for _, resync := range []time.Duration{0, time.Minute} {
		k, b, s, _, nobody := lastEndpointDraining(t)
		sticky, again := web(0, 0, service.TCP), web(0, 1, service.TCP)
		sticky.Affinity, again.Affinity = time.Hour, time.Hour
		k.clock = k.clock.Add(resync)
		s, _ = applyChanges(t, b, s, service.Change{Old: nobody, New: sticky})
		_, p := applyChanges(t, b, s, service.Change{Old: sticky, New: again})
		wantLines(t, p, "~ destination 10.244.1.1:8080 of 10.96.0.0:80 tcp has weight 1")
		timeout := k.servers[first].timeout
		kit.Check(t, timeout == 3600, "clients stay for %d s, want 3600", timeout)
	}
}

// TestAddressPassesToAnotherPort moves an address to a Port of another name, as after a
// rename. The address must be served at each moment.
func TestAddressPassesToAnotherPort(t *testing.T) {
	k := newFake(service.IPv4)
	b := newBackend(service.IPv4, k, Options{})
	one := web(0, 1, service.TCP)
	s := snapshot(one, web(1, 1, service.TCP))
	apply(t, b, s)
	setConns(k, 1)
	want := [][]string{
		{"~ destination 10.244.1.1:8080 of 10.96.0.0:80 tcp drains, for 1h0m0s at most", "+ destination 10.244.1.9:8080 of 10.96.0.0:80 tcp"},
		nil, nil,
	}
	for i, name := range []string{"aaa", "zzz", "aaa"} { // the old one is planned first, and last
		next := withRemoteEndpoint(one, name)
		var p *plan
		s, p = applyChanges(t, b, s, service.Change{Old: one}, service.Change{New: next})
		wantLines(t, p, want[i]...)
		one = next
	}
	_, p := applyChanges(t, b, s, service.Change{Old: one})
	wantLines(t, p, "- virtual server 10.96.0.0:80 tcp", "- address 10.96.0.0")
}

// TestForeignServerGetsNoDestinations checks that a foreign virtual server gets no
// destination of ours when a Service gets its first endpoints.
func TestForeignServerGetsNoDestinations(t *testing.T) {
	k := newFake(service.IPv4)
	b := newBackend(service.IPv4, k, Options{Exclude: []netip.Prefix{netip.PrefixFrom(first.Addr, 32)}})
	one, nobody := web(0, 1, service.TCP), web(0, 0, service.TCP)
	k.servers[first] = &fakeServer{server{scheduler: "wlc"}, map[netip.AddrPort]dest{}}
	s := snapshot(nobody)
	apply(t, b, s)
	next := s.With(2, s.Node, []service.Change{{Old: nobody, New: one}})
	for _, reason := range []error{errExists, errForeign} { // the kernel's error, then ours
		err := planOf(t, b, next).Apply(context.Background()).Err
		failed := reconcile.PortErrors(err)
		kit.Check(t, len(failed) == 1 && errors.Is(err, reason), "Apply = %v, want %v", err, reason)
		n := len(k.servers[first].dests)
		kit.Check(t, n == 0, "the virtual server of somebody else has %d destinations of ours", n)
	}
}

// TestDrainingEndpointRemovedExternally has another process delete a draining
// destination.
func TestDrainingEndpointRemovedExternally(t *testing.T) {
	for _, after := range []time.Duration{drainPollInterval, time.Minute} {
		k := newFake(service.IPv4)
		b := newBackend(service.IPv4, k, Options{})
		two, one := web(0, 2, service.TCP), web(0, 1, service.TCP)
		s := snapshot(two)
		apply(t, b, s)
		setConns(k, 1)
		s, _ = applyChanges(t, b, s, service.Change{Old: two, New: one})
		delete(k.servers[first].dests, two.Cluster[1].Addr)
		k.clock = k.clock.Add(after)
		s, _ = applyChanges(t, b, s)
		kit.Check(t, !b.draining.Load(), "after %s these drain: %v", after, b.drainingDests)
		_, p := applyChanges(t, b, s, service.Change{Old: one, New: two})
		wantLines(t, p, "+ destination 10.244.1.2:8080 of 10.96.0.0:80 tcp")
	}
}

// TestForeignServerStaysForeign has a foreign virtual server that existed first. It
// stays foreign, in later syncs and after a restart, although the address has a route.
// When it is deleted, ours replaces it, and foreign changes of ours are undone.
func TestForeignServerStaysForeign(t *testing.T) {
	k := newFake(service.IPv4)
	theirs := server{scheduler: "wlc", flags: flagHashed}
	k.servers[first] = &fakeServer{theirs, map[netip.AddrPort]dest{}}
	b, s := newBackend(service.IPv4, k, Options{}), snapshot(web(0, 1, service.TCP), web(1, 1, service.TCP))
	for i := range 4 {
		if i == 3 {
			b = newBackend(service.IPv4, k, Options{})
		}
		err := planOf(t, b, s).Apply(context.Background()).Err
		failed := reconcile.PortErrors(err)
		kit.Check(t, len(failed) == 1 && errors.Is(err, errForeign), "round %d: Apply = %v, want %v", i, err, errForeign)
		got := k.servers[first]
		kit.Check(t, got.server == theirs && len(got.dests) == 0, "round %d: there is %v", i, got)
	}
	delete(k.servers, first)
	apply(t, b, s)
	for i := range 2 {
		k.servers[first].server = theirs
		k.clock = k.clock.Add(time.Minute)
		p := apply(t, b, s)
		kit.Check(t, len(p.Outcome().Drift) == 1 && k.servers[first].owned(), "the drift is %q, and there is %v", p.Outcome().Drift, k.servers[first])
		if i == 0 {
			b = newBackend(service.IPv4, k, Options{})
			apply(t, b, s)
		}
	}
}

// TestServiceWithoutRulesIsNotReached checks that a Service whose rules the kernel
// refused gets no route: otherwise packets would reach a process that listens on all
// addresses of the node.
func TestServiceWithoutRulesIsNotReached(t *testing.T) {
	k := newFake(service.IPv4)
	b := newBackend(service.IPv4, k, Options{})
	one, two := web(0, 1, service.TCP), web(1, 1, service.TCP)
	b.rules.(*fakeRules).refuse = func(op) error { return &reconcile.PortError{Name: one.Name, Err: errInjected} }
	for range 2 { // the second one compares with the kernel
		err := planOf(t, b, snapshot(one, two)).Apply(context.Background()).Err
		failed := reconcile.PortErrors(err)
		kit.Check(t, len(failed) == 1 && failed[0].Name == one.Name, "Apply = %v, want a failure of %s alone", err, one.Name)
		_, routed := k.routes[first.Addr]
		_, other := k.routes[two.Frontends[0].Addr]
		kit.Check(t, !routed && k.servers[first] == nil && other,
			"the addresses are %v and the virtual servers %v", k.routes, k.servers)
	}
	b.rules.(*fakeRules).refuse = nil
	apply(t, b, snapshot(one, two))
	_, routed := k.routes[first.Addr]
	kit.Check(t, routed && len(k.servers[first].dests) == 1, "the addresses are %v and the virtual servers %v", k.routes, k.servers)
}

// TestChangesAreWhatIsWanted runs syncs that read nothing from the kernel except
// draining destinations. Each must succeed. After each the kernel must serve the same as
// a new one, apart from draining destinations.
func TestChangesAreWhatIsWanted(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := generate.Cluster{T: t, Family: service.Family(rapid.IntRange(0, 1).Draw(t, "family"))}
		k := newFake(w.Family)
		b := newBackend(w.Family, k, Options{})
		b.SetResync(time.Hour)
		node := w.Node()
		for n := range 6 {
			ports := w.Ports()
			for i, p := range ports {
				if w.DrawBool("own") { // maybe where another Service has a NodePort
					p.Frontends = append(p.Frontends, service.Frontend{Kind: service.ExternalIP, Addr: generate.NodeAddr[w.Family], Port: uint16(30004 - i)})
				}
			}
			want := service.New(uint64(n), node, ports)
			apply(t, b, want)
			wantSameServing(t, b, k, want)
			k.drawConns(w)
			k.clock = k.clock.Add(time.Duration(w.DrawInt("time", 8)) * time.Second)
		}
	})
}

// drawConns gives some destinations a connection.
func (fa *fake) drawConns(w generate.Cluster) {
	for _, at := range sortedKeys(fa.servers) {
		dests := fa.servers[at].dests
		for _, a := range slices.SortedFunc(maps.Keys(dests), netip.AddrPort.Compare) {
			x := dests[a]
			x.conns = uint32(w.DrawInt("conns", 2))
			dests[a] = x
		}
	}
}

// testingTB is a *testing.T or *rapid.T.
type testingTB interface {
	fataler
	Errorf(string, ...any)
}

// wantSameServing compares what accepts new connections with a kernel that was
// programmed in one step.
func wantSameServing(t testingTB, b *Backend, k *fake, want *service.Snapshot) {
	fresh := newFake(b.family)
	apply(t, newBackend(b.family, fresh, b.options), want)
	for at, s := range k.servers {
		wants := fresh.servers[at]
		if wants == nil {
			wants = &fakeServer{server: s.server}
		}
		if s.normalized() != wants.normalized() {
			t.Errorf("%s is %+v, want %+v", at, s.server, wants.server)
		}
		open := maps.Clone(s.dests)
		for a, x := range open {
			if x.conns = 0; x.weight == 0 {
				delete(open, a)
			} else {
				open[a] = x
			}
		}
		if !maps.Equal(open, wants.dests) {
			t.Errorf("%s has %v, want %v", at, open, wants.dests)
		}
	}
	for at := range fresh.servers {
		if k.servers[at] == nil {
			t.Errorf("%s is not there", at)
		}
	}
	var sets state
	k.readSets(&sets)
	for at := range k.servers {
		if !sets.serverSet[at] {
			t.Errorf("%s is not in the set of virtual servers", at)
		}
	}
	if len(sets.serverSet) > len(k.servers) {
		t.Errorf("in the set are %v, and there are %v", sets.serverSet, k.servers)
	}
	if !maps.Equal(k.routes, fresh.routes) {
		t.Errorf("addresses %v, want %v", k.routes, fresh.routes)
	}
}

const cluster, local = service.PolicyCluster, service.PolicyLocal

// externalService is a Service with an external address, whose endpoints are local or
// remote.
func externalService(internal, external service.Policy, localAddrs, remoteAddrs string) *service.Port {
	p := web(0, 0, service.TCP)
	p.Internal, p.External = internal, external
	p.Frontends = append(p.Frontends, service.Frontend{Kind: service.ExternalIP, Addr: netip.MustParseAddr("198.51.100.9"), Port: 80})
	for _, a := range strings.Fields(localAddrs) {
		p.Local = append(p.Local, service.Endpoint{Addr: netip.MustParseAddrPort(a + ":8080"), Local: true})
	}
	p.Cluster = append(p.Cluster, p.Local...)
	for _, a := range strings.Fields(remoteAddrs) {
		p.Cluster = append(p.Cluster, service.Endpoint{Addr: netip.MustParseAddrPort(a + ":8080"), Remote: true})
	}
	if internal == cluster && external == cluster {
		p.Local = nil
	}
	return p
}

// summarize returns a word for each op on the external address's virtual server.
func summarize(ops []op) string {
	var words []string
	for _, o := range ops {
		if o.key.Addr != netip.MustParseAddr("198.51.100.9") {
			continue
		}
		host := o.dest.addr.Addr()
		switch {
		case o.verb == addServer:
			words = append(words, "+server")
		case o.verb == delServer:
			words = append(words, "-server")
		case o.verb == addDest, o.dest.weight > 0:
			words = append(words, "+"+host.String())
		default:
			words = append(words, "-"+host.String())
		}
	}
	return strings.Join(words, " ")
}

// opsAroundRules returns the ops on the external address before the rules change, and
// after.
func opsAroundRules(t *testing.T, old, next *service.Port, whole bool) (first, then string) {
	t.Helper()
	b := newBackend(service.IPv4, newFake(service.IPv4), Options{})
	s := snapshot(old)
	apply(t, b, s)
	b.poller.requested.Store(whole)
	p := planOf(t, b, s.With(2, s.Node, []service.Change{{Old: old, New: next}})).(*plan)
	var before, after []op
	for _, u := range p.units {
		before, after = append(before, u.beforeRules...), append(after, u.afterRules...)
	}
	return summarize(before), summarize(after)
}

// TestOrderOfDatagrams checks that a server without connections to wait for is also
// deleted before the rules reject everything.
func TestOrderOfDatagrams(t *testing.T) {
	for _, whole := range []bool{false, true} {
		old, next := externalService(cluster, cluster, "10.244.1.1", ""), externalService(cluster, cluster, "", "")
		old.Name.Protocol, next.Name.Protocol = service.UDP, service.UDP
		before, after := opsAroundRules(t, old, next, whole)
		kit.Check(t, before == "-server" && after == "", "%q before the rules change, and %q after", before, after)
	}
}

// TestOrderAroundTheRules covers each way in which changes of destinations and rules are
// ordered.
func TestOrderAroundTheRules(t *testing.T) {
	const here, there, far = "10.244.1.1", "10.244.2.1", "10.244.2.2"
	bare := externalService(cluster, cluster, here, there)
	bare.Frontends = bare.Frontends[:1]
	for name, x := range map[string]struct {
		old, next     *service.Port
		before, after string
	}{
		"endpoints elsewhere come when they are masqueraded": {
			externalService(cluster, local, here, there), externalService(cluster, cluster, here, there), "", "+" + there,
		},
		"and leave while they are": {
			externalService(cluster, cluster, here, there), externalService(cluster, local, here, there), "-" + there, "",
		},
		"pods go on to the ClusterIP before the last one leaves": {
			externalService(cluster, cluster, "", there), externalService(cluster, local, "", there), "", "-" + there,
		},
		"an address begins with its rules": {
			bare, externalService(cluster, cluster, here, there), "", "+server +" + here + " +" + there,
		},
		"and ends before them": {
			externalService(cluster, cluster, here, there), bare, "-server", "",
		},
		"the first endpoint is there when the rules let in": {
			externalService(cluster, local, "", there), externalService(cluster, cluster, "", there), "+server +" + there, "",
		},
		"but not before they say whom, where all were refused": {
			externalService(cluster, cluster, "", ""), externalService(cluster, cluster, here, ""), "", "+server +" + here,
		},
		"and the last one leaves before they refuse all": {
			externalService(cluster, cluster, here, ""), externalService(cluster, cluster, "", ""), "-" + here, "",
		},
		"all are replaced, by those that come": {
			externalService(cluster, cluster, "", there), externalService(cluster, cluster, "", far), "", "+" + far + " -" + there,
		},
		"all are replaced, while they are masqueraded": {
			externalService(cluster, cluster, "", there), externalService(cluster, local, here, ""), "+" + here + " -" + there, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, whole := range []bool{false, true} { // compared with the kernel
				before, after := opsAroundRules(t, x.old, x.next, whole)
				kit.Same(t, "before the rules change, and after (-want +got)", []string{x.before, x.after}, []string{before, after})
			}
		})
	}
}

// TestOrderAfterARefusal starts with a virtual server without destinations behind rules
// that admit clients, as a failed sync or a killed process leaves it.
func TestOrderAfterARefusal(t *testing.T) {
	const here, there = "10.244.1.1", "10.244.2.1"
	k := newFake(service.IPv4)
	b := newBackend(service.IPv4, k, Options{})
	k.refuse = func(o op) error {
		if o.verb == addDest {
			return errInjected
		}
		return nil
	}
	err := planOf(t, b, snapshot(externalService(cluster, local, here, there))).Apply(t.Context()).Err
	kit.Need(t, err != nil, "Apply says nothing of what was refused")
	k.refuse = nil
	p := planOf(t, b, snapshot(externalService(cluster, cluster, "", there))).(*plan)
	if u := p.units[0]; summarize(u.beforeRules) != "" || summarize(u.afterRules) != "+"+there {
		t.Errorf("%q before the rules masquerade, and %q after", summarize(u.beforeRules), summarize(u.afterRules))
	}
}
