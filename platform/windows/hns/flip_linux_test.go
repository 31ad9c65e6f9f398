// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
	"kubeproxy/test/kit"
)

// BenchmarkFlip measures one endpoint that is added to and removed from every port of a
// Service: calls to HNS, and the CPU time of the process. That includes the fake, which
// copies a few lists, and the JSON of calls, but not what HNS does.
func BenchmarkFlip(b *testing.B) {
	for _, shape := range [][2]int{{50, 100}, {500, 10}, {500, 100}, {500, 1000}} {
		for _, v := range []Version{{15, 5}, {13, 3}} {
			b.Run(fmt.Sprintf("%dx%d %v", shape[0], shape[1], v), func(b *testing.B) { benchmarkFlip(b, v, shape[0], shape[1]) })
		}
	}
}

func benchmarkFlip(b *testing.B, v Version, ports, endpoints int) {
	n := newTestNode(b, v, bridgeN)
	n.hns.silent = true
	d := &documents{}
	n.restartOn(intercept(n.hns, d.exchange))
	flip(b, n, flipped(1, ports, endpoints, true))
	before, cpu, bytes := maps.Clone(n.hns.calls), processTime(b), d.bytes
	for i := 0; b.Loop(); i++ {
		flip(b, n, flipped(uint64(i+2), ports, endpoints, i%2 == 1))
	}
	b.ReportMetric(float64((processTime(b)-cpu).Microseconds())/1000/float64(b.N), "cpu-ms/flip")
	b.ReportMetric(float64(d.bytes-bytes)/1e6/float64(b.N), "MB-sent/flip")
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
	kit.Must(b, err)
}

// processTime returns the CPU time of the process.
func processTime(b *testing.B) time.Duration {
	b.Helper()
	var u unix.Rusage
	kit.Must(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// documents encodes and decodes the documents of load balancers as often as the driver of
// Windows and hcsshim do for a call.
type documents struct{ bytes int } // that were sent

func (d *documents) exchange(_ context.Context, r request, do func() (any, error)) (any, error) {
	lb, sends := r.of.(LoadBalancer)
	if !sends || r.operation == DeleteBalancer {
		return do()
	}
	d.send(lb)
	answer, err := do()
	if err != nil {
		return answer, err
	}
	return d.receive(answer.(LoadBalancer))
}

// send encodes lb, which the library decodes and encodes again.
func (d *documents) send(lb LoadBalancer) {
	var library balancerDocument
	ours, _ := json.Marshal(lb.document())
	_ = json.Unmarshal(ours, &library)
	sent, _ := json.Marshal(library)
	d.bytes += len(sent)
}

// receive decodes the answer lb in the library, and again in the driver.
func (d *documents) receive(lb LoadBalancer) (LoadBalancer, error) {
	var library balancerDocument
	answer, _ := json.Marshal(lb.document())
	_ = json.Unmarshal(answer, &library)
	return convertDocument(library, lb)
}

func convertDocument(library balancerDocument, lb LoadBalancer) (LoadBalancer, error) {
	text, err := json.Marshal(library)
	if err != nil {
		return LoadBalancer{}, err
	}
	got, err := parseBalancer(text)
	got.ID = lb.ID
	return got, err
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
