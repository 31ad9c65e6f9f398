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

func judge(t *rapid.T, k *fake, want *service.Snapshot, c route.Conn) {
	v := route.Decide(want, c)
	wantOut := outcome{action: v.Action}
	if v.Action == route.Forward {
		wantOut.masq = map[netip.AddrPort]bool{}
		for _, e := range v.Endpoints {
			wantOut.targets = append(wantOut.targets, e.Addr)
			wantOut.masq[e.Addr] = v.Masquerades(e) || hairpins(want, c.From, e, k.family)
		}
	}
	got := trace(k.table, k.family, c, generate.IsNodeLocal)
	if diff := cmp.Diff(wantOut, got, cmp.AllowUnexported(outcome{}), cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
		t.Fatalf("%+v: %s (-decide +nftables):\n%s", c, v.Reason, diff)
	}
}

// hairpins allows for one address being here for one Port and elsewhere for
// another, which only a drawn world has.
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

// TestTracedRulesMatchRouteDecide judges 4,000 connections: 20 to each of
// 100 drawn clusters of each family.
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

// apply does one round that must work.
func apply(t fataler, b *Backend, want *service.Snapshot) {
	generate.Apply(t, b, want)
}

func addrPort(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }
