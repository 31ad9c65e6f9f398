// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/conntrack"
	"kubeproxy/test/kit"
)

// caller is a UDP client that keeps its port.
type caller struct{ *net.UDPConn }

func (n *node) caller(t *testing.T, p *service.Port) caller {
	t.Helper()
	return callerOf(t, n.at(t, p))
}

// callerOf returns a client of the listener at an address.
func callerOf(t *testing.T, at netip.AddrPort) caller {
	t.Helper()
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(at))
	kit.Must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return caller{c}
}

// ask returns which server replied, "" if there is no reply in time.
func (c caller) ask(t *testing.T, text string, patience time.Duration) string {
	t.Helper()
	if _, err := c.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 1<<16)
	_ = c.SetReadDeadline(time.Now().Add(patience))
	n, err := c.Read(b)
	if err != nil {
		return ""
	}
	who, said, _ := strings.Cut(string(b[:n]), " ")
	kit.Check(t, said == text, "%d bytes came back, want %d", len(said), len(text))
	return who
}

const long = 15 * time.Second

func (n *node) sessions(p *service.Port) int {
	l := n.listeners[key{p.Name, service.PolicyCluster}].(*udpListener)
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.sessions)
}

// TestUDPClientsKeepTheirEndpoint checks that a client keeps its endpoint while that
// serves it.
func TestUDPClientsKeepTheirEndpoint(t *testing.T) {
	one, two := newEcho(t), newEcho(t)
	n := newNode(t, Options{UDPIdle: time.Minute}, 4096)
	both := port("dns", service.UDP, one.at, two.at)
	kit.Must(t, n.apply(t, both))
	a, b := n.caller(t, both), n.caller(t, both)
	atA, atB := a.ask(t, "x", long), b.ask(t, strings.Repeat("y", 60_000), long)
	kit.Check(t, atA != atB && a.ask(t, "again", long) == atA && b.ask(t, "again", long) == atB,
		"%q and %q answered", atA, atB)
	draining := port("dns", service.UDP, two.at)
	draining.Draining = []service.Endpoint{{Addr: one.at}}
	kit.Must(t, n.apply(t, draining))
	kit.Check(t, a.ask(t, "still", long) == atA && b.ask(t, "still", long) == atB,
		"a client moved though its endpoint lingers")
	kit.Must(t, n.apply(t, port("dns", service.UDP, two.at)))
	for _, c := range []caller{a, b} {
		got := c.ask(t, "after", long)
		kit.Check(t, got == two.at.String(), "%q answered, want the one that is left", got)
	}
	kit.Must(t, n.apply(t))
	kit.Until(t, "all files are given back", func() bool {
		n.limits.mu.Lock()
		defer n.limits.mu.Unlock()
		return n.limits.used == 0
	})
}

// TestUDPClientsAreForgotten checks that a session ends after a long silence.
func TestUDPClientsAreForgotten(t *testing.T) {
	e := newEcho(t)
	n := newNode(t, Options{UDPIdle: 50 * time.Millisecond}, 4096)
	dns := port("dns", service.UDP, e.at)
	kit.Must(t, n.apply(t, dns))
	c := n.caller(t, dns)
	for range 3 {
		// The session may end before the reply arrives.
		kit.Until(t, "an answer", func() bool { return c.ask(t, "x", time.Second) == e.at.String() })
		kit.Until(t, "the client is forgotten", func() bool { return n.sessions(dns) == 0 })
	}
}

// TestUDPLateAnswer checks that a late reply reaches a client whose session has been
// detached, and that has another endpoint by then.
func TestUDPLateAnswer(t *testing.T) {
	slow, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	kit.Must(t, err)
	t.Cleanup(func() { _ = slow.Close() })
	n := newNode(t, Options{UDPIdle: time.Millisecond}, 4096)
	dns := port("dns", service.UDP, slow.LocalAddr().(*net.UDPAddr).AddrPort())
	kit.Must(t, n.apply(t, dns))
	c := n.caller(t, dns)
	b := make([]byte, 1<<16)
	var from [2]netip.AddrPort
	for i := range from {
		if _, err := c.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, from[i], err = slow.ReadFromUDPAddrPort(b); err != nil {
			t.Fatal(err)
		}
		kit.Until(t, "the client is forgotten", func() bool { return n.sessions(dns) == 0 })
	}
	for _, to := range from {
		_ = c.SetReadDeadline(time.Now().Add(long))
		_, err := slow.WriteToUDPAddrPort([]byte(to.String()), to)
		kit.Must(t, err)
		if got, err := c.Read(b); err != nil || string(b[:got]) != to.String() {
			t.Errorf("%q, %v, want the answer to %s", b[:got], err, to)
		}
	}
	if from[0] == from[1] {
		t.Errorf("the client asked twice from %s, want another socket once it was forgotten", from[0])
	}
}

// TestUDPNextEndpoint checks that the next endpoint is tried if one refuses.
func TestUDPNextEndpoint(t *testing.T) {
	e := newEcho(t)
	n := newNode(t, Options{UDPIdle: time.Minute}, 4096)
	dns := port("dns", service.UDP, dead(1), e.at)
	dns.Affinity = time.Hour
	kit.Must(t, n.apply(t, dns))
	for range 4 {
		c := n.caller(t, dns)
		kit.Until(t, "an answer", func() bool { return c.ask(t, "x", 20*time.Millisecond) == e.at.String() })
	}
}

// broken opens UDP sockets, of which writes to the first fail.
type broken struct {
	*node
	dialled bool
}

func (b *broken) DialUDP(to netip.AddrPort, hops int) (*net.UDPConn, error) {
	c, err := b.node.DialUDP(to, hops)
	if err == nil && !b.dialled {
		b.dialled = true
		_ = c.Close()
	}
	return c, err
}

// TestUDPGoesOnAtOnce checks that no datagram is lost if sending it shows that the
// endpoint is gone.
func TestUDPGoesOnAtOnce(t *testing.T) {
	one, two := newEcho(t), newEcho(t)
	n := newNode(t, Options{UDPIdle: time.Minute}, 4096)
	n.relay.network = &broken{node: n}
	dns := port("dns", service.UDP, one.at, two.at)
	kit.Must(t, n.apply(t, dns))
	kit.Check(t, n.caller(t, dns).ask(t, "x", long) != "", "the first datagram is lost")
}

// unable opens no UDP sockets until its errors are used up.
type unable struct {
	*node
	errs chan error
}

func (u *unable) DialUDP(to netip.AddrPort, hops int) (*net.UDPConn, error) {
	select {
	case err := <-u.errs:
		return nil, err
	default:
		return u.node.DialUDP(to, hops)
	}
}

// TestUDPWithoutSocket checks that a datagram without a socket is reported as what it is, and
// that it takes nothing from the client for good.
func TestUDPWithoutSocket(t *testing.T) {
	e := newEcho(t)
	n := newNode(t, Options{UDPIdle: time.Minute}, 4096)
	broken := &unable{n, make(chan error, 2)}
	n.relay.network = broken
	unreached := make(chan error, 2)
	n.ObserveAttempts(func(_ service.PortName, at netip.AddrPort, err error) {
		if !at.IsValid() {
			unreached <- err
		}
	})
	dns := port("dns", service.UDP, e.at)
	kit.Must(t, n.apply(t, dns))
	c, open := n.caller(t, dns), n.Limits().Use().Open
	broken.errs <- syscall.EMFILE
	_, _ = c.Write([]byte("x"))
	kit.Until(t, "the error of the system is counted", func() bool { return n.Limits().Use().Refused[NoSystem] == 1 })
	broken.errs <- syscall.ENETUNREACH
	_, _ = c.Write([]byte("x"))
	if err := <-unreached; err != syscall.ENETUNREACH {
		t.Errorf("reported %v", err)
	}
	use := n.Limits().Use()
	kit.Check(t, use.Open == open && use.Refused[NoSystem] == 1, "the relay says %+v, want %d open", use, open)
	got := c.ask(t, "x", long)
	kit.Check(t, got == e.at.String(), "%q answers", got)
}

// TestSilenceIsReported has a client whose endpoint does not answer, and one whose endpoint does.
func TestSilenceIsReported(t *testing.T) {
	e := newEcho(t)
	mute, err := net.ListenUDP("udp", nil)
	kit.Must(t, err)
	defer mute.Close()
	n := newNode(t, Options{UDPIdle: time.Minute}, 4096)
	reports := make(chan netip.AddrPort, 10)
	n.ObserveAttempts(func(_ service.PortName, at netip.AddrPort, err error) {
		kit.Check(t, errors.Is(err, os.ErrDeadlineExceeded), "reported %v", err)
		reports <- at
	})
	silent := netip.AddrPortFrom(e.at.Addr(), uint16(mute.LocalAddr().(*net.UDPAddr).Port))
	dns, log := port("dns", service.UDP, e.at), port("log", service.UDP, silent)
	log.Frontends[0].Port = 514
	kit.Must(t, n.apply(t, dns, log))
	got := n.caller(t, dns).ask(t, "x", long)
	kit.Check(t, got == e.at.String(), "%q answers", got)
	_, err = n.caller(t, log).Write([]byte("x"))
	kit.Must(t, err)
	if at := <-reports; at != silent {
		t.Errorf("reported %s, want %s", at, silent)
	}
}

// TestTooManyUDPClients sends from many ports of one host, and checks that other hosts
// are served.
func TestTooManyUDPClients(t *testing.T) {
	e := newEcho(t)
	n := newNode(t, Options{UDPIdle: time.Minute}, 64) // 28 for the relay
	reports := make(chan string, 100)
	n.Observe(func(_, detail string) { reports <- detail })
	<-reports
	dns, web := port("dns", service.UDP, e.at), port("web", service.TCP, e.at)
	web.Frontends[0].Port = 81
	kit.Must(t, n.apply(t, dns, web))
	for range 6 { // 3 x 6 <= 28 - 8
		kit.Need(t, n.caller(t, dns).ask(t, "x", long) != "", "no answer")
	}
	got := n.caller(t, dns).ask(t, "x", 50*time.Millisecond)
	kit.Check(t, got == "", "%s answered one too many", got)
	s := <-reports
	kit.Check(t, strings.Contains(s, "one client may have no more than a third"), "said %q", s)
	answers(t, n.dialFrom(t, web, 2))
}

// TestRangeOfPorts checks that listeners use ports of the range, and that the error
// names a Port for which there is none.
func TestRangeOfPorts(t *testing.T) {
	const first = 21000 // outside of the range for automatic selection
	n := newNode(t, Options{Ports: Range{first, first}}, 4096)
	a, b, c := port("a", service.TCP, endpoint(1)), port("b", service.TCP, endpoint(1)), port("c", service.UDP, endpoint(1))
	for i, p := range []*service.Port{a, b, c} {
		p.Frontends = []service.Frontend{{Addr: netip.AddrFrom4([4]byte{10, 96, 0, byte(i)}), Port: 80}}
	}
	want := "every port of the range"
	for range 2 { // the next sync tries again
		if err := n.apply(t, a, b, c); err == nil || !strings.Contains(err.Error(), "shop/b (tcp, IPv4): listen: "+want) || strings.Count(err.Error(), want) != 1 {
			t.Fatalf("Apply = %v", err)
		}
		if n.at(t, a).Port() != first || n.at(t, c).Port() != first {
			t.Errorf("listeners at %s and %s, want port %d", n.at(t, a), n.at(t, c), first)
		}
		redirected := n.Redirected().Port(service.IPv4, b.Name)
		kit.Check(t, !redirected.HasEndpoints(), "clients of b are led somewhere")
	}
	if err := n.apply(t, b, c); err == nil { // a closes only after b has opened
		t.Error("two listeners on one port")
	}
	kit.Until(t, "once there is room, b has it", func() bool {
		return n.apply(t, b, c) == nil && n.at(t, b).Port() == first
	})
}

// TestBackAfterFailure returns to the old snapshot after the new one has failed.
func TestBackAfterFailure(t *testing.T) {
	one, two := newEcho(t), newEcho(t)
	n := newNode(t, Options{}, 4096)
	old := port("web", service.TCP, one.at)
	kit.Must(t, n.apply(t, old))
	n.tables.err = net.ErrClosed
	other := port("other", service.TCP, two.at)
	err := n.apply(t, port("web", service.TCP, two.at), other)
	kit.Need(t, err != nil, "no error")
	n.tables.err = nil
	kit.Must(t, n.apply(t, old))
	for range 3 {
		got := answers(t, n.dial(t, old))
		kit.Check(t, got == one.at.String(), "%s answers, want the endpoint of before", got)
	}
	kit.Check(t, len(n.listeners) == 1 && len(n.targets) == 1,
		"%d listeners and %d targets are left, want one", len(n.listeners), len(n.targets))
}

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
	_, err := n.HandOver(ctx)
	kit.Must(t, err)
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
	kit.Must(t, n.apply(t, dns, slow))
	asked, waits := n.caller(t, dns), n.caller(t, slow)
	kit.Need(t, asked.ask(t, "x", long) != "", "no answer")
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
	kit.Check(t, k.has(waiting), "a client moved whose answer is to come")
	stop()
	<-done
	kit.Check(t, !k.has(waiting), "in the end a client stays where nobody listens any more")
	kit.Check(t, k.has(other) && k.has(direct), "flows of others are gone")
}

// silentServer returns the address of a UDP server that does not reply.
func silentServer(t *testing.T) netip.AddrPort {
	t.Helper()
	n := &node{}
	u, err := n.ListenUDP(0)
	kit.Must(t, err)
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
	kit.Must(t, n.apply(t, dns))
	l := n.listeners[key{dns.Name, service.PolicyCluster}].(*udpListener)
	var clients []netip.AddrPort
	ask := func() {
		c := n.caller(t, dns)
		clients = append(clients, netip.MustParseAddrPort(c.LocalAddr().String()))
		_, err := c.Write([]byte("x"))
		kit.Must(t, err)
	}
	wantBusy := func(when string) {
		t.Helper()
		for _, c := range clients {
			result := make(chan bool, 1)
			go func() { result <- l.busy(c) }()
			select {
			case busy := <-result:
				kit.Check(t, busy, "%s: %s may move", when, c)
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
	kit.Must(t, err)
	defer u.Close()
	l := &udpListener{relay: n.relay, socket: u, target: newTarget(service.PortName{})}
	c, err := net.DialUDP("udp", nil, u.LocalAddr().(*net.UDPAddr))
	kit.Must(t, err)
	defer c.Close()
	client := netip.MustParseAddrPort(c.LocalAddr().String())
	kit.Check(t, !l.busy(client), "a client who said nothing has to stay")
	_, err = c.Write([]byte("x"))
	kit.Must(t, err)
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
		kit.Check(t, slices.Equal(got, want) && len(p.Cluster) == len(want)+1,
			"%s: %v, want %v and the listener", step, p.Cluster, want)
		return p
	}
	round := func(ports ...*service.Port) {
		t.Helper()
		kit.Must(t, n.apply(t, ports...))
	}
	round(web, dns)
	first := look("at first", a, b)
	round(port("web", service.TCP, b), dns)
	kit.Check(t, look("another changes", a, b) == first, "it is not the same port any more")
	round(web, port("dns", service.UDP, b))
	look("one endpoint left", b)
	round(web)
	kit.Check(t, n.Tracked().Port(service.IPv4, dns.Name) == nil, "what is gone is tracked")
	round()
	left := n.Tracked().Len(service.IPv4)
	kit.Check(t, left == 0, "%d ports are left", left)
}

// TestLateFailures has attempts end in another order than they began in.
func TestLateFailures(t *testing.T) {
	one, other, none := dead(1), dead(2), netip.AddrPort{}
	var got []string
	r := &relay{attempted: func(_ service.PortName, e netip.AddrPort, err error) {
		got = append(got, fmt.Sprint(e, err, errors.As(err, new(lateError))))
	}}
	x := newTarget(service.PortName{})
	x.update(port("web", service.TCP, one, other))
	ended := func(e netip.AddrPort, began int64, err error, reported bool, late bool) {
		t.Helper()
		var want []string
		if reported {
			want = []string{fmt.Sprint(e, err, late)}
		}
		got = nil
		r.record(x, e, time.Unix(began, 0), err)
		kit.Same(t, "reported (-want +got)", want, got)
	}
	ended(one, 20, nil, false, false)
	ended(one, 10, syscall.ETIMEDOUT, true, true)
	ended(none, 10, syscall.ETIMEDOUT, true, true)
	ended(other, 10, syscall.ETIMEDOUT, true, false)
	ended(one, 15, nil, true, false)
	ended(one, 19, syscall.ETIMEDOUT, true, true)
	ended(one, 21, syscall.ETIMEDOUT, true, false)
	ended(none, 21, syscall.ETIMEDOUT, true, false)
	ended(other, 30, nil, true, false)
	ended(one, 25, syscall.ETIMEDOUT, true, false)
	ended(none, 25, syscall.ETIMEDOUT, true, true)
	x.update(port("web", service.TCP, one))
	ended(other, 10, syscall.ETIMEDOUT, true, false)
}

// TestAttemptsAreReported checks for a report of each attempt that fails, of the client that
// no endpoint served, and of the first success after that.
func TestAttemptsAreReported(t *testing.T) {
	e := newEcho(t)
	for _, proto := range []service.Protocol{service.TCP, service.UDP} {
		n := newNode(t, Options{UDPIdle: time.Minute}, 4096)
		type attempt struct {
			at  netip.AddrPort
			err error
		}
		reports := make(chan attempt, 20)
		down, up := port("down", proto, dead(1)), port("up", service.TCP, e.at)
		n.ObserveAttempts(func(name service.PortName, at netip.AddrPort, err error) {
			kit.Check(t, name == down.Name, "reported %s", name)
			reports <- attempt{at, err}
		})
		kit.Must(t, n.apply(t, down, up))
		answers(t, n.dial(t, up)) // a success without a failure is of no interest
		if proto == service.TCP {
			_ = n.dialRejected(t, down)
		} else if _, err := n.caller(t, down).Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		for _, want := range []netip.AddrPort{dead(1), {}} {
			if got := <-reports; got.at != want || !errors.Is(got.err, syscall.ECONNREFUSED) {
				t.Errorf("%s: reported %v, want a refusal of %v", proto, got, want)
			}
		}
		again := port("down", proto, e.at)
		kit.Must(t, n.apply(t, again, up))
		if proto == service.TCP {
			answers(t, n.dial(t, again))
		} else if got := n.caller(t, again).ask(t, "x", long); got != e.at.String() {
			t.Errorf("%q answers", got)
		}
		got := <-reports
		kit.Check(t, got.at == e.at && got.err == nil, "%s: reported %v, want a success", proto, got)
	}
}

// TestDatagramHops checks that datagrams of both families come with their hop limit.
func TestDatagramHops(t *testing.T) {
	for _, f := range service.Families {
		c, err := net.ListenUDP("udp", &net.UDPAddr{IP: service.Localhost(f).AsSlice()})
		kit.Must(t, err)
		defer c.Close()
		receiveHops(c)
		if _, err := c.WriteTo([]byte("x"), c.LocalAddr()); err != nil {
			t.Fatal(err)
		}
		_ = c.SetReadDeadline(time.Now().Add(long))
		var data [1]byte
		var control [128]byte
		_, n, _, _, err := c.ReadMsgUDP(data[:], control[:])
		hops := datagramHops(control[:n])
		kit.Check(t, err == nil && hops >= 1 && hops <= 255, "%s: a hop limit of %d, %v", f, hops, err)
	}
}
