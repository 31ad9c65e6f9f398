// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/test/generate"
)

// wantUpToDate checks that a backend without state finds nothing to do.
func wantUpToDate(t *testing.T, k *fake, want *service.Snapshot) {
	t.Helper()
	p, err := (&Backend{family: k.family, driver: k}).Plan(context.Background(), want)
	if err != nil || !p.Empty() {
		t.Errorf("Plan = %v, still to do:\n%s", err, generate.Text(p))
	}
}

// programs reports whether ops program the named Service.
func programs(ops []op, name string) bool {
	return slices.ContainsFunc(ops, func(o op) bool {
		return o.verb == addElement && o.element.comment == "shop/"+name
	})
}

// A Port that conflicts with another one is retried after that one has moved.
func TestApplyRetriesAtTheEnd(t *testing.T) {
	k := &fake{}
	b := &Backend{driver: k}
	moved := false
	k.refuse = func(ops []op) error {
		if programs(ops, "web-003") && !moved {
			return errInjected
		}
		moved = moved || programs(ops, "web-009")
		return nil
	}
	apply(t, b, simple(10))
	wantUpToDate(t, k, b.have.snapshot)
}

// If the kernel rejects everything, Apply does not try every Port.
func TestApplyGivesUp(t *testing.T) {
	k := &fake{}
	b := &Backend{driver: k}
	asked := 0
	k.refuse = func(ops []op) error {
		asked++
		if ops[0].element.in != nil {
			return errInjected
		}
		return nil
	}
	err := planNow(t, b, simple(200)).Apply(context.Background()).Err
	if err == nil || !strings.Contains(err.Error(), "gave up after 64 refusals") {
		t.Errorf("Apply = %.200v, want it to give up", err)
	}
	if n := len(reconcile.PortErrors(err)); n != maxFailures {
		t.Errorf("%d ports are named, want %d", n, maxFailures)
	}
	if asked > 3*maxFailures {
		t.Errorf("the kernel was asked %d times", asked)
	}
}

// A failure of a prerequisite unit ends Apply and names no Port.
func TestApplyPrepares(t *testing.T) {
	k := &fake{refuse: func([]op) error { return errInjected }}
	err := planNow(t, &Backend{driver: k}, simple(2)).Apply(context.Background()).Err
	if !errors.Is(err, errInjected) || !strings.HasPrefix(err.Error(), "prepare table ip kube-services") || len(reconcile.PortErrors(err)) > 0 {
		t.Errorf("Apply = %v", err)
	}
}

// A cancelled context ends the search for the Port at fault.
func TestApplyStops(t *testing.T) {
	k := &fake{}
	b := &Backend{driver: k}
	apply(t, b, simple(0))
	ctx, cancel := context.WithCancel(context.Background())
	asked := 0
	k.refuse = func([]op) error {
		asked++
		cancel()
		return errInjected
	}
	if err := planNow(t, b, simple(50)).Apply(ctx).Err; !errors.Is(err, errInjected) || asked != 1 {
		t.Errorf("Apply = %v after %d transactions, want the first one's", err, asked)
	}
}

func planNow(t *testing.T, b *Backend, want *service.Snapshot) reconcile.Plan {
	t.Helper()
	p, err := b.Plan(context.Background(), want)
	if err != nil {
		t.Fatalf("Plan: %v", err)
	}
	return p
}

// Large changes are split, so that other users of nftables get their turn.
func TestApplyCutsLargeChanges(t *testing.T) {
	k := &fake{}
	b := &Backend{driver: k}
	var sizes []int
	k.refuse = func(ops []op) error {
		sizes = append(sizes, len(ops))
		return nil
	}
	for _, want := range []*service.Snapshot{servicesWith(200, 100), simple(0)} {
		sizes = nil
		apply(t, b, want)
		if most := slices.Max(sizes); most > chunk+300 || len(sizes) < 3 || len(sizes) > 6 {
			t.Errorf("transactions of %v operations, want some of about %d", sizes, chunk)
		}
	}
	if n := len(b.have.shared); n != 0 {
		t.Errorf("%d shared elements are remembered of nothing", n)
	}
}

// servicesWith returns n Services with ends endpoints each. Both are at most 255.
func servicesWith(n, ends int) *service.Snapshot {
	var ports []*service.Port
	for p := range simple(n).Ports(service.IPv4) {
		ports = append(ports, withEndpoints(p, 1, ends))
	}
	return service.New(1, &service.Node{NodePorts: service.AnyAddress()}, ports)
}

// withEndpoints returns a copy of p with the endpoints first to last.
func withEndpoints(p *service.Port, first, last int) *service.Port {
	c := *p
	c.Cluster = nil
	for i := first; i <= last; i++ {
		c.Cluster = append(c.Cluster, service.Endpoint{Addr: netip.AddrPortFrom(generate.NthAddr("10.244.2.0", i), 8080)})
	}
	return &c
}

// TestSmallChangesAddUp applies a series of changes to one Service. Each is planned from
// the known state, and none reads the table.
func TestSmallChangesAddUp(t *testing.T) {
	type step struct{ first, last int } // endpoints; none if last is 0
	for name, steps := range map[string][]step{
		"slots out of order and back in order": {{1, 3}, {2, 3}, {2, 4}, {7, 9}, {8, 10}},
		"gone and back":                        {{1, 5}, {3, 6}, {0, 0}, {3, 6}, {2, 6}},
		"a class that grows twice":             {{1, 20}, {1, 5}, {1, 40}, {1, 20}},
		"from one to none to one":              {{1, 1}, {5, 4}, {2, 2}},
	} {
		t.Run(name, func(t *testing.T) {
			k := &fake{}
			b := &Backend{driver: k}
			s := simple(3)
			apply(t, b, s)
			first := s.Port(service.IPv4, service.PortName{Namespace: "shop", Name: "web-001", Protocol: service.TCP})
			other := s.Port(service.IPv4, service.PortName{Namespace: "shop", Name: "web-002", Protocol: service.TCP})
			old := first
			for _, x := range steps {
				next := withEndpoints(first, x.first, x.last)
				if x.last == 0 {
					next = nil
				}
				changes := []service.Change{{Old: old, New: next}, {Old: other, New: withEndpoints(other, 1, len(steps))}}
				s = s.With(s.Generation+1, s.Node, changes)
				apply(t, b, s)
				wantUpToDate(t, k, s)
				old, other = next, changes[1].New
			}
			if k.reads != 1+len(steps) { // one at the start, one for each wantUpToDate
				t.Errorf("%d times read", k.reads)
			}
		})
	}
}

// After a partly failed sync, the next one handles what was applied, also if the desired
// state is the previous one again.
func TestChangesAfterAFailure(t *testing.T) {
	k := &fake{}
	b := &Backend{driver: k}
	apply(t, b, servicesWith(5, 2))
	want := servicesWith(5, 3)
	k.refuse = func(ops []op) error {
		if programs(ops, "web-003") {
			return errInjected
		}
		return nil
	}
	if err := planNow(t, b, want).Apply(context.Background()).Err; len(reconcile.PortErrors(err)) != 1 {
		t.Errorf("Apply = %v, want a failure of one port", err)
	}
	k.refuse = nil
	back := servicesWith(5, 2)
	apply(t, b, back)
	wantUpToDate(t, k, back)
}
