// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/test/world"
)

func judge(t *rapid.T, b *beside, k *fake, want *service.Snapshot, c route.Conn) {
	if _, ours := k.routes[c.From]; ours {
		return // nobody else can have that source: the kernel drops such packets
	}
	v := route.Decide(want, c)
	wantOut := outcome{action: v.Action}
	if v.Action == route.Forward {
		wantOut.masq = map[netip.AddrPort]bool{}
		for _, e := range v.Endpoints {
			wantOut.targets = append(wantOut.targets, e.Addr)
			_, itself := b.sets["hairpin"][c.From.String()+" . "+c.From.String()]
			wantOut.masq[e.Addr] = v.Masquerades(e) || e.Addr.Addr() == c.From && itself
		}
	}
	if _, ours := k.routes[c.To.Addr()]; ours && v.Action == route.Pass {
		// The node has the address for Services only, so what no Service has
		// would be answered by whoever listens on all addresses.
		wantOut.action = route.Reject
	}
	got := trace(b, k, c, world.NodeLocal)
	if diff := cmp.Diff(wantOut, got, cmp.AllowUnexported(outcome{}), cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
		t.Fatalf("%+v: %s (-decide +ipvs):\n%s\n%v\n%v", c, v.Reason, diff, b.sets, k.servers)
	}
}

// TestVirtualServersDecideAsRouteDoes judges 4,000 connections: 20 to each of
// 100 drawn clusters of each family, each after another cluster.
func TestVirtualServersDecideAsRouteDoes(t *testing.T) {
	for _, f := range service.Families {
		t.Run(f.String(), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				w := world.World{T: t, Family: f}
				k := newFake(f)
				b := newBackend(f, k, Options{MasqueradeBit: 14})
				apply(t, b, service.New(1, w.Node(), w.Ports()))
				ports := w.Ports()
				want := service.New(2, w.Node(), ports)
				apply(t, b, want)
				table := besideOf(t, f, b.rules.(*fakeRules).held)
				for range 20 {
					judge(t, table, k, want, w.Conn(ports))
				}
			})
		})
	}
}
