// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package socketlb

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
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

// connectsAtOnce is how many sockets BenchmarkConnect connects between two looks at the
// clock.
const connectsAtOnce = 100

// BenchmarkConnect connects and closes sockets without the layer, and with it to an address
// that it does not have and to one that it has. Nobody listens. The figures are those of
// the fastest hundred, which other work on the machine disturbs least.
func BenchmarkConnect(b *testing.B) {
	for name, to := range map[string]string{"without": "", "left": "127.0.0.1:1", "taken": "10.96.0.10:80"} {
		b.Run(name, func(b *testing.B) {
			netlab.InNamespace(b, func() { connectThrough(b, to) })
		})
	}
}

// connectThrough lets the layer take connections to 10.96.0.10:80. It measures those to an
// address, or those without the layer if there is none.
func connectThrough(b *testing.B, to string) {
	if err := raiseLoopback(); err != nil {
		b.Fatal(err)
	}
	o := Options{Cgroup: newCgroup(b), Pins: mountPins(b)}
	moveTo(b, o.Cgroup)
	defer moveTo(b, filepath.Dir(o.Cgroup))
	ran := func() time.Duration { return 0 }
	if to != "" {
		x := New(service.IPv4, NewDriver(service.IPv4, o), o)
		defer func() { _ = x.Cleanup(context.Background()) }()
		apply(b, x, snapshot([]string{"10.96.0.10:80", "127.0.0.1:1"}))
		ran = clockOf(b, filepath.Join(x.driver.(*kernel).folder(1), "connect4"))
	}
	addr := netip.MustParseAddrPort(cmp.Or(to, "127.0.0.1:1"))
	least, leastRun := time.Hour, time.Hour
	for b.Loop() {
		before, began := ran(), time.Now()
		for range connectsAtOnce {
			connectInVain(b, addr)
		}
		least, leastRun = min(least, time.Since(began)), min(leastRun, ran()-before)
	}
	b.ReportMetric(float64(least.Nanoseconds())/connectsAtOnce, "ns/connect")
	b.ReportMetric(float64(leastRun.Nanoseconds())/connectsAtOnce, "ns/program")
}

func connectInVain(b *testing.B, to netip.AddrPort) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		b.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Connect(fd, &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())}); !errors.Is(err, unix.ECONNREFUSED) {
		b.Fatalf("connect to %s: %v, want a refusal", to, err)
	}
}

// clockOf returns how to read the time for which a pinned program ran.
func clockOf(b *testing.B, path string) func() time.Duration {
	counting, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { counting.Close() })
	p, err := ebpf.LoadPinnedProgram(path, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { p.Close() })
	return func() time.Duration {
		s, err := p.Stats()
		if err != nil {
			b.Fatal(err)
		}
		return s.Runtime
	}
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
