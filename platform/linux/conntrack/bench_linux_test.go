// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"net/netip"
	"slices"
	"testing"

	"kubeproxy/common/service"
)

// table returns n flows with a reply, to 100 Services with ten endpoints each.
func table(n int) []Flow {
	flows := make([]Flow, n)
	for i := range flows {
		s, e := i%100, i/100%10
		src := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 10, 0, byte(i >> 14)}), uint16(1024+i&(1<<14-1)))
		flows[i] = Flow{Protocol: service.UDP, Src: src, Dst: tableVIP(s), ReplySrc: tableEndpoint(s, e), ReplyDst: src, Answered: true}
	}
	return flows
}

func tableVIP(s int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, 0, byte(s)}), 53)
}

func tableEndpoint(s, e int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, byte(s), byte(e)}), 53)
}

// tableService returns Service s with all endpoints but one.
func tableService(s, without int) *service.Port {
	var endpoints []netip.AddrPort
	for e := range 10 {
		if e != without {
			endpoints = append(endpoints, tableEndpoint(s, e))
		}
	}
	return port(tableVIP(s).String(), service.IPv4, endpoints,
		service.Frontend{Kind: service.ClusterIP, Addr: tableVIP(s).Addr(), Port: 53})
}

// BenchmarkReconcile deletes the 100 flows to one of 1,000 endpoints from a table of
// 100,000 entries.
func BenchmarkReconcile(b *testing.B) {
	const entries, stale = 100_000, 100
	var ports []*service.Port
	for s := range 100 {
		without := -1
		if s == 0 {
			without = 0
		}
		ports = append(ports, tableService(s, without))
	}
	now := service.New(1, &service.Node{NodePorts: service.AnyAddress()}, ports)
	for name, rules := range map[string][]Rule{
		"one Service changed": Changes(tableService(0, -1), ports[0]),
		"all looked at":       All(now, service.IPv4),
	} {
		b.Run(name, func(b *testing.B) {
			isolate(b)
			all := table(entries)
			lost := slices.DeleteFunc(slices.Clone(all), func(f Flow) bool { return f.ReplySrc != tableEndpoint(0, 0) })
			inject(b, all)
			r := &Reconciler{Driver: Netlink{}}
			b.ReportAllocs()
			for b.Loop() {
				n, err := r.Reconcile(b.Context(), rules, now)
				if n != stale || err != nil {
					b.Fatalf("Reconcile = %d, %v, want %d", n, err, stale)
				}
				b.StopTimer()
				inject(b, lost)
				b.StartTimer()
			}
		})
	}
}
