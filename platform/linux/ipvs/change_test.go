// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/test/generate"
)

// first is the virtual server of web(0, ...) over TCP.
var first = key{generate.NthAddr("10.96.0.0", 0), 80, service.TCP}

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
		if timeout := k.servers[first].timeout; timeout != 3600 {
			t.Errorf("clients stay for %d s, want 3600", timeout)
		}
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
	b := newBackend(service.IPv4, k, Options{Exclude: []netip.Prefix{netip.PrefixFrom(first.addr, 32)}})
	one, nobody := web(0, 1, service.TCP), web(0, 0, service.TCP)
	k.servers[first] = &fakeServer{server{scheduler: "wlc"}, map[netip.AddrPort]dest{}}
	s := snapshot(nobody)
	apply(t, b, s)
	next := s.With(2, s.Node, []service.Change{{Old: nobody, New: one}})
	for _, reason := range []error{errExists, errForeign} { // the kernel's error, then ours
		err := planOf(t, b, next).Apply(context.Background()).Err
		if failed := reconcile.PortErrors(err); len(failed) != 1 || !errors.Is(err, reason) {
			t.Errorf("Apply = %v, want %v", err, reason)
		}
		if n := len(k.servers[first].dests); n > 0 {
			t.Errorf("the virtual server of somebody else has %d destinations of ours", n)
		}
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
		if b.draining.Load() {
			t.Errorf("after %s these drain: %v", after, b.drainingDests)
		}
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
		if failed := reconcile.PortErrors(err); len(failed) != 1 || !errors.Is(err, errForeign) {
			t.Errorf("round %d: Apply = %v, want %v", i, err, errForeign)
		}
		if got := k.servers[first]; got.server != theirs || len(got.dests) > 0 {
			t.Errorf("round %d: there is %v", i, got)
		}
	}
	delete(k.servers, first)
	apply(t, b, s)
	for i := range 2 {
		k.servers[first].server = theirs
		k.clock = k.clock.Add(time.Minute)
		if p := apply(t, b, s); len(p.Outcome().Drift) != 1 || !k.servers[first].owned() {
			t.Errorf("the drift is %q, and there is %v", p.Outcome().Drift, k.servers[first])
		}
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
		if failed := reconcile.PortErrors(err); len(failed) != 1 || failed[0].Name != one.Name {
			t.Errorf("Apply = %v, want a failure of %s alone", err, one.Name)
		}
		_, routed := k.routes[first.addr]
		_, other := k.routes[two.Frontends[0].Addr]
		if routed || k.servers[first] != nil || !other {
			t.Errorf("the addresses are %v and the virtual servers %v", k.routes, k.servers)
		}
	}
	b.rules.(*fakeRules).refuse = nil
	apply(t, b, snapshot(one, two))
	if _, routed := k.routes[first.addr]; !routed || len(k.servers[first].dests) != 1 {
		t.Errorf("the addresses are %v and the virtual servers %v", k.routes, k.servers)
	}
}
