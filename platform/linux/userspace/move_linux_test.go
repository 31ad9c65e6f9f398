// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/conntrack"
	"kubeproxy/test/kit"
)

// flows is a fake conntrack table.
type flows struct {
	conntrack.Driver
	mu  sync.Mutex
	all []conntrack.Flow
	err error // of the next dump
}

func (fl *flows) Dump(_ context.Context, f conntrack.Filter, each func(conntrack.Flow)) error {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	for _, x := range fl.all {
		each(x)
	}
	err := fl.err
	fl.err = nil
	return err
}

func (fl *flows) Delete(_ context.Context, gone []conntrack.Flow) (int, error) {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	fl.all = slices.DeleteFunc(fl.all, func(f conntrack.Flow) bool { return slices.Contains(gone, f) })
	return len(gone), nil
}

func (fl *flows) has(f conntrack.Flow) bool {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	return slices.Contains(fl.all, f)
}

// handOver gives n a table of flows, hands over and begins to drain, until ctx is done.
func (n *node) handOver(ctx context.Context, t *testing.T, k *flows) (done <-chan struct{}) {
	t.Helper()
	n.Backend.flows = k
	if _, err := n.HandOver(ctx); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		n.Drain(ctx)
		close(ended)
	}()
	return ended
}

// to returns the flow of a client to the listener of p.
func (n *node) to(t *testing.T, p *service.Port, client netip.AddrPort) conntrack.Flow {
	t.Helper()
	return conntrack.Flow{
		Protocol: service.UDP, Src: client, Dst: netip.MustParseAddrPort("10.96.0.10:80"),
		ReplySrc: netip.AddrPortFrom(Addrs[service.IPv4], n.at(t, p).Port()), ReplyDst: client,
	}
}

// TestUDPClientsMove checks that UDP clients move when none of their datagrams is in
// transit, and that no others do.
func TestUDPClientsMove(t *testing.T) {
	e := newEcho(t)
	n := newNode(t, Options{UDPIdle: time.Minute}, 4096)
	dns, slow := port("dns", service.UDP, e.at), port("slow", service.UDP, silentServer(t))
	slow.Frontends = []service.Frontend{{Addr: netip.MustParseAddr("10.96.0.11"), Port: 80}}
	if err := n.apply(t, dns, slow); err != nil {
		t.Fatal(err)
	}
	asked, waits := n.caller(t, dns), n.caller(t, slow)
	if asked.ask(t, "x", long) == "" {
		t.Fatal("no answer")
	}
	if _, err := waits.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	kit.Until(t, "both are known", func() bool { return n.sessions(dns) == 1 && n.sessions(slow) == 1 })
	client := func(c caller) netip.AddrPort { return netip.MustParseAddrPort(c.LocalAddr().String()) }
	answered, waiting := n.to(t, dns, client(asked)), n.to(t, slow, client(waits))
	forgotten := n.to(t, dns, netip.MustParseAddrPort("10.244.1.9:4000"))
	other := forgotten
	other.ReplySrc = netip.AddrPortFrom(Addrs[service.IPv4], 1)
	direct := forgotten
	direct.ReplySrc = netip.AddrPortFrom(here, n.at(t, dns).Port())
	k := &flows{all: []conntrack.Flow{answered, waiting, forgotten, other, direct}, err: errors.New("try again")}
	ctx, stop := context.WithCancel(t.Context())
	done := n.handOver(ctx, t, k)
	kit.Until(t, "those with an answer and the forgotten one move", func() bool { return !k.has(answered) && !k.has(forgotten) })
	if !k.has(waiting) {
		t.Error("a client moved whose answer is to come")
	}
	stop()
	<-done
	if k.has(waiting) {
		t.Error("in the end a client stays where nobody listens any more")
	}
	if !k.has(other) || !k.has(direct) {
		t.Error("flows of others are gone")
	}
}

// silentServer returns the address of a UDP server that does not reply.
func silentServer(t *testing.T) netip.AddrPort {
	t.Helper()
	n := &node{}
	u, err := n.ListenUDP(0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = u.Close() })
	return netip.MustParseAddrPort(u.LocalAddr().String())
}

// blockingDialer blocks before it opens UDP sockets.
type blockingDialer struct {
	*node
	dialling chan bool
	proceed  chan bool
}

func (b *blockingDialer) DialUDP(to netip.AddrPort, hops int) (*net.UDPConn, error) {
	b.dialling <- true
	<-b.proceed
	return b.node.DialUDP(to, hops)
}

// TestUDPClientsOnTheirWayStay has datagrams that wait in a blocked process, one of them
// already read.
func TestUDPClientsOnTheirWayStay(t *testing.T) {
	e := newEcho(t)
	n := newNode(t, Options{UDPIdle: time.Minute}, 4096)
	h := &blockingDialer{n, make(chan bool, 2), make(chan bool)}
	n.relay.network = h
	proceed := sync.OnceFunc(func() { close(h.proceed) })
	t.Cleanup(proceed)
	dns := port("dns", service.UDP, e.at)
	if err := n.apply(t, dns); err != nil {
		t.Fatal(err)
	}
	l := n.listeners[key{dns.Name, service.PolicyCluster}].(*udpListener)
	var clients []netip.AddrPort
	ask := func() {
		c := n.caller(t, dns)
		clients = append(clients, netip.MustParseAddrPort(c.LocalAddr().String()))
		if _, err := c.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	wantBusy := func(when string) {
		t.Helper()
		for _, c := range clients {
			result := make(chan bool, 1)
			go func() { result <- l.busy(c) }()
			select {
			case busy := <-result:
				if !busy {
					t.Errorf("%s: %s may move", when, c)
				}
			case <-time.After(long):
				t.Fatalf("%s: it takes too long to say", when)
			}
		}
	}
	ask()
	<-h.dialling
	wantBusy("one is read")
	ask()
	wantBusy("another one waits")
	proceed()
	kit.Until(t, "both may move", func() bool {
		return n.sessions(dns) == 2 && !l.busy(clients[0]) && !l.busy(clients[1])
	})
}

// TestUDPClientsThatWaitStay has a datagram that is not read.
func TestUDPClientsThatWaitStay(t *testing.T) {
	n := newNode(t, Options{}, 4096)
	u, err := n.ListenUDP(0)
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	l := &udpListener{relay: n.relay, socket: u, target: newTarget(service.PortName{})}
	c, err := net.DialUDP("udp", nil, u.LocalAddr().(*net.UDPAddr))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	client := netip.MustParseAddrPort(c.LocalAddr().String())
	if l.busy(client) {
		t.Error("a client who said nothing has to stay")
	}
	if _, err := c.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	kit.Until(t, "the client has to stay", func() bool { return l.busy(client) })
}

// TestDrainCounts checks the number of connections that have not ended.
func TestDrainCounts(t *testing.T) {
	e := newEcho(t)
	n, web := newWeb(t, e.at)
	one, two := n.dial(t, web), n.dial(t, web)
	answers(t, two)
	done := n.handOver(t.Context(), t, &flows{})
	late := n.dial(t, web) // was still arriving
	answers(t, late)
	_ = one.Close()
	kit.Until(t, "two are left", func() bool { return n.Connections() == 2 })
	_, _ = two.Close(), late.Close()
	<-done // does not wait for the late connection
	kit.Until(t, "none is left", func() bool { return n.Connections() == 0 })
}

// TestTracked checks that flows directly to a present endpoint continue.
func TestTracked(t *testing.T) {
	n := newNode(t, Options{}, 4096)
	a, b := endpoint(1), endpoint(2)
	web, dns := port("web", service.TCP, a), port("dns", service.UDP, a, b)
	look := func(step string, want ...netip.AddrPort) *service.Port {
		t.Helper()
		p := n.Tracked().Port(service.IPv4, dns.Name)
		var got []netip.AddrPort
		for _, e := range p.Cluster {
			if e.Addr.Addr() != Addrs[service.IPv4] {
				got = append(got, e.Addr)
			}
		}
		if !slices.Equal(got, want) || len(p.Cluster) != len(want)+1 {
			t.Errorf("%s: %v, want %v and the listener", step, p.Cluster, want)
		}
		return p
	}
	round := func(ports ...*service.Port) {
		t.Helper()
		if err := n.apply(t, ports...); err != nil {
			t.Fatal(err)
		}
	}
	round(web, dns)
	first := look("at first", a, b)
	round(port("web", service.TCP, b), dns)
	if look("another changes", a, b) != first {
		t.Error("it is not the same port any more")
	}
	round(web, port("dns", service.UDP, b))
	look("one endpoint left", b)
	round(web)
	if n.Tracked().Port(service.IPv4, dns.Name) != nil {
		t.Error("what is gone is tracked")
	}
	round()
	if left := n.Tracked().Len(service.IPv4); left != 0 {
		t.Errorf("%d ports are left", left)
	}
}
