// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubeproxy/common/service"
	"kubeproxy/test/kit"
)

// liveCase describes snapshots of two Services: dns, with a VIP and NodePort 30053, and
// late, with a second VIP and, in one case, NodePort 5400.
type liveCase struct {
	dns, late            []netip.AddrPort
	noDNS, noNodePort    bool
	lateNodePort         bool
	nodePortsOnOtherAddr bool
}

func (l liveCase) snapshot(p *testNet) *service.Snapshot {
	node := &service.Node{NodePorts: service.AnyAddress(), Name: "n", Addrs: []netip.Addr{p.node}}
	if l.nodePortsOnOtherAddr {
		node.NodePorts = []netip.Prefix{netip.PrefixFrom(p.remote, p.remote.BitLen())}
	}
	dns := port("dns", p.family, l.dns, service.Frontend{Kind: service.ClusterIP, Addr: p.vip, Port: 53})
	if !l.noNodePort {
		dns.Frontends = append(dns.Frontends, service.Frontend{Kind: service.NodePort, Port: 30053})
	}
	late := port("late", p.family, l.late, service.Frontend{Kind: service.ClusterIP, Addr: p.vip2, Port: 53})
	if l.lateNodePort {
		late.Frontends = append(late.Frontends, service.Frontend{Kind: service.NodePort, Port: 5400})
	}
	ports := []*service.Port{late}
	if !l.noDNS {
		ports = append(ports, dns)
	}
	return service.New(1, node, ports)
}

// TestSupervise creates entries with real packets. The rules translate dns to endpoint a
// and do not contain late yet.
func TestSupervise(t *testing.T) {
	for _, f := range service.Families {
		p := newAddresses(f)
		a, b, ab := []netip.AddrPort{p.a}, []netip.AddrPort{p.b}, []netip.AddrPort{p.a, p.b}
		vip, nodePort := to(p.vip, 53), to(p.node, 30053)
		tests := map[string]struct {
			before *liveCase // nil if the process just started
			after  liveCase
			gone   []netip.AddrPort
		}{
			"nothing changed":            {&liveCase{dns: ab}, liveCase{dns: ab}, nil},
			"an endpoint came":           {&liveCase{dns: a}, liveCase{dns: ab}, nil},
			"the endpoint left":          {&liveCase{dns: ab}, liveCase{dns: b}, []netip.AddrPort{vip, nodePort}},
			"the last endpoint left":     {&liveCase{dns: a}, liveCase{}, []netip.AddrPort{vip, nodePort}},
			"the Service was deleted":    {&liveCase{dns: a}, liveCase{noDNS: true}, []netip.AddrPort{vip, nodePort}},
			"the NodePort went":          {&liveCase{dns: a}, liveCase{dns: a, noNodePort: true}, []netip.AddrPort{nodePort}},
			"the first endpoint came":    {&liveCase{dns: a}, liveCase{dns: a, late: b}, []netip.AddrPort{to(p.vip2, 53)}},
			"a NodePort came":            {&liveCase{dns: a, late: b}, liveCase{dns: a, late: b, lateNodePort: true}, []netip.AddrPort{to(p.node, 5400)}},
			"start, all well":            {nil, liveCase{dns: a}, []netip.AddrPort{to(p.vip2, 53)}},
			"start, the endpoint left":   {nil, liveCase{dns: b}, []netip.AddrPort{vip, nodePort, to(p.vip2, 53)}},
			"NodePorts on other address": {&liveCase{dns: ab}, liveCase{dns: b, nodePortsOnOtherAddr: true}, []netip.AddrPort{vip, to(p.vip2, 53)}},
		}
		for name, test := range tests {
			t.Run(f.String()+" "+name, func(t *testing.T) {
				isolate(t)
				p := newTestNet(t, f)
				r := &Reconciler{Driver: Netlink{}, Family: f}
				if test.before != nil {
					_, err := r.Sync(t.Context(), test.before.snapshot(p))
					kit.Must(t, err)
				}
				want := p.traffic(test.gone)
				n, err := r.Sync(t.Context(), test.after.snapshot(p))
				kit.Must(t, err)
				if got := p.list(); !cmp.Equal(want, got) || n != len(test.gone) {
					t.Errorf("deleted %d, want %d; entries left (-want +got):\n%s", n, len(test.gone), cmp.Diff(want, got))
				}
			})
		}
	}
}

func to(a netip.Addr, port uint16) netip.AddrPort { return netip.AddrPortFrom(a, port) }

// traffic creates entries of every kind. It returns the destinations, without those in
// gone.
func (tn *testNet) traffic(gone []netip.AddrPort) []string {
	tn.t.Helper()
	vip, nodePort := to(tn.vip, 53), to(tn.node, 30053)
	tn.translate(map[netip.AddrPort]netip.AddrPort{vip: tn.a, nodePort: tn.a})
	var want []string
	for dst, by := range map[netip.AddrPort]netip.AddrPort{
		vip:               tn.a,
		nodePort:          tn.a,
		to(tn.node, 5400): to(tn.node, 5400), // a local server of the node
		tn.b:              tn.b,              // an endpoint without a Service
	} {
		if got := tn.query(tn.open(dst)); got != by.String() {
			tn.t.Fatalf("%s answered by %s, want %s", dst, got, by)
		}
		if !slices.Contains(gone, dst) {
			want = append(want, dst.String()+" by "+by.String())
		}
	}
	for _, dst := range []netip.AddrPort{
		to(tn.vip2, 53), to(tn.vip2, 54), to(tn.remote, 53), to(tn.remote, 30053), to(tn.remote, 5400),
	} {
		_, err := tn.open(dst).Write([]byte("lost"))
		kit.Must(tn.t, err)
		if !slices.Contains(gone, dst) {
			want = append(want, dst.String()+" by "+dst.String())
		}
	}
	slices.Sort(want)
	return want
}

// TestBlackHole shows why this package exists: a client that keeps its socket keeps
// sending to a removed endpoint, whatever the rules are.
func TestBlackHole(t *testing.T) {
	for _, f := range service.Families {
		t.Run(f.String(), func(t *testing.T) {
			isolate(t)
			p := newTestNet(t, f)
			r := &Reconciler{Driver: Netlink{}, Family: f}
			_, err := r.Sync(t.Context(), liveCase{dns: []netip.AddrPort{p.a}}.snapshot(p))
			kit.Must(t, err)
			p.translate(map[netip.AddrPort]netip.AddrPort{to(p.vip, 53): p.a})
			c := p.open(to(p.vip, 53))
			first := p.query(c)
			p.translate(map[netip.AddrPort]netip.AddrPort{to(p.vip, 53): p.b})
			second := p.query(c)
			_, err = r.Sync(t.Context(), liveCase{dns: []netip.AddrPort{p.b}}.snapshot(p))
			kit.Must(t, err)
			got := []string{first, second, p.query(c)}
			if want := []string{p.a.String(), p.a.String(), p.b.String()}; !cmp.Equal(want, got) {
				t.Errorf("answers (-want +got):\n%s", cmp.Diff(want, got))
			}
		})
	}
}
