// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"testing"

	"pgregory.net/rapid"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/test/generate"
)

var errInjected = errors.New("injected")

// refusals are what a kernel says that does nothing.
var refusals = []error{errInjected, fmt.Errorf("%w: %w", errInjected, syscall.ENOMEM)}

// TestConvergesAfterRefusals does rounds that the kernel refuses here and
// there, and others meddle with; one clean round must reach the goal, and
// the next must find nothing to do.
func TestConvergesAfterRefusals(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := generate.Cluster{T: t, Family: service.Family(rapid.IntRange(0, 1).Draw(t, "family"))}
		k := &fake{family: w.Family}
		b := &Backend{family: w.Family, options: Options{MasqueradeBit: 14}, driver: k}
		var want *service.Snapshot
		var ports []*service.Port
		for n := range 4 {
			ports = w.Ports()
			want = service.New(uint64(n), w.Node(), ports)
			k.refuse = func([]op) error {
				if w.DrawBool("refuse") {
					return refusals[w.DrawInt("refusal", len(refusals))]
				}
				return nil
			}
			if w.DrawBool("meddle") {
				tamper(w, k)
			}
			if w.DrawBool("restart") {
				b = &Backend{family: w.Family, options: b.options, driver: k}
			}
			if p, err := b.Plan(context.Background(), want); err != nil {
				t.Fatalf("Plan: %v", err)
			} else if err = p.Apply(context.Background()); err != nil && !errors.Is(err, errInjected) {
				t.Fatalf("Apply: %v\n%s", err, p)
			}
		}
		k.refuse = nil
		apply(t, b, want)
		if p, err := b.Plan(context.Background(), want); err != nil || !p.Empty() {
			t.Fatalf("after a clean round: %v, still to do:\n%s", err, p)
		}
		wantSameAsFresh(t, k, want)
		for range 5 {
			judge(t, k, want, w.Conn(ports))
		}
	})
}

// tamper changes the table as another process might.
func tamper(w generate.Cluster, k *fake) {
	k.touched = true
	if k.table == nil {
		return
	}
	chains := slices.Sorted(maps.Keys(k.table.chains))
	c := k.table.chains[chains[w.DrawInt("chain", len(chains))]]
	switch w.DrawInt("kind", 5) {
	case 0:
		k.table = nil
	case 1:
		c.rules = nil
	case 2:
		c.rules = append(c.rules, rule{verdict{code: verdictAccept}})
	case 3:
		for _, name := range slices.Sorted(maps.Keys(k.table.sets)) {
			if w.DrawBool("flush " + name) {
				clear(k.table.sets[name].elements)
			}
		}
	case 4:
		key := w.Pod(99).AsSlice()
		k.table.sets["cluster-ips"].elements[string(key)] = element{in: clusterIPs, key: key}
		k.table.chains["stranger"] = &fakeChain{}
		k.table.sets["stranger"] = &fakeSet{&set{name: "stranger"}, map[string]element{}}
	}
}

// wantSameAsFresh compares with a newly created table. The order of slots may differ, and
// classes that were needed earlier may exist.
func wantSameAsFresh(t *rapid.T, k *fake, want *service.Snapshot) {
	fresh := &fake{family: k.family}
	b := &Backend{family: k.family, options: Options{MasqueradeBit: 14}, driver: fresh}
	apply(t, b, want)
	for name, s := range fresh.table.sets {
		got := k.table.sets[name]
		if got == nil || len(got.elements) != len(s.elements) {
			t.Fatalf("set %s differs from one made at once", name)
		}
	}
	if len(k.table.sets) != len(fresh.table.sets) {
		t.Fatalf("%d sets, want %d", len(k.table.sets), len(fresh.table.sets))
	}
	for name := range k.table.chains {
		if fresh.table.chains[name] == nil && !strings.Contains(name, "pick-") && !strings.Contains(name, "cluster-") && !strings.Contains(name, "external-") {
			t.Fatalf("chain %s should be gone", name)
		}
	}
}

// simple returns a snapshot of n Services with two endpoints each.
func simple(n int) *service.Snapshot {
	var ports []*service.Port
	for i := range n {
		ports = append(ports, &service.Port{
			Name:      service.PortName{Namespace: "shop", Name: fmt.Sprintf("web-%03d", i), Protocol: service.TCP},
			Frontends: []service.Frontend{{Addr: generate.NthAddr("10.96.0.0", i), Port: 80}},
			Cluster: []service.Endpoint{
				{Addr: addrPort("10.244.1.1:8080")}, {Addr: addrPort("10.244.1.2:8080")},
			},
		})
	}
	return service.New(1, &service.Node{NodePorts: service.AnyAddress()}, ports)
}

// The kernel rejects every transaction that concerns one Service.
func TestOneRefusedPortDoesNotBlockOthers(t *testing.T) {
	want := simple(100)
	k := &fake{}
	b := &Backend{driver: k}
	k.refuse = func(ops []op) error {
		for _, o := range ops {
			if o.verb == addElement && o.element.comment == "shop/web-042" {
				return errInjected
			}
		}
		return nil
	}
	p, err := b.Plan(context.Background(), want)
	if err != nil {
		t.Fatalf("Plan: %v", err)
	}
	err = p.Apply(context.Background())
	failed := reconcile.PortErrors(err)
	if len(failed) != 1 || failed[0].Name.Name != "web-042" || !errors.Is(failed[0], errInjected) {
		t.Errorf("Apply = %v, want one failure of web-042", err)
	}
	if got := len(k.table.sets["services"].elements); got != 99 {
		t.Errorf("%d Services programmed, want 99", got)
	}
	if k.commits > 30 {
		t.Errorf("%d transactions, want about two per halving", k.commits)
	}
	k.refuse = nil
	apply(t, b, want)
	if got := len(k.table.sets["services"].elements); got != 100 {
		t.Errorf("%d Services programmed after the retry, want 100", got)
	}
}

// TestCostFollowsChange counts the writes of small changes.
func TestCostFollowsChange(t *testing.T) {
	first := simple(100)
	old := first.Port(service.IPv4, service.PortName{Namespace: "shop", Name: "web-050", Protocol: service.TCP})
	with := func(addrs ...string) *service.Port {
		p := *old
		p.Cluster = nil
		for _, a := range addrs {
			p.Cluster = append(p.Cluster, service.Endpoint{Addr: addrPort(a), Remote: true})
		}
		return &p
	}
	a, b, c := "10.244.1.1:8080", "10.244.1.2:8080", "10.244.1.9:8080"
	tests := []struct {
		situation string
		from, to  []string
		want      string
	}{
		{"one endpoint replaced", []string{a, b}, []string{a, c}, "-endpoints +endpoints"},
		{"the first one leaves, within a class", []string{a, b, c}, []string{b, c}, "-endpoints -endpoints -services +endpoints +services"},
		{"one comes, within a class", []string{a, b, c}, []string{a, b, "10.244.1.3:8080", c}, "+endpoints"},
		{"the last one leaves", []string{a}, nil, "-endpoints -services +services"},
		{"nothing", []string{a, b}, []string{a, b}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.situation, func(t *testing.T) {
			k := &fake{}
			be := &Backend{driver: k}
			from := with(tt.from...)
			s := first.With(2, first.Node, []service.Change{{Old: old, New: from}})
			apply(t, be, s)
			reads := k.reads
			next := s.With(3, s.Node, []service.Change{{Old: from, New: with(tt.to...)}})
			p, err := be.Plan(context.Background(), next)
			if err != nil {
				t.Fatalf("Plan: %v", err)
			}
			if got := summary(p.String()); got != tt.want {
				t.Errorf("plan = %q, want %q", got, tt.want)
			}
			if err := p.Apply(context.Background()); err != nil {
				t.Fatalf("Apply: %v", err)
			}
			if k.reads != reads {
				t.Errorf("the table was read for a small change")
			}
		})
	}
}

// summary returns the sign and the set of each line of a plan, sorted.
func summary(plan string) string {
	var words []string
	for _, line := range strings.Split(strings.TrimSpace(plan), "\n") {
		if sign, rest, found := strings.Cut(line, " "); found {
			set, _, _ := strings.Cut(rest, ":")
			words = append(words, sign+set)
		}
	}
	slices.SortFunc(words, func(a, b string) int {
		if a[0] != b[0] {
			return strings.Index("-+", a[:1]) - strings.Index("-+", b[:1])
		}
		return strings.Compare(a, b)
	})
	return strings.Join(words, " ")
}
