// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"kubeproxy/common/service"
	"kubeproxy/test/generate"
)

// foreignServers are two foreign virtual servers, one on an address that no Service has,
// and one where Services have NodePorts.
func foreignServers(f service.Family) []key {
	return []key{
		{generate.NthAddr([]string{"192.0.2.200", "2001:db8::200"}[f], 0), 443, service.TCP},
		{generate.NodeAddr[f], 443, service.TCP},
	}
}

func (k *fake) addForeignServers(f service.Family) {
	for _, at := range foreignServers(f) {
		a := netip.AddrPortFrom(at.addr, 8443)
		k.servers[at] = &fakeServer{server{scheduler: "wlc", flags: flagHashed}, map[netip.AddrPort]dest{a: {addr: a, weight: 7}}}
	}
}

func wantForeignServers(t fataler, k *fake, f service.Family) {
	for _, at := range foreignServers(f) {
		s := k.servers[at]
		if s == nil || s.scheduler != "wlc" || len(s.dests) != 1 || s.dests[netip.AddrPortFrom(at.addr, 8443)].weight != 7 {
			t.Fatalf("the virtual server of somebody else at %s is now %+v", at, s)
		}
	}
}

// TestConvergesAfterRefusals runs syncs that the kernel refuses at random and that
// others disturb. One clean sync must reach the desired state, and the next must find
// nothing to do.
func TestConvergesAfterRefusals(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := generate.Cluster{T: t, Family: service.Family(rapid.IntRange(0, 1).Draw(t, "family"))}
		k := newFake(w.Family)
		k.addForeignServers(w.Family)
		o := Options{Scheduler: rapid.SampledFrom([]string{"", "mh", "wlc"}).Draw(t, "scheduler")}
		b := newBackendWithRules(w.Family, k, o)
		var want *service.Snapshot
		for n := range 5 {
			want = service.New(uint64(n), w.Node(), w.Ports())
			want.Incomplete = w.DrawBool("partial")
			k.refuse = refuse(w)
			k.sets.Refuse, k.tables.Refuse = refuseSetsAndTables(w)
			if w.DrawBool("meddle") {
				tamper(w, k)
			}
			k.clock = k.clock.Add(time.Duration(w.DrawInt("time", 40)) * time.Second)
			applyMayFail(t, b, want)
			if w.DrawBool("restart") {
				b = newBackendWithRules(w.Family, k, o)
			}
		}
		k.refuse, k.sets.Refuse, k.tables.Refuse = nil, nil, nil
		want = service.New(9, want.Node, portsOf(want, w.Family))
		applyUntilDrained(t, b, k, want)
		if p, err := b.Plan(context.Background(), want); err != nil || !p.Empty() {
			t.Fatalf("after a clean round: %v, still to do:\n%s", err, p)
		}
		wantSameAsFresh(t, w.Family, k, want, o)
		wantForeignServers(t, k, w.Family)
	})
}

func portsOf(s *service.Snapshot, f service.Family) []*service.Port {
	var all []*service.Port
	for p := range s.Ports(f) {
		all = append(all, p)
	}
	return all
}

// applyMayFail runs one sync that may fail.
func applyMayFail(t *rapid.T, b *Backend, want *service.Snapshot) {
	p, err := b.Plan(context.Background(), want)
	if err != nil {
		t.Fatalf("Plan: %v", err)
	}
	if p.Empty() {
		return
	}
	if err := p.Apply(context.Background()); err != nil && !errors.Is(err, errInjected) && !errors.Is(err, errExists) && !errors.Is(err, errMissing) {
		t.Fatalf("Apply: %v\n%s", err, p)
	}
}

// applyUntilDrained runs clean syncs until all draining destinations are gone.
func applyUntilDrained(t fataler, b *Backend, k *fake, want *service.Snapshot) {
	for range 2 {
		for _, s := range k.servers {
			for a, x := range s.dests {
				x.conns = 0
				s.dests[a] = x
			}
		}
		k.clock = k.clock.Add(time.Minute)
		apply(t, b, want)
	}
}

// refuse draws which ops are refused.
func refuse(w generate.Cluster) func(op) error {
	return func(op) error {
		if w.DrawInt("refuse", 8) == 0 {
			return errInjected
		}
		return nil
	}
}

// refuseSetsAndTables draws which set elements and tables are refused.
func refuseSetsAndTables(w generate.Cluster) (sets func(step, set string) error, tables func(string) error) {
	some := refuse(w)
	sets = func(step, _ string) error {
		if step == "list" || step == "heads" {
			return nil
		}
		return some(op{})
	}
	return sets, func(string) error { return some(op{}) }
}

// tamper makes a change that another process might make, and adds connections.
func tamper(w generate.Cluster, k *fake) {
	for _, at := range sortedKeys(k.servers) {
		s := k.servers[at]
		if !s.owned() {
			continue
		}
		switch w.DrawInt("server", 6) {
		case 0:
			delete(k.servers, at)
		case 1:
			s.server = server{scheduler: "lc", flags: flagOwned | flagHashed}
		case 2:
			clear(s.dests)
		case 3:
			a := netip.AddrPortFrom(w.Pod(99), 1)
			s.dests[a] = dest{addr: a, weight: 5, conns: uint32(w.DrawInt("conns", 3))}
		case 4:
			for a, x := range s.dests {
				x.weight, x.conns = 0, 1
				s.dests[a] = x
			}
		}
	}
	switch w.DrawInt("routes", 4) {
	case 0:
		k.device = false
		clear(k.routes)
	case 1:
		clear(k.routes)
	}
}

// wantSameAsFresh compares k with a kernel that was programmed in one step.
func wantSameAsFresh(t *rapid.T, f service.Family, k *fake, want *service.Snapshot, o Options) {
	fresh := newFake(f)
	fresh.addForeignServers(f)
	apply(t, newBackendWithRules(f, fresh, o), want)
	if diff := cmp.Diff(fresh.sets.Text()+fresh.tables.Text(), k.sets.Text()+k.tables.Text()); diff != "" {
		t.Fatalf("sets and chains (-fresh +converged):\n%s", diff)
	}
	all := []cmp.Option{
		cmp.AllowUnexported(key{}, fakeServer{}, server{}, dest{}, localRoute{}), cmpopts.IgnoreFields(dest{}, "conns"),
		cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }),
	}
	if diff := cmp.Diff(fresh.servers, k.servers, all...); diff != "" {
		t.Fatalf("virtual servers (-fresh +converged):\n%s", diff)
	}
	if diff := cmp.Diff(fresh.routes, k.routes, all...); diff != "" {
		t.Fatalf("addresses (-fresh +converged):\n%s", diff)
	}
}
