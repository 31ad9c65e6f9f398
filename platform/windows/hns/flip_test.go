// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"testing"

	"kubeproxy/common/service"
)

// BenchmarkFlip measures one endpoint that comes and goes in every port of a Service. The
// time is without that of HNS, except for what the fake takes.
func BenchmarkFlip(b *testing.B) {
	for _, shape := range [][2]int{{50, 100}, {500, 10}, {500, 100}, {500, 1000}} {
		for _, v := range []Version{{15, 5}, {13, 3}} {
			b.Run(fmt.Sprintf("%dx%d %v", shape[0], shape[1], v), func(b *testing.B) { benchmarkFlip(b, v, shape[0], shape[1]) })
		}
	}
}

func benchmarkFlip(b *testing.B, v Version, ports, endpoints int) {
	n := newTestNode(b, v, bridgeN)
	flip(b, n, flipped(1, ports, endpoints, true))
	before := maps.Clone(n.hns.calls)
	for i := 0; b.Loop(); i++ {
		flip(b, n, flipped(uint64(i+2), ports, endpoints, i%2 == 1))
	}
	for op, times := range n.hns.calls {
		b.ReportMetric(float64(times-before[op])/float64(b.N), strings.ReplaceAll(op, " ", "-")+"/flip")
	}
}

func flip(b *testing.B, n *testNode, want *service.Snapshot) {
	b.Helper()
	p, err := n.backend.Plan(context.Background(), want)
	if err == nil {
		err = p.Apply(context.Background()).Err
	}
	if err != nil {
		b.Fatal(err)
	}
}

// flipped returns a snapshot of a Service whose first endpoint is ready or not.
func flipped(generation uint64, ports, endpoints int, ready bool) *service.Snapshot {
	var list []service.Endpoint
	for i := range endpoints {
		if i > 0 || ready {
			list = append(list, service.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, byte(2 + i/200), byte(1 + i%200)}), 8080)})
		}
	}
	var all []*service.Port
	for i := range ports {
		all = append(all, &service.Port{
			Name: service.PortName{Namespace: "shop", Name: "wide", Port: fmt.Sprint("p", i), Protocol: service.TCP}, Family: service.IPv4,
			Frontends: []service.Frontend{{Kind: service.ClusterIP, Addr: netip.MustParseAddr("10.96.0.1"), Port: uint16(8000 + i)}},
			Cluster:   list,
		})
	}
	return service.New(generation, theNode, all)
}
