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
	"kubeproxy/test/generate"
	"kubeproxy/test/xtables"
)

func judge(t *rapid.T, k *fake, want *service.Snapshot, c route.Conn) {
	if _, ours := k.routes[c.From]; ours {
		return // no remote client has such a source: the kernel drops the packets
	}
	v := route.Decide(want, c)
	wantOut := xtables.Outcome{Action: v.Action}
	if v.Action == route.Forward {
		wantOut.Masq = map[netip.AddrPort]bool{}
		for _, e := range v.Endpoints {
			wantOut.Targets = append(wantOut.Targets, e.Addr)
			// One rule for all endpoints detects hairpin connections and does not check
			// where the endpoint is. The node itself needs none.
			wantOut.Masq[e.Addr] = v.Masquerades(e) || e.Addr.Addr() == c.From && !generate.IsNodeLocal(c.From)
		}
	}
	if v.Action == route.Pass && c.From == c.To.Addr() && !generate.IsNodeLocal(c.From) {
		wantOut.Masq = map[netip.AddrPort]bool{} // such packets do not exist
	}
	if _, ours := k.routes[c.To.Addr()]; ours && v.Action == route.Pass {
		// The node has the address for Services only. Otherwise a port that no Service
		// has would reach a process that listens on all addresses.
		wantOut.Action = route.Reject
	}
	got := trace(k, c)
	if diff := cmp.Diff(wantOut, got, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
		t.Fatalf("%+v: %s (-decide +ipvs):\n%s\n%s\n%s\n%v", c, v.Reason, diff, k.sets.Text(), k.tables.Text(), k.servers)
	}
}

// withNodeAddrs gives some of ports an address of the node, maybe where another one has
// a NodePort.
func withNodeAddrs(w generate.Cluster, ports []*service.Port) []*service.Port {
	for i, p := range ports {
		if w.DrawInt("own", 8) == 0 {
			p.Frontends = append(p.Frontends, service.Frontend{Kind: service.ExternalIP, Addr: generate.NodeAddr[w.Family], Port: uint16(30003 - i)})
		}
	}
	return ports
}

// TestVirtualServersDecideAsRouteDoes checks 4,000 connections: 20 to each of 100 drawn
// clusters of each family, each programmed over another cluster.
func TestVirtualServersDecideAsRouteDoes(t *testing.T) {
	for _, f := range service.Families {
		t.Run(f.String(), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				w := generate.Cluster{T: t, Family: f}
				k := newFake(f)
				b := newBackendWithRules(f, k, Options{MasqueradeBit: 14})
				apply(t, b, service.New(1, w.Node(), withNodeAddrs(w, w.Ports())))
				ports := withNodeAddrs(w, w.Ports())
				want := service.New(2, w.Node(), ports)
				apply(t, b, want)
				for range 20 {
					judge(t, k, want, w.Conn(ports))
				}
			})
		})
	}
}
