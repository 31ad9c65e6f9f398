// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/conntrack"
	"kubeproxy/test/world"
)

// flow is a client of UDP and the program that hears it.
type flow struct {
	client net.Conn
	server net.PacketConn
}

func dialUDP(t *testing.T, to netip.AddrPort) net.Conn {
	t.Helper()
	c, err := net.Dial("udp", to.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func listenUDP(t *testing.T, at netip.AddrPort) net.PacketConn {
	t.Helper()
	s, err := net.ListenPacket("udp", at.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// wantHeard wants what the client says next to be what the server hears next.
func (f flow) wantHeard(t *testing.T, words string) {
	t.Helper()
	heard := make([]byte, 64)
	n := 0
	err := f.server.SetReadDeadline(time.Now().Add(15 * time.Second))
	if err == nil {
		_, err = f.client.Write([]byte(words))
	}
	if err == nil {
		n, _, err = f.server.ReadFrom(heard)
	}
	if err != nil || string(heard[:n]) != words {
		t.Errorf("the flow does not go on: heard is %q, %v; want %q", heard[:n], err, words)
	}
}

// What a retired virtual server has of UDP, which has no end of its own, goes on
// until the bound has passed, and nobody else comes to it. Then it is cut, and
// connection tracking forgets it, but nothing that is not ours.
func TestKernelRetiresUDP(t *testing.T) {
	inNamespace(t, func() {
		b := newKernel(t, service.IPv4, always())
		at := netip.AddrPortFrom(world.NodeAddr[0], 8080)
		dns := web(0, 0, service.UDP)
		dns.Cluster = []service.Endpoint{{Addr: at}}
		apply(t, b, snapshot(dns))
		// Otherwise some kernels have connection tracking forget by themselves.
		if err := os.WriteFile((setting{file: "net/ipv4/vs/expire_nodest_conn"}).path(), []byte("0\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		to, beside := netip.AddrPortFrom(dns.Frontends[0].Addr, 80), netip.AddrPortFrom(world.NodeOther[0], 80)
		old := flow{dialUDP(t, to), listenUDP(t, at)}
		other := flow{dialUDP(t, beside), listenUDP(t, beside)}
		old.wantHeard(t, "hello")
		other.wantHeard(t, "hello")
		for _, lasted := range []time.Duration{0, DrainBound - time.Minute} {
			wantRetired(t, lasted, "virtual servers: 1, open connections: 1, for 1h0m0s at most")
			_, _ = dialUDP(t, to).Write([]byte("nobody hears me")) // some kernels say so, too
			old.wantHeard(t, lasted.String())
			if n := flowsTo(t, to); n == 0 {
				t.Errorf("after %s no flow is tracked", lasted)
			}
		}
		wantRetired(t, DrainBound, "")
		if _, err := old.client.Write([]byte("hello")); err == nil {
			t.Error("the address of the Service still leads somewhere")
		}
		if n := flowsTo(t, to); n > 0 {
			t.Errorf("in the end %d flows are tracked", n)
		}
		other.wantHeard(t, "still here")
		if n := flowsTo(t, beside); n != 1 {
			t.Errorf("beside the Service %d flows are tracked, want one", n)
		}
		wantNothingOfOurs(t, b)
		_ = b.Close()
	})
}

// wantRetired retires what is there as if that had begun a while ago, or now.
func wantRetired(t *testing.T, lasted time.Duration, want string) {
	t.Helper()
	var since time.Time
	if lasted > 0 {
		since = time.Now().Add(-lasted)
	}
	if stays, err := (Remains{Family: service.IPv4}).Retire(t.Context(), since); err != nil || stays != want {
		t.Errorf("after %s there stays %q, %v; want %q", lasted, stays, err, want)
	}
}

func wantNothingOfOurs(t *testing.T, b *Backend) {
	t.Helper()
	if what, err := (Remains{Family: b.family}).Find(t.Context()); what != "" || err != nil {
		t.Errorf("there is %q, %v; want nothing", what, err)
	}
	_, err := b.driver.(*kernel).links.LinkByName(Device)
	var none netlink.LinkNotFoundError
	if !errors.As(err, &none) {
		t.Errorf("interface %s: %v; want none", Device, err)
	}
}

// flowsTo counts what connection tracking knows of flows to an address.
func flowsTo(t *testing.T, to netip.AddrPort) int {
	t.Helper()
	n := 0
	err := conntrack.Netlink{}.Dump(t.Context(), conntrack.Filter{Family: service.IPv4, Protocol: service.UDP, Port: to.Port()}, func(f conntrack.Flow) {
		if f.Dst == to {
			n++
		}
	})
	if err != nil {
		t.Error(err)
	}
	return n
}

// What leads to the node is found and removed where the kernel has no IPVS any
// more.
func TestKernelRemainsWithoutIPVS(t *testing.T) {
	inNamespace(t, func() {
		for _, f := range service.Families {
			b := newKernel(t, f, always())
			apply(t, b, rounds(f, 0))
			_ = b.Close()
		}
		if err := library(t).Flush(); err != nil {
			t.Fatal(err)
		}
		for _, f := range service.Families {
			r := Remains{Family: f, list: "/proc/none"}
			if what, err := r.Find(t.Context()); !strings.HasPrefix(what, "5 addresses of Services, ") || !strings.Contains(what, "chains of this proxy") || !strings.HasSuffix(what, ", 15 ipsets") || err != nil {
				t.Errorf("%s: %q, %v are left", f, what, err)
			}
			if stays, err := r.Retire(t.Context(), time.Time{}); stays != "" || err != nil {
				t.Errorf("%s: %q stays, %v", f, stays, err)
			}
			if what, err := r.Find(t.Context()); what != "" || err != nil {
				t.Errorf("%s: %q, %v are left in the end", f, what, err)
			}
		}
		if _, err := netlink.LinkByName(Device); err == nil {
			t.Errorf("there is still %s", Device)
		}
	})
}
