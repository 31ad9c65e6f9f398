// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

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
	"kubeproxy/test/kit"
)

// TestLoopbackIsClosedAgain lets NodePorts answer on loopback addresses. Then a backend
// without that option runs, or a cleanup.
func TestLoopbackIsClosedAgain(t *testing.T) {
	for end, undo := range map[string]func(*testing.T, *fake){
		"another choice": func(t *testing.T, k *fake) { program(t, NewWith(service.IPv4, Options{MasqueradeBit: 14}, k)) },
		"a relay": func(t *testing.T, k *fake) {
			o := Options{MasqueradeBit: 14, LocalhostNodePorts: true}
			o.Relay[service.IPv4] = netip.MustParseAddr("169.254.107.112")
			program(t, NewWith(service.IPv4, o, k))
		},
		"a cleanup": func(t *testing.T, k *fake) {
			if err := NewWith(service.IPv4, Options{}, k).Cleanup(context.Background()); err != nil {
				t.Errorf("Cleanup: %v", err)
			}
		},
	} {
		for _, others := range []bool{false, true} { // whether route_localnet was set before
			k := newFake()
			k.RouteLocalnet = others
			program(t, local(k))
			if _, marked := k.Tables[filter][localnetMark.name]; !k.RouteLocalnet || marked == others {
				t.Errorf("%s, others %t: open %t, marked %t", end, others, k.RouteLocalnet, marked)
			}
			program(t, local(k)) // as another process
			undo(t, k)
			if _, marked := k.Tables[filter][localnetMark.name]; k.RouteLocalnet != others || marked {
				t.Errorf("%s, others %t: then open %t, marked %t", end, others, k.RouteLocalnet, marked)
			}
		}
	}
}

func local(k *fake) *Backend {
	return NewWith(service.IPv4, Options{MasqueradeBit: 14, LocalhostNodePorts: true}, k)
}

func program(t *testing.T, b *Backend) {
	t.Helper()
	p, err := b.Plan(context.Background(), simple(3))
	if err == nil {
		err = p.Apply(context.Background()).Err
	}
	kit.Check(t, err == nil, "program: %v", err)
	if p, err := b.Plan(context.Background(), simple(3)); err != nil || !p.Empty() {
		t.Errorf("once more: %v, still to do:\n%s", err, generate.Text(p))
	}
}

// TestLoopbackMarkComesAgain removes everything that is ours.
func TestLoopbackMarkComesAgain(t *testing.T) {
	k := newFake()
	b := local(k)
	program(t, b)
	k.Tables = newFake().Tables
	k.Dirty = true
	program(t, b)
	if _, marked := k.Tables[filter][localnetMark.name]; !marked {
		t.Error("nobody knows any more who opened loopback addresses")
	}
}

// TestLoopbackDespiteRefusal enables route_localnet although a Service is refused.
func TestLoopbackDespiteRefusal(t *testing.T) {
	k := newFake()
	k.Refuse = func(text string) error {
		if strings.Contains(text, "shop/web-001") {
			return errInjected
		}
		return nil
	}
	b := local(k)
	p, err := b.Plan(context.Background(), simple(3))
	kit.Must(t, err)
	err = p.Apply(context.Background()).Err
	if failed := reconcile.PortErrors(err); len(failed) != 1 || !k.RouteLocalnet {
		t.Errorf("Apply = %v, open %t; want one failure, and open", err, k.RouteLocalnet)
	}
}

// TestLoopbackThatStaysClosed has a node that cannot route loopback addresses.
// Everything else is in force, no rule leads a local client astray, and the backend
// reports what is missing until the node allows it.
func TestLoopbackThatStaysClosed(t *testing.T) {
	k := newFake()
	k.LocalnetErr = errInjected
	b, want := local(k), simple(3)
	check := func(open bool) {
		t.Helper()
		p := apply(t, b, want)
		rules := k.Text()
		if closed := strings.Contains(rules, "-d 127.0.0.0/8 -j RETURN"); closed == open || strings.Contains(rules, "! -s 127.0.0.0/8") != open {
			t.Errorf("open %t, and the rules are\n%s", open, rules)
		}
		if _, marked := k.Tables[filter][localnetMark.name]; k.RouteLocalnet != open || marked != open {
			t.Errorf("open %t, marked %t; want %t", k.RouteLocalnet, marked, open)
		}
		if lack := p.Outcome().Degraded; strings.Contains(lack, errInjected.Error()) == open || (lack == "") != open {
			t.Errorf("open %t: lacks %q", open, lack)
		}
	}
	check(false)
	k.LocalnetErr = nil
	check(true)
}

// TestLoopbackMarkIsNoDrift checks that the next process finds the mark, keeps or
// removes it, and reports no drift when it reads the tables again for another reason.
func TestLoopbackMarkIsNoDrift(t *testing.T) {
	for name, next := range map[string]bool{"kept": true, "removed": false} {
		k := newFake()
		program(t, local(k))
		b := NewWith(service.IPv4, Options{MasqueradeBit: 14, LocalhostNodePorts: next}, k)
		program(t, b)
		k.Dirty = true
		if p, err := b.Plan(t.Context(), simple(3)); err != nil || len(p.Outcome().Drift) > 0 || !p.Empty() {
			t.Errorf("%s: %v, drift %q, to do:\n%s", name, err, p.Outcome().Drift, p.Changes())
		}
	}
}

// TestKernelIsLiberal checks that nothing is dropped if the kernel accepts packets
// outside of the TCP window, from the next sync on, and that the sync writes only the
// chain in question.
func TestKernelIsLiberal(t *testing.T) {
	k := newFake()
	b := NewWith(service.IPv4, Options{MasqueradeBit: 14, DropInvalid: true}, k)
	for _, k.TCPBeLiberal = range []bool{false, true, true, false} {
		program(t, b)
		if drops := slices.Contains(k.Tables[filter][forwardChain], invalidRule); drops == k.TCPBeLiberal {
			t.Errorf("kernel liberal %t: packets are dropped: %t", k.TCPBeLiberal, drops)
		}
		fresh, err := NewWith(service.IPv4, b.options, k).Plan(t.Context(), simple(3))
		kit.Check(t, err == nil && fresh.Empty(), "a new backend finds to do: %v\n%s", err, fresh)
	}
	kit.Check(t, k.Restores == 3, "%d restores, want one for the start and one for each turn", k.Restores)
}

// locked is a system whose dormant tables cannot be changed.
type locked struct{ *fake }

func (locked) Activate(string) error { return errors.New("operation not permitted") }

// TestDormantTableOfAnother checks that a dormant table that cannot be changed makes
// each sync fail, with a command that might help, while everything else is programmed.
func TestDormantTableOfAnother(t *testing.T) {
	k := newFake()
	k.DormantTables = []string{nat}
	b := NewWith(service.IPv6, Options{MasqueradeBit: 14}, locked{k})
	for range 2 {
		p, err := b.Plan(t.Context(), simple(3))
		kit.Need(t, err == nil && !p.Empty() && strings.Contains(p.Changes().String(), "~ nat table: active"),
			"plan %v, %v, want one that activates table nat", p, err)
		err = p.Apply(t.Context()).Err
		kit.Check(t, err != nil && strings.Contains(err.Error(), "nft add table ip6 nat"),
			"error %v, want one with a command", err)
	}
	if !slices.Contains(k.Tables[nat]["PREROUTING"], "-j KUBE-SERVICES") {
		t.Errorf("rules are missing:\n%s", k.Text())
	}
}
