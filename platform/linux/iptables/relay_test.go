// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"pgregory.net/rapid"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/iptables"
	"kubeproxy/platform/linux/userspace"
	"kubeproxy/test/generate"
)

var errInjected = errors.New("injected")

// relayNode is a node in mode userspace whose sockets are on a loopback address and
// whose tables are fake.
type relayNode struct {
	*userspace.Backend
	family service.Family
	tables *iptables.Fake
	// refuse decides whether to refuse a listener.
	refuse func() bool
	addr   bool
}

func newRelayNode(f service.Family, tables *iptables.Fake) *relayNode {
	return newSiteWith(f, tables, userspace.Options{})
}

// newSiteWith has listeners where o says.
func newSiteWith(f service.Family, tables *iptables.Fake, o userspace.Options) *relayNode {
	s := &relayNode{family: f, tables: tables, addr: true, refuse: func() bool { return false }}
	o.Rules = iptables.Options{MasqueradeBit: 14, DropInvalid: true}
	s.Backend = userspace.NewWith(f, o, userspace.Parts{Driver: tables, Network: s, Address: s, Limits: userspace.NewLimits(4096)})
	return s
}

func (s *relayNode) Has() (bool, error) { return s.addr, nil }

func (s *relayNode) Add() error {
	if s.refuse() {
		return errInjected
	}
	s.addr = true
	return nil
}

func (s *relayNode) Remove() error {
	s.addr = false
	return nil
}

// here is a loopback address that only this process uses, so that no other process takes
// the port of a listener that is to be opened again. Any address serves for the rest,
// because the rules are fake.
var here = net.IPv4(127, 76, byte(os.Getpid()>>8), byte(os.Getpid()))

func (s *relayNode) ListenTCP(port uint16) (*net.TCPListener, error) {
	if s.refuse() {
		return nil, errInjected
	}
	return net.ListenTCP("tcp", &net.TCPAddr{IP: here, Port: int(port)})
}

func (s *relayNode) ListenUDP(port uint16) (*net.UDPConn, error) {
	if s.refuse() {
		return nil, errInjected
	}
	return net.ListenUDP("udp", &net.UDPAddr{IP: here, Port: int(port)})
}

func (s *relayNode) DialTCP(context.Context, netip.AddrPort, int) (*net.TCPConn, error) {
	return nil, syscall.ECONNREFUSED
}

func (s *relayNode) DialUDP(netip.AddrPort, int) (*net.UDPConn, error) {
	return nil, syscall.ECONNREFUSED
}

// round runs one sync. It must succeed except for unsupported Services.
func (s *relayNode) round(t *rapid.T, want *service.Snapshot) {
	p, err := s.Plan(context.Background(), want)
	if err != nil {
		t.Fatalf("Plan: %v", err)
	}
	if err := p.Apply(context.Background()); err != nil && !reconcile.Unsupported(err) {
		t.Fatalf("Apply: %v\n%s", err, p)
	}
}

// judge compares what the rules do with a connection, and which Service the listener is for, with
// route.
func (s *relayNode) judge(t *rapid.T, want *service.Snapshot, c route.Conn) {
	v := route.Decide(want, c)
	if v.Port != nil && v.Port.Name.Protocol == service.SCTP { // has no listener
		v = route.Decide(s.Redirected(), c)
	}
	got := iptables.Trace(s.tables, c, generate.IsNodeLocal)
	if got.Action != v.Action || got.Masquerade {
		t.Fatalf("%+v: %v, masquerade %v; want %v, false: %s\n%s", c, got.Action, got.Masquerade, v.Action, v.Reason, s.tables.Text())
	}
	if v.Action != route.Forward {
		return
	}
	redirected := s.Redirected().Port(s.family, v.Port.Name)
	var to []service.Endpoint
	switch {
	case len(got.Targets) != 1:
		t.Fatalf("%+v: led to %v", c, got.Targets)
	case len(redirected.Cluster) > 0 && redirected.Cluster[0].Addr == got.Targets[0]:
		to = v.Port.Cluster
	case len(redirected.Local) > 0 && redirected.Local[0].Addr == got.Targets[0]:
		to = v.Port.Local
	}
	if got.Targets[0].Port() == 0 || !slices.Equal(to, v.Endpoints) {
		t.Fatalf("%+v: led to %v, for %v; want %v: %s", c, got.Targets, to, v.Endpoints, v.Reason)
	}
}

// nodeOf draws a node without ServiceCIDRs, which these rules do not use.
func nodeOf(w generate.Cluster) *service.Node {
	n := w.Node()
	n.ServiceCIDRs = nil
	return n
}

// TestRelayDecidesAsRouteDoes checks 2,000 connections in mode userspace: 10 to each of
// 100 drawn clusters of each family.
func TestRelayDecidesAsRouteDoes(t *testing.T) {
	eachCluster(t, newRelayNode, (*relayNode).round, (*relayNode).judge)
}

// eachCluster programs clusters that are drawn, each at a site of its own, and
// judges ten connections to each.
func eachCluster(t *testing.T, at func(service.Family, *iptables.Fake) *relayNode, program func(*relayNode, *rapid.T, *service.Snapshot), judge func(*relayNode, *rapid.T, *service.Snapshot, route.Conn)) {
	for _, f := range service.Families {
		t.Run(f.String(), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				w := generate.Cluster{T: t, Family: f}
				ports := w.Ports()
				want := service.New(1, nodeOf(w), ports)
				s := at(f, iptables.NewFake())
				defer s.Close()
				program(s, t, want)
				for range 10 {
					judge(s, t, want, w.Conn(ports))
				}
			})
		})
	}
}

// TestRelayConverges makes tables, listeners and the address fail, and starts new
// processes in between. One clean sync must repair everything.
func TestRelayConverges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := generate.Cluster{T: t, Family: service.Family(rapid.IntRange(0, 1).Draw(t, "family"))}
		tables := iptables.NewFake()
		o := drawBound(w)
		s := newSiteWith(w.Family, tables, o)
		defer func() { s.Close() }()
		var ports []*service.Port
		var want *service.Snapshot
		for n := range 4 {
			ports = w.Ports()
			want = service.New(uint64(n), nodeOf(w), ports)
			s.addr = w.DrawBool("address")
			s.refuse = func() bool { return w.DrawInt("listen", 4) == 0 }
			tables.RefuseWith(func(string) error {
				return [...]error{errInjected, iptables.ErrBusy, nil, nil}[w.DrawInt("refuse", 4)]
			})
			if w.DrawBool("restart") {
				s.Close()
				old := s
				o = drawBound(w)
				s = newSiteWith(w.Family, tables, o)
				s.refuse, s.addr = old.refuse, old.addr
			}
			if p, err := s.Plan(context.Background(), want); err != nil {
				t.Fatalf("Plan: %v", err)
			} else if err := p.Apply(context.Background()); err != nil && !errors.Is(err, errInjected) && !errors.Is(err, iptables.ErrBusy) && !reconcile.Unsupported(err) {
				t.Fatalf("Apply: %v\n%s", err, p)
			}
			if text := tables.Text(); strings.Contains(text, ":0\n") {
				t.Fatalf("somebody is led to port 0:\n%s", text)
			}
		}
		tables.RefuseWith(nil)
		s.refuse = func() bool { return false }
		want = service.New(9, want.Node, ports)
		s.round(t, want)
		hasSCTP := slices.ContainsFunc(ports, func(p *service.Port) bool { return p.Name.Protocol == service.SCTP })
		if p, err := s.Plan(context.Background(), want); err != nil || !p.Empty() && !hasSCTP {
			t.Fatalf("after a clean round: %v, still to do:\n%s", err, p)
		}
		wantGuard(t, tables, o.Listen[w.Family])
		for range 5 {
			s.judge(t, want, w.Conn(ports))
		}
	})
}

// TestRelayKeepsPortsOverRestart checks that a new process listens on the ports of the
// old one, so that no rule changes.
func TestRelayKeepsPortsOverRestart(t *testing.T) {
	tables := iptables.NewFake()
	endpoints := []service.Endpoint{{Addr: netip.MustParseAddrPort("10.244.1.1:8080"), Local: true}}
	var ports []*service.Port
	for i := range 20 {
		ports = append(ports, &service.Port{
			Name:      service.PortName{Namespace: "shop", Name: string(rune('a' + i)), Protocol: []service.Protocol{service.TCP, service.UDP}[i%2]},
			Frontends: []service.Frontend{{Addr: netip.AddrFrom4([4]byte{10, 96, 0, byte(i)}), Port: 80}, {Kind: service.NodePort, Port: uint16(30000 + i)}},
			Cluster:   endpoints, Local: endpoints, External: service.PolicyLocal,
		})
	}
	want := service.New(1, &service.Node{NodePorts: service.AnyAddress()}, ports)
	first := newRelayNode(service.IPv4, tables)
	apply := func(s *relayNode) {
		p, err := s.Plan(t.Context(), want)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Apply(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	apply(first)
	before := tables.Text()
	first.Close()
	second := newRelayNode(service.IPv4, tables)
	defer second.Close()
	apply(second)
	if tables.Text() != before {
		t.Errorf("the rules are now\n%s\nand were\n%s", tables.Text(), before)
	}
	if p, err := second.Plan(t.Context(), want); err != nil || !p.Empty() {
		t.Errorf("still to do: %s, %v", p, err)
	}
}
