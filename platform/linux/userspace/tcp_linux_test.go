// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"kubeproxy/common/service"
)

// answers reads the first line, which names the server.
func answers(t *testing.T, c net.Conn) string {
	t.Helper()
	line, err := bufio.NewReaderSize(c, 16).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(line)
}

// TestHalfClose sends much, ends, and gets all of it back.
func TestHalfClose(t *testing.T) {
	e := newEcho(t)
	n, web := newWeb(t, e.at)
	c := n.dial(t, web)
	sent := bytes.Repeat([]byte("0123456789abcdef"), 1<<18) // 4 MB
	go func() {
		_, _ = c.Write(sent)
		_ = c.CloseWrite()
	}()
	got, err := io.ReadAll(c)
	if err != nil || !bytes.Equal(got, append([]byte(e.at.String()+"\n"), sent...)) {
		t.Errorf("%d bytes came back, want %d: %v", len(got), len(sent), err)
	}
	eventually(t, "all files are given back", func() bool {
		n.limits.mu.Lock()
		defer n.limits.mu.Unlock()
		return n.limits.used == 1
	})
}

// TestServerEndsFirst has the server's end reach the client, and what the
// client still says the server.
func TestServerEndsFirst(t *testing.T) {
	l, at := listen(t)
	heard := make(chan string, 1)
	go func() {
		c, err := l.AcceptTCP()
		if err != nil {
			return
		}
		_, _ = io.WriteString(c, "bye")
		_ = c.CloseWrite()
		rest, _ := io.ReadAll(c)
		heard <- string(rest)
	}()
	n, web := newWeb(t, at)
	c := n.dial(t, web)
	if got, err := io.ReadAll(c); string(got) != "bye" || err != nil {
		t.Fatalf("read %q, %v", got, err)
	}
	_, _ = io.WriteString(c, "not yet")
	_ = c.CloseWrite()
	if got := <-heard; got != "not yet" {
		t.Errorf("the server heard %q", got)
	}
}

// dead returns an address where nobody listens. A listener that may choose its
// port never takes one as low as these, as it might one that was just closed.
func dead(port uint16) netip.AddrPort { return netip.AddrPortFrom(here, port) }

// TestNextEndpoint goes on where an endpoint refuses, and resets the client
// where all do.
func TestNextEndpoint(t *testing.T) {
	e := newEcho(t)
	n := newNode(t, Options{}, 4096)
	web, none := port("web", service.TCP, dead(1), dead(2), e.at), port("none", service.TCP, dead(3))
	none.Frontends[0].Port = 81
	if err := n.apply(t, web, none); err != nil {
		t.Fatal(err)
	}
	for range 6 {
		if got := answers(t, n.dial(t, web)); got != e.at.String() {
			t.Errorf("%q answered", got)
		}
	}
	before := n.dials.Load()
	if err := n.knock(t, none); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a client of nobody gets %v", err)
	}
	if asked := n.dials.Load() - before; asked != 1 {
		t.Errorf("the only endpoint was asked %d times", asked)
	}
}

// TestResetPassesOn has each side hear that the other broke off.
func TestResetPassesOn(t *testing.T) {
	e := newEcho(t)
	n, web := newWeb(t, e.at)
	c := n.dial(t, web)
	answers(t, c)
	reset(c)
	eventually(t, "all files are given back", func() bool {
		n.limits.mu.Lock()
		defer n.limits.mu.Unlock()
		return n.limits.used == 1
	})
	e.conns.Wait()
}

// TestConnectionsOutliveEndpoints goes on talking when the endpoint left, and
// when the whole Service did.
func TestConnectionsOutliveEndpoints(t *testing.T) {
	one, two := newEcho(t), newEcho(t)
	n, web := newWeb(t, one.at)
	c := n.dial(t, web)
	answers(t, c)
	was := n.at(t, web)
	for _, ports := range [][]*service.Port{{port("web", service.TCP, two.at)}, nil} {
		if err := n.apply(t, ports...); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 5)
		_, _ = io.WriteString(c, "hello")
		if _, err := io.ReadFull(c, b); err != nil || string(b) != "hello" {
			t.Errorf("with %d ports: %q, %v", len(ports), b, err)
		}
		if len(ports) > 0 {
			if got := answers(t, n.dial(t, web)); got != two.at.String() {
				t.Errorf("%s answers, want %s", got, two.at)
			}
		}
	}
	eventually(t, "nobody listens after the Service left", func() bool {
		c, err := net.Dial("tcp", was.String())
		if err == nil {
			_ = c.Close()
		}
		return errors.Is(err, syscall.ECONNREFUSED)
	})
}

// TestTooManyConnections has clients wait while the process has no more files,
// and says so for as long.
func TestTooManyConnections(t *testing.T) {
	e := newEcho(t)
	n := newNode(t, Options{}, 16) // 12 for relaying, of which the listener has one
	said := make(chan string, 10)
	n.Observe(func(s string) { said <- s })
	<-said
	web := port("web", service.TCP, e.at)
	if err := n.apply(t, web); err != nil {
		t.Fatal(err)
	}
	var open []*net.TCPConn
	for range 5 {
		c := n.dial(t, web)
		answers(t, c)
		open = append(open, c)
	}
	waiting := n.dial(t, web)
	if s := <-said; !strings.Contains(s, "the process may have 16") {
		t.Errorf("said %q", s)
	}
	for _, c := range open {
		reset(c)
	}
	if got := answers(t, waiting); got != e.at.String() {
		t.Errorf("%q answered", got)
	}
	if s := <-said; s != "" {
		t.Errorf("said %q, want that it is over", s)
	}
}
