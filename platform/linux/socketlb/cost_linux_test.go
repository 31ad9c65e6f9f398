// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package socketlb

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
	"kubeproxy/test/netlab"
)

// large returns a Snapshot of n Services with ten endpoints each, and their ports.
func large(n int) (*service.Snapshot, []*service.Port) {
	var ports []*service.Port
	for i := range n {
		p := &service.Port{
			Name:      service.PortName{Namespace: "shop", Name: fmt.Sprintf("s%06d", i), Protocol: service.TCP},
			Frontends: []service.Frontend{{Addr: netip.AddrFrom4([4]byte{10, 96 + byte(i>>16), byte(i >> 8), byte(i)}), Port: 80}},
		}
		for e := range 10 {
			x := i*10 + e
			p.Cluster = append(p.Cluster, service.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 128 + byte(x>>16), byte(x >> 8), byte(x)}), 8080)})
		}
		ports = append(ports, p)
	}
	return service.New(1, &service.Node{}, ports), ports
}

// BenchmarkLarge starts with Services of ten endpoints each, and changes one endpoint at a
// time. A change is what Plan and Apply take.
func BenchmarkLarge(b *testing.B) {
	for _, n := range []int{1000, 30000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			netlab.InNamespace(b, func() { changeOne(b, n) })
		})
	}
}

func changeOne(b *testing.B, n int) {
	o := Options{Cgroup: newCgroup(b), Pins: mountPins(b)}
	x := New(service.IPv4, NewDriver(service.IPv4, o), o)
	b.Cleanup(func() { _ = x.Cleanup(context.Background()) })
	x.SetResync(time.Hour)
	s, ports := large(n)
	start := cpuTime(b)
	apply(b, x, s)
	start = cpuTime(b) - start
	k := x.driver.(*kernel)
	bytes := 0
	for _, m := range k.mapped {
		bytes += len(m)
	}
	var took []time.Duration
	for i := 0; b.Loop(); i++ {
		p := ports[i*7919%n]
		next := *p
		next.Cluster = slices.Clone(p.Cluster)
		next.Cluster[9].Addr = netip.AddrPortFrom(next.Cluster[9].Addr.Addr(), 8080+uint16(i&1023))
		s = s.With(s.Generation+1, s.Node, []service.Change{{Old: p, New: &next}})
		ports[i*7919%n] = &next
		start := time.Now()
		apply(b, x, s)
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	b.ReportMetric(float64(start.Milliseconds()), "start-cpu-ms")
	b.ReportMetric(float64(bytes)/float64(10*n), "B/endpoint")
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds()), "p50-ns")
	b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds()), "p99-ns")
}

func apply(b *testing.B, x *Backend, s *service.Snapshot) {
	p, err := x.Plan(context.Background(), s)
	if err != nil {
		b.Fatal(err)
	}
	if p.Empty() {
		return
	}
	if o := p.Apply(context.Background()); o.Degraded != "" || o.Err != nil {
		b.Fatal(o.Degraded, o.Err)
	}
}

func cpuTime(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
