// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/test/generate"
	"kubeproxy/test/xtables"
)

func judge(t *rapid.T, k *fake, want *service.Snapshot, c route.Conn) {
	v := route.Decide(want, c)
	wantOut := xtables.Outcome{Action: v.Action}
	if v.Action == route.Forward {
		wantOut.Masq = map[netip.AddrPort]bool{}
		for _, e := range v.Endpoints {
			wantOut.Targets = append(wantOut.Targets, e.Addr)
			// One rule for all endpoints detects hairpin connections and does not check
			// where the endpoint is. A remote endpoint whose connection comes this way
			// needs it, too.
			wantOut.Masq[e.Addr] = v.Masquerades(e) || e.Addr.Addr() == c.From
		}
	}
	got := trace(k, c, generate.IsNodeLocal)
	if diff := cmp.Diff(wantOut, got, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
		t.Fatalf("%+v: %s (-decide +iptables):\n%s\n%s", c, v.Reason, diff, k.Text())
	}
}

// TestTracedRulesMatchRouteDecide checks 4,000 connections: 20 to each of 100 drawn
// clusters of each family.
func TestTracedRulesMatchRouteDecide(t *testing.T) {
	for _, f := range service.Families {
		t.Run(f.String(), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				w := generate.Cluster{T: t, Family: f}
				ports := w.Ports()
				want := service.New(1, nodeOf(w), ports)
				k := newFake()
				apply(t, newBackend(f, k), want)
				for range 20 {
					judge(t, k, want, w.Conn(ports))
				}
			})
		})
	}
}

func newBackend(f service.Family, k *fake) *Backend {
	return NewWith(f, Options{MasqueradeBit: 14, DropInvalid: true}, k)
}

type fataler interface{ Fatalf(string, ...any) }

// apply runs one sync that must succeed.
func apply(t fataler, b *Backend, want *service.Snapshot) *plan {
	return generate.Apply(t, b, want).(*plan)
}
