// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/test/generate"
)

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
	err = p.Apply(context.Background()).Err
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
			if got := summary(p.Changes().String()); got != tt.want {
				t.Errorf("plan = %q, want %q", got, tt.want)
			}
			if err := p.Apply(context.Background()).Err; err != nil {
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
