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
	"kubeproxy/test/generate"
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
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
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
	if err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Errorf("the connection does not go on: %v", err)
	}
}
