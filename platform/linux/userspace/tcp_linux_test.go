// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
	"kubeproxy/test/kit"
)

// answers reads the first line, which identifies the server.
func answers(t *testing.T, c net.Conn) string {
	t.Helper()
	line, err := bufio.NewReaderSize(c, 16).ReadString('\n')
	kit.Must(t, err)
	return strings.TrimSpace(line)
}

// TestHalfClose sends much data, closes its side, and receives all of it.
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
	kit.Check(t, err == nil && bytes.Equal(got, append([]byte(e.at.String()+"\n"), sent...)),
		"%d bytes came back, want %d: %v", len(got), len(sent), err)
	kit.Until(t, "all files are given back", func() bool {
		n.limits.mu.Lock()
		defer n.limits.mu.Unlock()
		return n.limits.used == 1
	})
}

// TestServerEndsFirst checks that the client receives the end of the server's data, and
// that the server still receives data of the client.
func TestServerEndsFirst(t *testing.T) {
	l, at := listenAt(t)
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
	got := <-heard
	kit.Check(t, got == "not yet", "the server heard %q", got)
}

// dead returns an address without a listener. The system never selects such a low port
// for a listener, as it might select one that was just closed.
func dead(port uint16) netip.AddrPort { return netip.AddrPortFrom(here, port) }

// TestNextEndpoint checks that the next endpoint is tried if one refuses, and that the
// client is reset if all do.
func TestNextEndpoint(t *testing.T) {
	e := newEcho(t)
	n := newNode(t, Options{}, 4096)
	web, none := port("web", service.TCP, dead(1), dead(2), e.at), port("none", service.TCP, dead(3))
	none.Frontends[0].Port = 81
	kit.Must(t, n.apply(t, web, none))
	for range 6 {
		got := answers(t, n.dial(t, web))
		kit.Check(t, got == e.at.String(), "%q answered", got)
	}
	before := n.dials.Load()
	err := n.dialRejected(t, none)
	kit.Check(t, errors.Is(err, syscall.ECONNRESET), "a client of nobody gets %v", err)
	asked := n.dials.Load() - before
	kit.Check(t, asked == 1, "the only endpoint was asked %d times", asked)
}

// TestResetPassesOn checks that each side is notified when the other aborts.
func TestResetPassesOn(t *testing.T) {
	e := newEcho(t)
	n, web := newWeb(t, e.at)
	c := n.dial(t, web)
	answers(t, c)
	reset(c)
	kit.Until(t, "all files are given back", func() bool {
		n.limits.mu.Lock()
		defer n.limits.mu.Unlock()
		return n.limits.used == 1
	})
	e.conns.Wait()
}

// TestConnectionsOutliveEndpoints checks that a connection continues after its endpoint,
// and after the whole Service, was removed.
func TestConnectionsOutliveEndpoints(t *testing.T) {
	one, two := newEcho(t), newEcho(t)
	n, web := newWeb(t, one.at)
	c := n.dial(t, web)
	answers(t, c)
	was := n.at(t, web)
	for _, ports := range [][]*service.Port{{port("web", service.TCP, two.at)}, nil} {
		kit.Must(t, n.apply(t, ports...))
		b := make([]byte, 5)
		_, _ = io.WriteString(c, "hello")
		_, err := io.ReadFull(c, b)
		kit.Check(t, err == nil && string(b) == "hello", "with %d ports: %q, %v", len(ports), b, err)
		if len(ports) > 0 {
			got := answers(t, n.dial(t, web))
			kit.Check(t, got == two.at.String(), "%s answers, want %s", got, two.at)
		}
	}
	kit.Until(t, "nobody listens after the Service left", func() bool {
		c, err := net.Dial("tcp", was.String())
		if err == nil {
			_ = c.Close()
		}
		return errors.Is(err, syscall.ECONNREFUSED)
	})
}

// TestTooManyConnections checks that clients beyond their share are reset, that others
// are served, and that this is reported while it lasts.
func TestTooManyConnections(t *testing.T) {
	e := newEcho(t)
	n := newNode(t, Options{}, 64) // 28 for the relay, two of them for the listeners
	n.limits.quietPeriod = 100 * time.Millisecond
	said := make(chan string, 10)
	n.Observe(func(text, detail string) {
		said <- detail
		kit.Check(t, !strings.Contains(text, "127.") && !strings.Contains(text, "shop"), "%q names somebody", text)
	})
	<-said
	web, other := port("web", service.TCP, e.at), port("other", service.TCP, e.at)
	other.Frontends[0].Port = 81
	kit.Must(t, n.apply(t, web, other))
	open := map[*net.TCPConn]bool{}
	for range 3 { // 3 x 6 <= 28 - 8
		c := n.dialFrom(t, web, 1)
		answers(t, c)
		open[c] = true
	}
	err := n.dialRejectedFrom(t, web, 1)
	kit.Check(t, errors.Is(err, syscall.ECONNRESET), "the fourth connection of one client gets %v", err)
	s := <-said
	kit.Check(t, strings.Contains(s, "the process, which is 64 (127.0.1.1)"), "said %q", s)
	for i := byte(2); i <= 4; i++ { // 13 <= 28 - 14
		c := n.dialFrom(t, web, i)
		answers(t, c)
		open[c] = true
	}
	err = n.dialRejectedFrom(t, web, 5)
	kit.Check(t, errors.Is(err, syscall.ECONNRESET), "one connection more to one Service gets %v", err)
	for s := range said {
		if strings.Contains(s, "(shop/web)") {
			break
		}
	}
	answers(t, n.dialFrom(t, other, 5))
	for c := range open {
		reset(c)
	}
	for s := range said {
		if s == "" {
			break
		}
	}
	answers(t, n.dialFrom(t, web, 1))
	use := n.Limits().Use()
	kit.Check(t, use.Refused[ClientShare] == 1 && use.Refused[ServiceShare] == 1 && use.Limit == 28, "the relay says %+v", use)
}

// TestAcceptFails has the system refuse connections for a while. The pauses between attempts
// grow, and then clients are served.
func TestAcceptFails(t *testing.T) {
	e := newEcho(t)
	n, web := newWeb(t, e.at)
	l := n.listeners[key{web.Name, service.PolicyCluster}].(*tcpListener)
	kit.Must(t, l.socket.SetDeadline(time.Now()))
	began := time.Now()
	kit.Until(t, "six attempts", func() bool { return n.Limits().Use().Refused[NoSystem] >= 6 })
	took := time.Since(began)
	kit.Check(t, took >= 31*minBackoff, "six attempts took %s", took)
	kit.Must(t, l.socket.SetDeadline(time.Time{}))
	answers(t, n.dial(t, web))
}

// dialFrom is dial for one of several clients.
func (n *node) dialFrom(t *testing.T, p *service.Port, client byte) *net.TCPConn {
	t.Helper()
	c, err := net.DialTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 1, client)}, net.TCPAddrFromAddrPort(n.at(t, p)))
	kit.Must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(15 * time.Second))
	return c
}

// dialRejectedFrom is dialRejected for one of several clients.
func (n *node) dialRejectedFrom(t *testing.T, p *service.Port, client byte) error {
	t.Helper()
	return rejection(&net.TCPAddr{IP: net.IPv4(127, 0, 1, client)}, n.at(t, p))
}

func endpoint(n int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 0, byte(n)}), 8080)
}

func who(n int) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, byte(n >> 8), byte(n)}) }

// TestRoundRobin checks that all endpoints are selected in turn, except one that was
// tried.
func TestRoundRobin(t *testing.T) {
	x := newTarget(service.PortName{})
	x.update(port("web", service.TCP, endpoint(1), endpoint(2), endpoint(3)))
	var seen []netip.AddrPort
	for range 6 {
		e, _ := x.choose(service.PolicyCluster, who(1), nil)
		seen = append(seen, e)
	}
	kit.Check(t, slices.Equal(seen[:3], seen[3:]) && seen[0] != seen[1] && seen[1] != seen[2] && seen[0] != seen[2],
		"in turn came %v", seen)
	for range 6 {
		e, _ := x.choose(service.PolicyCluster, who(1), []netip.AddrPort{endpoint(1), endpoint(3)})
		kit.Check(t, e == endpoint(2), "after 1 and 3 comes %s", e)
	}
	_, ok := x.choose(service.PolicyLocal, who(1), nil)
	kit.Check(t, !ok, "there is an endpoint for policy Local")
}

// TestAffinity checks that clients return to their endpoint until their affinity expires
// or the endpoint is removed.
func TestAffinity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newTarget(service.PortName{})
		p := port("web", service.TCP, endpoint(1), endpoint(2), endpoint(3))
		p.Local, p.Affinity = p.Cluster[:2], 10*time.Second
		x.update(p)
		first, _ := x.choose(service.PolicyCluster, who(1), nil)
		for range 5 {
			time.Sleep(9 * time.Second)
			e, _ := x.choose(service.PolicyCluster, who(1), nil)
			kit.Need(t, e == first, "came to %s, was at %s", e, first)
			_, _ = x.choose(service.PolicyCluster, who(2), nil) // other clients have no influence
		}
		if x.forget(who(1), endpoint(9)); len(x.clients.byAddr) != 2 {
			t.Error("forgotten for an endpoint that it did not use")
		}
		x.forget(who(1), first)
		e, _ := x.choose(service.PolicyCluster, who(1), nil)
		kit.Check(t, e != first, "came back to %s, which does not answer", e)
		time.Sleep(11 * time.Second)
		_, _ = x.choose(service.PolicyCluster, who(3), nil)
		n := len(x.clients.byAddr)
		kit.Check(t, n == 1 && x.clients.order.Len() == 1, "%d clients are remembered, want the last", n)
		at, _ := x.choose(service.PolicyCluster, who(3), nil)
		q := port("web", service.TCP, endpoint(1), endpoint(2), endpoint(3))
		q.Affinity = p.Affinity
		q.Cluster = slices.DeleteFunc(q.Cluster, func(e service.Endpoint) bool { return e.Addr == at })
		x.update(q)
		if e, _ := x.choose(service.PolicyCluster, who(3), nil); e == at {
			t.Errorf("led to %s, which left", e)
		}
	})
}

// TestClientsAreBounded checks that the least recently used clients are dropped.
func TestClientsAreBounded(t *testing.T) {
	var c affinityTable
	now := time.Unix(1000, 0)
	for i := range maxClients + 10 {
		addr := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		c.store(addr, endpoint(1), now, time.Hour)
		_, _ = c.lookup(netip.AddrFrom4([4]byte{10, 0, 0, 0}), now, time.Hour)
	}
	kit.Check(t, len(c.byAddr) == maxClients && c.order.Len() == maxClients,
		"%d clients are remembered, want %d", len(c.byAddr), maxClients)
	_, known := c.lookup(netip.AddrFrom4([4]byte{10, 0, 0, 0}), now, time.Hour)
	kit.Check(t, known, "the one that comes all the time is forgotten")
	if _, known := c.lookup(netip.AddrFrom4([4]byte{10, 0, 0, 1}), now, time.Hour); known {
		t.Error("the oldest is remembered")
	}
}

// count returns the number of pipes, and how many of them are free.
func (co *copier) count() (made, free int) {
	co.mu.Lock()
	defer co.mu.Unlock()
	return co.openPipes, len(co.free)
}

// TestSplice copies data through a pipe that returns to its pool, and without one when
// there are no more.
func TestSplice(t *testing.T) {
	e := newEcho(t)
	n, web := newWeb(t, e.at)
	m := &n.relay.copier
	pass := func() {
		t.Helper()
		c := n.dial(t, web)
		answers(t, c)
		sent := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
		go func() {
			_, _ = c.Write(sent)
			_ = c.CloseWrite()
		}()
		got, err := io.ReadAll(c)
		kit.Check(t, err == nil && bytes.Equal(got, sent), "%d bytes came back, want %d: %v", len(got), len(sent), err)
	}
	pass()
	made, _ := m.count()
	kit.Check(t, made != 0 && made <= 2, "%d pipes for one connection", made)
	allFree(t, m)
	m.mu.Lock()
	m.openPipes, m.free = maxPipes, nil
	m.mu.Unlock()
	pass()
	_, free := m.count()
	kit.Check(t, free == 0, "there are more pipes than may be")
}

// TestIdleConnectionsHoldNoPipe opens many connections that become idle.
func TestIdleConnectionsHoldNoPipe(t *testing.T) {
	e := newEcho(t)
	n, web := newWeb(t, e.at)
	for range 50 {
		answers(t, n.dial(t, web))
	}
	m := &n.relay.copier
	allFree(t, m)
	made, _ := m.count()
	kit.Check(t, made <= 10, "%d pipes for 50 idle connections", made)
}

func allFree(t *testing.T, m *copier) {
	t.Helper()
	kit.Until(t, "all pipes are free", func() bool {
		made, free := m.count()
		return free == made
	})
}

// TestPacing checks that sockets of a listener do not use the system's congestion
// control with near peers, and use it with distant ones.
func TestPacing(t *testing.T) {
	l, at := listenAt(t)
	raw, err := l.SyscallConn()
	kit.Must(t, err)
	chosen := control(t, l)
	var p congestionControl
	kit.Must(t, raw.Control(func(fd uintptr) { p.replace(fd, chosen) }))
	for _, tt := range []struct {
		name string
		near time.Duration
		want string
	}{
		{"near", time.Minute, "reno"},
		{"far", 0, chosen},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := net.Dial("tcp", at.String())
			kit.Must(t, err)
			defer c.Close()
			s, err := l.AcceptTCP()
			kit.Must(t, err)
			defer s.Close()
			p.restoreIfFar(s, tt.near)
			got := control(t, s)
			kit.Check(t, got == tt.want, "congestion control %q, want %q", got, tt.want)
		})
	}
}

// TestAvoidPacing checks that the congestion control of a socket is replaced if, and
// only if, the default uses pacing.
func TestAvoidPacing(t *testing.T) {
	l, _ := listenAt(t)
	chosen := control(t, l)
	p, got := avoidPacingOn(l), control(t, l)
	switch {
	case chosen == "bbr" && (got != "reno" || p != "bbr"):
		t.Errorf("a paced listener has %q and remembers %q", got, p)
	case chosen != "bbr" && (got != chosen || p != ""):
		t.Errorf("a listener with %q has %q now and remembers %q", chosen, got, p)
	}
}

// control returns the congestion control of a socket.
func control(t *testing.T, c syscall.Conn) string {
	t.Helper()
	raw, err := c.SyscallConn()
	kit.Must(t, err)
	var name string
	if ctl := raw.Control(func(fd uintptr) {
		name, err = unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION)
	}); ctl != nil || err != nil {
		t.Fatal(ctl, err)
	}
	return name
}

// tables accept rules and ignore them.
type tables struct{ err error }

func (t *tables) Restore(context.Context, string) error               { return t.err }
func (t *tables) Save(context.Context) (string, error)                { return "", nil }
func (t *tables) Touched(context.Context) (bool, error)               { return false, nil }
func (t *tables) Liberal() bool                                       { return false }
func (t *tables) Recent(string) (map[netip.Addr]time.Duration, error) { return nil, nil }
func (t *tables) Dormant() ([]string, error)                          { return nil, nil }
func (t *tables) SavedTables() []string                               { return nil }
func (t *tables) Activate(string) error                               { return nil }
func (t *tables) RouteLocalnetEnabled() (bool, error)                 { return true, nil }
func (t *tables) EnableRouteLocalnet() error                          { return nil }
func (t *tables) DisableRouteLocalnet() error                         { return nil }
func (t *tables) Watch(ctx context.Context, _ func()) error           { <-ctx.Done(); return nil }
func (t *tables) PieceRules() int                                     { return 0 }
func (t *tables) Suspect() string                                     { return "" }
func (t *tables) Close()                                              {}

// node is a node with its sockets on a loopback address.
type node struct {
	*Backend
	tables tables
	dials  atomic.Int32
	limits *Limits
}

func newNode(t *testing.T, o Options, files int) *node {
	n := &node{limits: NewLimits(files)}
	n.Backend = NewWith(service.IPv4, o, Parts{Driver: &n.tables, Network: n, Address: n, Limits: n.limits})
	// Endpoints answer or refuse at once here. Only a busy machine causes delays.
	n.relay.dialTimeouts = slices.Repeat([]time.Duration{long}, len(dialTimeouts))
	t.Cleanup(func() { _ = n.Close() })
	return n
}

// newWeb returns a node that relays a Service to endpoints, and the Service.
func newWeb(t *testing.T, at ...netip.AddrPort) (*node, *service.Port) {
	t.Helper()
	n, web := newNode(t, Options{}, 4096), port("web", service.TCP, at...)
	kit.Must(t, n.apply(t, web))
	return n, web
}

func (n *node) Has() (bool, error) { return true, nil }
func (n *node) Add() error         { return nil }
func (n *node) Remove() error      { return nil }

func (n *node) ListenTCP(port uint16) (*net.TCPListener, error) {
	return net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(here, port)))
}

func (n *node) ListenUDP(port uint16) (*net.UDPConn, error) {
	return net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(here, port)))
}

func (n *node) DialTCP(ctx context.Context, to netip.AddrPort, _ int) (*net.TCPConn, error) {
	n.dials.Add(1)
	var d net.Dialer
	return d.DialTCP(ctx, "tcp", netip.AddrPort{}, to)
}

func (n *node) DialUDP(to netip.AddrPort, _ int) (*net.UDPConn, error) {
	return net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
}

// here is a loopback address that only this process uses, so that no other process takes
// a port that was just closed.
var here = netip.AddrFrom4([4]byte{127, 77, byte(os.Getpid() >> 8), byte(os.Getpid())})

// listenAt listens on a free port until the end of the test.
func listenAt(t *testing.T) (*net.TCPListener, netip.AddrPort) {
	t.Helper()
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(here, 0)))
	kit.Must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l, l.Addr().(*net.TCPAddr).AddrPort()
}

// port returns a Service port with endpoints.
func port(name string, proto service.Protocol, at ...netip.AddrPort) *service.Port {
	p := &service.Port{
		Name:      service.PortName{Namespace: "shop", Name: name, Protocol: proto},
		Frontends: []service.Frontend{{Addr: netip.MustParseAddr("10.96.0.10"), Port: 80}},
	}
	for _, a := range at {
		p.Cluster = append(p.Cluster, service.Endpoint{Addr: a})
	}
	return p
}

// apply runs a sync and returns its error.
func (n *node) apply(t *testing.T, ports ...*service.Port) error {
	t.Helper()
	p, err := n.Plan(t.Context(), service.New(1, &service.Node{NodePorts: service.AnyAddress()}, ports))
	kit.Must(t, err)
	return p.Apply(t.Context()).Err
}

// at returns the address of p's listener.
func (n *node) at(t *testing.T, p *service.Port) netip.AddrPort {
	t.Helper()
	l := n.listeners[key{p.Name, service.PolicyCluster}]
	kit.Need(t, l != nil, "%s has no listener", p.Name)
	return netip.AddrPortFrom(here, l.port())
}

func (n *node) dial(t *testing.T, p *service.Port) *net.TCPConn {
	t.Helper()
	c, err := net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(n.at(t, p)))
	kit.Must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(15 * time.Second))
	return c
}

// dialRejected returns the error that a client of p gets if it cannot be served. The
// reset may arrive before the end of the dial.
func (n *node) dialRejected(t *testing.T, p *service.Port) error {
	t.Helper()
	return rejection(nil, n.at(t, p))
}

// rejection dials to, and returns the error that the client gets.
func rejection(from *net.TCPAddr, to netip.AddrPort) error {
	c, err := net.DialTCP("tcp", from, net.TCPAddrFromAddrPort(to))
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(15 * time.Second))
	_, err = c.Read(make([]byte, 1))
	return err
}

// echo serves TCP and UDP on one address. It replies with its own address first, then
// with what it receives. TCP continues until the client closes its side.
type echo struct {
	at    netip.AddrPort
	conns sync.WaitGroup
}

func newEcho(t *testing.T) *echo {
	t.Helper()
	l, at := listenAt(t)
	e := &echo{at: at}
	u, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(e.at))
	kit.Must(t, err)
	t.Cleanup(func() {
		_ = l.Close()
		_ = u.Close()
		e.conns.Wait()
	})
	go func() {
		for {
			c, err := l.AcceptTCP()
			if err != nil {
				return
			}
			e.conns.Go(func() { e.answer(c) })
		}
	}()
	go func() {
		b := make([]byte, 1<<16)
		for {
			n, from, err := u.ReadFromUDPAddrPort(b)
			if err != nil {
				return
			}
			_, _ = u.WriteToUDPAddrPort(append([]byte(e.at.String()+" "), b[:n]...), from)
		}
	}()
	return e
}

func (e *echo) answer(c *net.TCPConn) {
	defer c.Close()
	_, _ = io.WriteString(c, e.at.String()+"\n")
	_, _ = io.Copy(c, c)
}
