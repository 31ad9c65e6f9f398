// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/conntrack"
	"kubeproxy/test/world"
)

// A connection to an endpoint that left goes on while it lasts, and the endpoint
// goes as soon as the connection has ended, or when its time is over.
func TestKernelDrains(t *testing.T) {
	inNamespace(t, func() {
		for name, end := range map[string]func(net.Conn, *time.Duration){
			"the connection ends": func(c net.Conn, _ *time.Duration) { c.(*net.TCPConn).SetLinger(0); c.Close() },
			"the time is over":    func(_ net.Conn, passed *time.Duration) { *passed = DrainBound },
		} {
			passed := time.Duration(0)
			b := newKernel(t, service.IPv4, Options{MasqueradeBit: 14, SyncPeriod: 2 * DrainBound})
			b.now = func() time.Time { return time.Now().Add(passed) }
			at := netip.AddrPortFrom(world.NodeAddr[0], 8080)
			echo := listen(t, at)
			full := web(0, 0, service.TCP)
			full.Cluster = []service.Endpoint{{Addr: at}}
			first := snapshot(full)
			apply(t, b, first)
			c, err := net.Dial("tcp", netip.AddrPortFrom(full.Frontends[0].Addr, 80).String())
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			wantEcho(t, c)
			none := first.With(2, first.Node, []service.Change{{Old: full, New: web(0, 0, service.TCP)}})
			apply(t, b, none)
			b.looked = time.Time{}
			wantLines(t, apply(t, b, none))
			wantEcho(t, c)
			end(c, &passed)
			for deadline := time.Now().Add(time.Minute); len(b.drains) > 0 && time.Now().Before(deadline); {
				b.looked = time.Time{}
				apply(t, b, none)
			}
			if s, err := b.driver.Read(t.Context()); err != nil || len(s.servers) > 0 || len(b.drains) > 0 {
				t.Errorf("%s: the kernel still has %v, %v; %v drain", name, s.servers, err, b.drains)
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
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			}()
		}
	}()
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
	if err != nil {
		t.Errorf("the connection does not go on: %v", err)
	}
}

// What a retired virtual server has of UDP, which has no end of its own, goes on
// until the bound has passed. Then it is cut, and connection tracking forgets it.
func TestKernelRetiresUDP(t *testing.T) {
	inNamespace(t, func() {
		b := newKernel(t, service.IPv4, always())
		at := netip.AddrPortFrom(world.NodeAddr[0], 8080)
		server, err := net.ListenPacket("udp", at.String())
		if err != nil {
			t.Fatal(err)
		}
		defer server.Close()
		dns := web(0, 0, service.UDP)
		dns.Cluster = []service.Endpoint{{Addr: at}}
		apply(t, b, snapshot(dns))
		to := netip.AddrPortFrom(dns.Frontends[0].Addr, 80)
		client, err := net.Dial("udp", to.String())
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		wantHeard(t, client, server)
		for _, x := range []struct {
			lasted time.Duration
			stays  string
		}{
			{0, "virtual servers: 1, open connections: 1, for 1h0m0s at most"},
			{DrainBound - time.Minute, "virtual servers: 1, open connections: 1, for 1h0m0s at most"},
			{DrainBound, ""},
		} {
			var since time.Time
			if x.lasted > 0 {
				since = time.Now().Add(-x.lasted)
			}
			if stays, err := (Remains{Family: service.IPv4}).Retire(t.Context(), since); err != nil || stays != x.stays {
				t.Errorf("after %s there stays %q, %v; want %q", x.lasted, stays, err, x.stays)
			}
			if n := flowsTo(t, to); (n > 0) != (x.stays != "") {
				t.Errorf("after %s there are %d tracked flows", x.lasted, n)
			}
			if x.stays != "" {
				wantHeard(t, client, server)
			}
		}
		if _, err := fmt.Fprintln(client, "hello"); err == nil {
			t.Error("the address of the Service still leads somewhere")
		}
		_ = b.Close()
	})
}

func wantHeard(t *testing.T, client net.Conn, server net.PacketConn) {
	t.Helper()
	err := server.SetReadDeadline(time.Now().Add(15 * time.Second))
	if err == nil {
		_, err = fmt.Fprintln(client, "hello")
	}
	if err == nil {
		_, _, err = server.ReadFrom(make([]byte, 16))
	}
	if err != nil {
		t.Errorf("the flow does not go on: %v", err)
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
