// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/test/generate"
)

// outcome is what can be compared of a decision and a walk.
type outcome struct {
	Action  route.Action
	Targets map[netip.AddrPort]bool // whether the source is masqueraded
}

func judge(t *rapid.T, k *fake, want *service.Snapshot, c route.Conn) {
	v := route.Decide(want, c)
	wantOut := outcome{Action: v.Action}
	if v.Action == route.Forward {
		wantOut.Targets = map[netip.AddrPort]bool{}
		for _, e := range v.Endpoints {
			wantOut.Targets[e.Addr] = v.Masquerades(e) || hairpins(want, c.From, e, k.family)
		}
	}
	w := trace(k.table, k.family, c, generate.IsNodeLocal)
	got := outcome{w.Action, w.Targets}
	if diff := cmp.Diff(wantOut, got, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
		t.Fatalf("%+v: %s (-decide +nftables):\n%s", c, v.Reason, diff)
	}
}

// hairpins accounts for an address that is local for one Port and remote for another.
// Only generated clusters have such addresses.
func hairpins(want *service.Snapshot, from netip.Addr, e service.Endpoint, f service.Family) bool {
	if e.Addr.Addr() != from {
		return false
	}
	s := newShared()
	for p := range want.Ports(f) {
		s.add(p, 1)
	}
	return s[sharedKey{hairpin, string(from.AsSlice())}] > 0
}

// TestTracedRulesMatchRouteDecide checks 4,000 connections: 20 in each of 100 generated
// clusters per family.
func TestTracedRulesMatchRouteDecide(t *testing.T) {
	for _, f := range service.Families {
		t.Run(f.String(), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				w := generate.Cluster{T: t, Family: f}
				ports := w.Ports()
				want := service.New(1, w.Node(), ports)
				k := &fake{family: f}
				b := &Backend{family: f, options: Options{MasqueradeBit: 14}, driver: k}
				apply(t, b, want)
				for range 20 {
					judge(t, k, want, w.Conn(ports))
				}
			})
		})
	}
}

type fataler interface{ Fatalf(string, ...any) }

// apply runs one sync, which must succeed.
func apply(t fataler, b *Backend, want *service.Snapshot) {
	generate.Apply(t, b, want)
}

func addrPort(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }
