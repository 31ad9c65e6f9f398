// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package apisource

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubeproxy/test/cluster"
	"kubeproxy/test/program"
)

// The cluster whose memory is measured.
const (
	manyServices = 10000
	perService   = 10
	churns       = 10
)

// BenchmarkMemory shows what the program takes to follow 10,000 Services with
// ten endpoints each, at first and while all endpoints are replaced again and
// again. It runs for many minutes, most of which the API server writes.
func BenchmarkMemory(b *testing.B) {
	w := newFixture(b, cluster.Options{Flags: []string{"--enable-priority-and-fairness=false", "--max-requests-inflight=0", "--max-mutating-requests-inflight=0"}})
	w.set(b, newNode())
	var services []metav1.Object
	for i := range manyServices {
		services = append(services, newService(fmt.Sprintf("service-%d", i)))
	}
	w.set(b, services...)
	w.churn(b, 0)
	for b.Loop() {
		p := w.start(b, cluster.Login{}, "--iptables-min-sync-period=1s")
		awaitEndpoints(b, p)
		measure(b, p, "first")
		for n := range churns {
			w.churn(b, n+1)
			time.Sleep(3 * time.Second) // what is written is programmed a second later
			measure(b, p, fmt.Sprintf("churn-%d", n+1))
		}
		p.Stop(b)
	}
}

// churn gives every Service endpoints that none had before.
func (w fixture) churn(b *testing.B, n int) {
	b.Helper()
	var slices []metav1.Object
	for i := range manyServices {
		var a [4]byte
		binary.BigEndian.PutUint32(a[:], 0x0b000000+uint32(n*manyServices+i)*perService)
		slices = append(slices, newSlice(fmt.Sprintf("service-%d", i), netip.AddrFrom4(a), perService))
	}
	w.set(b, slices...)
}

func awaitEndpoints(b *testing.B, p *program.Proxy) {
	b.Helper()
	for deadline := time.Now().Add(3 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
		if p.Status(b, program.MetricsAddr, "/metrics") != 0 {
			if n, _ := p.Metric(b, "kubeproxy_programmed_endpoints", "ip_family", "IPv4"); n >= manyServices*perService {
				return
			}
		}
		if time.Now().After(deadline) {
			b.Fatal("not all endpoints were programmed in time")
		}
	}
}

// measure prints what p takes now, and the most it ever took.
func measure(b *testing.B, p *program.Proxy, when string) {
	b.Helper()
	time.Sleep(2 * time.Second)
	now, peak := p.Memory(b)
	heap, _ := p.Metric(b, "go_memstats_heap_alloc_bytes")
	idle, _ := p.Metric(b, "go_memstats_heap_idle_bytes")
	released, _ := p.Metric(b, "go_memstats_heap_released_bytes")
	fmt.Printf("%s: RSS %d MB, peak %d MB, heap %.0f MB, idle and kept %.0f MB\n", when, now>>20, peak>>20, heap/1e6, (idle-released)/1e6)
	b.ReportMetric(float64(now>>20), when+"-RSS-MB")
}
