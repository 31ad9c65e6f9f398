// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/conntrack"
	"kubeproxy/test/generate"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
)

// TestKernelDrains checks that a connection to a removed endpoint continues, and that
// the endpoint is deleted when the connection ends or DrainTimeout has passed.
func TestKernelDrains(t *testing.T) {
	inNamespace(t, func() {
		for name, end := range map[string]func(net.Conn, *time.Duration){
			"the connection ends": func(c net.Conn, _ *time.Duration) { c.(*net.TCPConn).SetLinger(0); c.Close() },
			"the time is over":    func(_ net.Conn, passed *time.Duration) { *passed = DrainTimeout },
		} {
			passed := time.Duration(0)
			b := newKernel(t, service.IPv4, Options{MasqueradeBit: 14, SyncPeriod: 2 * DrainTimeout})
			b.now = func() time.Time { return time.Now().Add(passed) }
			at := netip.AddrPortFrom(generate.NodeAddr[0], 8080)
			echo := listen(t, at)
			full := web(0, 0, service.TCP)
			full.Cluster = []service.Endpoint{{Addr: at}}
			first := snapshot(full)
			apply(t, b, first)
			c, err := net.Dial("tcp", netip.AddrPortFrom(full.Frontends[0].Addr, 80).String())
			kit.Need(t, err == nil, "%s: %v", name, err)
			wantEcho(t, c)
			none := first.With(2, first.Node, []service.Change{{Old: full, New: web(0, 0, service.TCP)}})
			apply(t, b, none)
			b.lastDrainCheck = time.Time{}
			wantLines(t, apply(t, b, none))
			wantEcho(t, c)
			end(c, &passed)
			for deadline := time.Now().Add(time.Minute); len(b.drainingDests) > 0 && time.Now().Before(deadline); {
				b.lastDrainCheck = time.Time{}
				apply(t, b, none)
			}
			if s, err := b.driver.Read(t.Context()); err != nil || len(s.servers) > 0 || len(b.drainingDests) > 0 {
				t.Errorf("%s: the kernel still has %v, %v; %v drain", name, s.servers, err, b.drainingDests)
			}
			c.Close()
			echo.Close()
			_ = b.Close()
		}
	})
}

// listen echoes lines on an address.
func listen(t *testing.T, at netip.AddrPort) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", at.String())
	kit.Must(t, err)
	go netlab.Serve(l, func(c net.Conn) { _, _ = io.Copy(c, c) })
	return l
}

func wantEcho(t *testing.T, c net.Conn) {
	t.Helper()
	err := c.SetDeadline(time.Now().Add(15 * time.Second))
	if err == nil {
		_, err = fmt.Fprintln(c, "hello")
	}
	if err == nil {
		_, err = bufio.NewReader(c).ReadString('\n')
	}
	kit.Check(t, err == nil, "the connection does not go on: %v", err)
}

// flow is a UDP client and the server that receives its datagrams.
type flow struct {
	client net.Conn
	server net.PacketConn
}

func dialUDP(t *testing.T, to netip.AddrPort) net.Conn {
	t.Helper()
	c, err := net.Dial("udp", to.String())
	kit.Must(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

func listenUDP(t *testing.T, at netip.AddrPort) net.PacketConn {
	t.Helper()
	s, err := net.ListenPacket("udp", at.String())
	kit.Must(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

// wantReceived checks that the next datagram that the server receives is the next one of
// the client.
func (f flow) wantReceived(t *testing.T, words string) {
	t.Helper()
	received := make([]byte, 64)
	n := 0
	err := f.server.SetReadDeadline(time.Now().Add(15 * time.Second))
	if err == nil {
		_, err = f.client.Write([]byte(words))
	}
	if err == nil {
		n, _, err = f.server.ReadFrom(received)
	}
	if err != nil || string(received[:n]) != words {
		t.Errorf("the flow does not go on: heard is %q, %v; want %q", received[:n], err, words)
	}
}

// TestKernelDrainsUDP checks that a draining virtual server keeps its UDP flows, which
// have no end of their own, until DrainTimeout, and gets no new ones. Then it is deleted
// with its conntrack entries, and no others.
func TestKernelDrainsUDP(t *testing.T) {
	inNamespace(t, func() {
		b := newKernel(t, service.IPv4, alwaysResync())
		at := netip.AddrPortFrom(generate.NodeAddr[0], 8080)
		dns := web(0, 0, service.UDP)
		dns.Cluster = []service.Endpoint{{Addr: at}}
		apply(t, b, snapshot(dns))
		// With 1, some kernels delete conntrack entries themselves.
		kit.Must(t, os.WriteFile((setting{file: "net/ipv4/vs/expire_nodest_conn"}).path(), []byte("0\n"), 0o644))
		to, foreign := netip.AddrPortFrom(dns.Frontends[0].Addr, 80), netip.AddrPortFrom(generate.OtherNodeAddr[0], 80)
		old := flow{dialUDP(t, to), listenUDP(t, at)}
		other := flow{dialUDP(t, foreign), listenUDP(t, foreign)}
		old.wantReceived(t, "hello")
		other.wantReceived(t, "hello")
		for _, lasted := range []time.Duration{0, DrainTimeout - time.Minute} {
			wantDrained(t, lasted, "virtual servers: 1, open connections: 1, for 1h0m0s at most")
			_, _ = dialUDP(t, to).Write([]byte("nobody hears me")) // some kernels return an error
			old.wantReceived(t, lasted.String())
			if n := flowsTo(t, to); n == 0 {
				t.Errorf("after %s no flow is tracked", lasted)
			}
		}
		wantDrained(t, DrainTimeout, "")
		if _, err := old.client.Write([]byte("hello")); err == nil {
			t.Error("the address of the Service still leads somewhere")
		}
		if n := flowsTo(t, to); n > 0 {
			t.Errorf("in the end %d flows are tracked", n)
		}
		other.wantReceived(t, "still here")
		if n := flowsTo(t, foreign); n != 1 {
			t.Errorf("of others %d flows are tracked, want one", n)
		}
		wantNoLeftovers(t, b)
		_ = b.Close()
	})
}

// wantDrained drains the leftovers as if draining had begun elapsed ago.
func wantDrained(t *testing.T, elapsed time.Duration, want string) {
	t.Helper()
	var since time.Time
	if elapsed > 0 {
		since = time.Now().Add(-elapsed)
	}
	if remaining, err := (Leftovers{Family: service.IPv4}).Drain(t.Context(), since); err != nil || remaining != want {
		t.Errorf("after %s there stays %q, %v; want %q", elapsed, remaining, err, want)
	}
}

func wantNoLeftovers(t *testing.T, b *Backend) {
	t.Helper()
	if what, err := (Leftovers{Family: b.family}).Find(t.Context()); what != "" || err != nil {
		t.Errorf("there is %q, %v; want nothing", what, err)
	}
	_, err := b.driver.(*kernel).links.LinkByName(Device)
	var none netlink.LinkNotFoundError
	kit.Check(t, errors.As(err, &none), "interface %s: %v; want none", Device, err)
}

// flowsTo counts the conntrack entries to an address.
func flowsTo(t *testing.T, to netip.AddrPort) int {
	t.Helper()
	n := 0
	err := conntrack.Netlink{}.Dump(t.Context(), conntrack.Filter{Family: service.IPv4, Protocol: service.UDP, Port: to.Port()}, func(f conntrack.Flow) {
		if f.Dst == to {
			n++
		}
	})
	kit.Check(t, err == nil, "%v", err)
	return n
}

// TestKernelLeftoversWithoutIPVS finds and removes routes on a kernel that has no IPVS
// any more.
func TestKernelLeftoversWithoutIPVS(t *testing.T) {
	inNamespace(t, func() {
		for _, f := range service.Families {
			b := newKernel(t, f, alwaysResync())
			apply(t, b, changingSnapshot(f, 0))
			_ = b.Close()
		}
		kit.Must(t, newMobyHandle(t).Flush())
		for _, f := range service.Families {
			r := Leftovers{Family: f, list: "/proc/none"}
			if what, err := r.Find(t.Context()); !strings.HasPrefix(what, "5 addresses of Services, ") || !strings.Contains(what, "chains of this proxy") || !strings.HasSuffix(what, ", 15 ipsets") || err != nil {
				t.Errorf("%s: %q, %v are left", f, what, err)
			}
			if stays, err := r.Drain(t.Context(), time.Time{}); stays != "" || err != nil {
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
