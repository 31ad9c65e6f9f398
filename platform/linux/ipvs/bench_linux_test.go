// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"errors"
	"net"
	"testing"
	"time"

	"github.com/moby/ipvs"
	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
)

// many returns n Services of ten endpoints.
func many(n int) *service.Snapshot {
	var ports []*service.Port
	for i := range n {
		p := web(i, 10, service.TCP)
		p.Frontends[0].Port += uint16(i / 250) // web has 256 addresses
		p.Name.Name += "x"
		ports = append(ports, p)
	}
	return snapshot(ports...)
}

// BenchmarkFirst programs 1,000 Services of ten endpoints.
func BenchmarkFirst(b *testing.B) {
	inBenchmark(b, func() {
		want := many(1000)
		for range b.N {
			x := newKernel(b, service.IPv4, Options{MasqueradeBit: 14, SyncPeriod: time.Minute})
			apply(b, x, want)
			b.StopTimer()
			if err := x.Cleanup(b.Context()); err != nil {
				b.Fatal(err)
			}
			_ = x.Close()
			b.StartTimer()
		}
	})
}

// BenchmarkLibrary has the bare library make the virtual servers of
// BenchmarkFirst, without rules and addresses.
func BenchmarkLibrary(b *testing.B) {
	inBenchmark(b, func() {
		want := many(1000)
		for range b.N {
			h, err := ipvs.New("")
			if err != nil {
				b.Fatal(err)
			}
			program(b, h, want)
			b.StopTimer()
			if err := h.Flush(); err != nil {
				b.Fatal(err)
			}
			h.Close()
			b.StartTimer()
		}
	})
}

// program makes the virtual servers of want one by one.
func program(b *testing.B, h *ipvs.Handle, want *service.Snapshot) {
	for p := range want.Ports(service.IPv4) {
		for _, w := range (Options{}).servers(p, want.Node) {
			if err := programOne(h, w); err != nil {
				b.Fatal(err)
			}
		}
	}
}

func programOne(h *ipvs.Handle, w wanted) error {
	s := &ipvs.Service{
		Address: net.IP(w.addr.AsSlice()), Port: w.port, Protocol: uint16(w.proto),
		AddressFamily: unix.AF_INET, SchedName: "rr", Netmask: 0xffffffff,
	}
	err := h.NewService(s)
	for _, e := range w.endpoints {
		d := &ipvs.Destination{Address: net.IP(e.Addr.Addr().AsSlice()), Port: e.Addr.Port(), Weight: 1, AddressFamily: unix.AF_INET}
		err = errors.Join(err, h.NewDestination(s, d))
	}
	return err
}

// BenchmarkChange has an endpoint come and go among 10,000 Services of ten.
func BenchmarkChange(b *testing.B) {
	inBenchmark(b, func() {
		want := many(10000)
		x := newKernel(b, service.IPv4, Options{MasqueradeBit: 14, SyncPeriod: time.Hour})
		apply(b, x, want)
		i := 0
		for p := range want.Ports(service.IPv4) {
			less := *p
			less.Cluster = p.Cluster[:9]
			next := want.With(2, want.Node, []service.Change{{Old: p, New: &less}})
			if i++; i == 5000 {
				for b.Loop() {
					apply(b, x, next)
					apply(b, x, want)
				}
				break
			}
		}
		_ = x.Close()
	})
}

// inBenchmark is inNamespace for benchmarks.
func inBenchmark(b *testing.B, f func()) {
	if !Installed() {
		b.Skip("the kernel has no IPVS")
	}
	if err := enter(); err != nil {
		b.Fatalf("make a network namespace: %v", err)
	}
	f()
}
