// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"context"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"kubeproxy/common/service"
	"kubeproxy/test/kit"
)

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
