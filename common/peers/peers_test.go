// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

const port = 4790

// network is where all nodes are.
type network struct {
	mu      sync.Mutex
	conns   map[netip.Addr]*conn
	lost    func(from, to netip.Addr, d datagram) bool // may be nil
	refuses map[netip.Addr]bool                        // hosts that live without a process
	stalled netip.Addr                                 // whose process is slow
	sent    []parcel
	// What the API server has, and how it is asked.
	nodes map[string][]netip.Addr
	asked [][]string
	err   error
}

type parcel struct {
	from, to netip.Addr
	at       time.Time
	payload  []byte
	refused  bool
}

// conn is the way of one node in one family.
type conn struct {
	network *network
	addr    netip.Addr
	in      chan parcel
	closed  chan struct{}
	port    atomic.Int32
	close   func()
}

func (w *network) open(addr netip.Addr) *conn {
	c := &conn{network: w, addr: addr, in: make(chan parcel, 100000), closed: make(chan struct{})}
	c.port.Store(port)
	c.close = sync.OnceFunc(func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.conns, addr)
		close(c.closed)
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conns[addr] = c
	return c
}

func newNetwork() *network {
	return &network{conns: map[netip.Addr]*conn{}, nodes: map[string][]netip.Addr{}, refuses: map[netip.Addr]bool{}}
}

// Send implements Conn.
func (c *conn) Send(p []byte, to netip.AddrPort, _ Through) error {
	var stalled bool
	c.network.set(func() { stalled = c.addr == c.network.stalled })
	if stalled {
		time.Sleep(9 * time.Second)
	}
	c.network.write(c.addr, to.Addr(), p)
	return nil
}

func (w *network) write(from, to netip.Addr, payload []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	x := parcel{from, to, time.Now(), slices.Clone(payload), false}
	w.sent = append(w.sent, x)
	d, _ := decode(payload)
	switch c := w.conns[to]; {
	case w.lost != nil && w.lost(from, to, d):
	case c != nil:
		c.in <- x
	case w.refuses[to]:
		x.from, x.refused = to, true
		w.conns[from].in <- x
	}
}

// Receive implements Conn.
func (c *conn) Receive(p []byte) (int, netip.AddrPort, error) {
	select {
	case <-c.closed:
		return 0, netip.AddrPort{}, errors.New("closed")
	case x := <-c.in:
		var err error
		if x.refused {
			err = ErrRefused
		}
		return copy(p, x.payload), netip.AddrPortFrom(x.from, uint16(c.port.Load())), err
	}
}

// Close implements Conn.
func (c *conn) Close() error {
	c.close()
	return nil
}

func (w *network) find(_ context.Context, names []string, found func(string, []netip.Addr)) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked = append(w.asked, names)
	for name, all := range w.nodes {
		found(name, all)
	}
	return w.err
}

// peer is a running Set.
type peer struct {
	*Set
	stop    func()
	changes atomic.Int64
}

// start runs the Set of a node, which the API server has.
func (w *network) start(t *testing.T, name string, addrs ...string) *peer {
	t.Helper()
	w.mu.Lock()
	w.nodes[name] = nil
	for _, a := range addrs {
		w.nodes[name] = append(w.nodes[name], netip.MustParseAddr(a))
	}
	w.mu.Unlock()
	p := &peer{}
	p.Set = New(Options{
		Node: name, Key: 7, Port: port, Find: w.find, Changed: func() { p.changes.Add(1) },
		Open: func(own netip.Addr) (Conn, error) { return w.open(own), nil },
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.Run(ctx)
	}()
	p.stop = func() {
		cancel()
		<-ended
	}
	t.Cleanup(p.stop)
	return p
}

// answers reports whether node answers.
func (p *peer) answers(node string) bool {
	_, is := p.Answering(false)[node]
	return is
}

// look calls do while nothing changes.
func (p *peer) look(do func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	do()
}

// nonce is that of the latest probe of node b.
func (p *peer) nonce() (n nonce) {
	p.look(func() { n = p.Set.nodes["b"].ways[0].sent[0] })
	return n
}

// names are the nodes that it knows of.
func (p *peer) names() (all []string) {
	p.look(func() { all = slices.Sorted(maps.Keys(p.Set.nodes)) })
	return all
}

// counts returns the requests and datagrams that there were.
func (w *network) counts() (asked, sent int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.asked), len(w.sent)
}

// set changes the network.
func (w *network) set(do func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	do()
}

// until waits until node answers or does not, for some seconds, and returns for how long.
func (p *peer) until(t *testing.T, node string, answers bool, atMost time.Duration) time.Duration {
	t.Helper()
	for start := time.Now(); ; time.Sleep(tick / 2) {
		synctest.Wait()
		if p.answers(node) == answers {
			return time.Since(start)
		}
		if time.Since(start) > atMost {
			t.Fatalf("%s answers: %v, after %v; missing: %v", node, !answers, atMost, p.Missing(false))
		}
	}
}

// run runs a test with two nodes, of which a wants b, and b answers.
func run(t *testing.T, test func(t *testing.T, w *network, a, b *peer)) {
	synctest.Test(t, func(t *testing.T) {
		w := newNetwork()
		b := w.start(t, "b", "10.0.0.2")
		a := w.start(t, "a", "10.0.0.1")
		b.Want([]string{"b"})
		a.Want([]string{"b"})
		a.until(t, "b", true, 15*time.Second)
		test(t, w, a, b)
	})
}

// A node is a peer after two answers. Each side asks the API server once: the one that wants
// for the other, and the other when it hears of it.
func TestPeers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newNetwork()
		b := w.start(t, "b", "10.0.0.2", "fd00::2")
		a := w.start(t, "a", "10.0.0.1", "fd00::1")
		time.Sleep(10 * 365 * 24 * time.Hour)
		if asked, sent := w.counts(); asked+sent > 0 {
			t.Errorf("%d requests and %d datagrams although nobody is wanted", asked, sent)
		}
		b.Want([]string{"b"}) // has endpoints
		a.Want([]string{"b", "c"})
		if a.Settled() {
			t.Error("settled before an answer")
		}
		t.Logf("a peer after %v", a.until(t, "b", true, 15*time.Second))
		time.Sleep(2 * interval)
		if got, want := a.Answering(true), "map[a:fd00::1 b:fd00::2]"; fmt.Sprint(got) != want {
			t.Errorf("%v answer over IPv6, want %s", got, want)
		}
		if got, want := b.Known(false), "map[a:10.0.0.1 b:10.0.0.2]"; fmt.Sprint(got) != want {
			t.Errorf("b knows %v, want %s", got, want)
		}
		if got, want := a.Missing(false), "map[c:there is no Node of this name]"; fmt.Sprint(got) != want {
			t.Errorf("missing: %v, want %s", got, want)
		}
		if asked, _ := w.counts(); asked > 4 {
			t.Errorf("%d requests, want 4 at most", asked)
		}
		if !a.Settled() || a.changes.Load() == 0 || b.changes.Load() == 0 {
			t.Errorf("settled: %v, %d and %d changes", a.Settled(), a.changes.Load(), b.changes.Load())
		}
		a.Want(nil)
		b.Want(nil)
		if got := a.Answering(false); len(got) > 0 {
			t.Errorf("%v answer, want none", got)
		}
		time.Sleep(memory + time.Minute)
		if len(b.names())+len(a.names()) > 0 {
			t.Errorf("a knows %v, b knows %v, want nobody", a.names(), b.names())
		}
	})
}

// stays checks that a node answers for a while.
func (p *peer) stays(t *testing.T, name string) {
	t.Helper()
	for i := range 100 {
		if time.Sleep(tick); !p.answers(name) {
			t.Fatalf("gone after %v", time.Duration(i)*tick)
		}
	}
}

// A node that is turned off says so, and its tunnel is gone. Who has not seen a probe cannot say so.
func TestFarewell(t *testing.T) {
	run(t, func(t *testing.T, w *network, a, b *peer) {
		forged := datagram{version, farewell, 7, nonce{1}, ""}
		w.write(netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.1"), forged.encode())
		a.stays(t, "b")
		w.set(func() { w.lost = func(_, _ netip.Addr, d datagram) bool { return d.kind == answer } })
		b.Want(nil)
		if d := a.until(t, "b", false, 4*time.Second); d > tick {
			t.Errorf("gone after %v", d)
		}
		a.Want([]string{"b"})
		time.Sleep(2 * patience)
		if a.answers("b") {
			t.Error("back")
		}
	})
}

// Two processes of a node take turns. The other one has the port until it begins anew.
func TestReopen(t *testing.T) {
	run(t, func(t *testing.T, w *network, a, b *peer) {
		standby := atomic.Bool{}
		standby.Store(true)
		b.look(func() {
			b.o.Open = func(own netip.Addr) (Conn, error) {
				if standby.Load() {
					return nil, errors.New("another process has it")
				}
				return w.open(own), nil
			}
		})
		b.Reopen()
		a.until(t, "b", false, 4*time.Second)
		standby.Store(false)
		b.Reopen()
		t.Logf("back after %v", a.until(t, "b", true, 4*time.Second))
	})
}

// What befalls a peer, and when it counts as gone and is back.
func TestFaults(t *testing.T) {
	dead := func(time.Duration) bool { return true }
	for _, tc := range []struct {
		name        string
		lost        func(since time.Duration) bool
		stops       bool // the process
		gone        bool
		early, late time.Duration // when
	}{
		{"dies", dead, false, true, 2 * time.Second, 4 * time.Second},
		{"loses two datagrams", func(d time.Duration) bool { return d < 1900*time.Millisecond }, false, false, 0, 0},
		{"loses every second datagram", func(d time.Duration) bool { return d/time.Second%2 == 0 }, false, false, 0, 0},
		{"its process ends", nil, true, true, 55 * time.Second, 61 * time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			run(t, func(t *testing.T, w *network, a, b *peer) {
				start := time.Now()
				w.mu.Lock()
				w.lost = func(netip.Addr, netip.Addr, datagram) bool { return tc.lost != nil && tc.lost(time.Since(start)) }
				w.refuses[netip.MustParseAddr("10.0.0.2")] = true
				w.mu.Unlock()
				if tc.stops {
					b.stop()
				}
				if !tc.gone {
					a.stays(t, "b")
					return
				}
				d := a.until(t, "b", false, tc.late)
				if t.Logf("gone after %v: %v", d, a.Missing(false)); d < tc.early {
					t.Errorf("after %v, want %v at least", d, tc.early)
				}
				w.set(func() {
					w.lost = func(_, _ netip.Addr, d datagram) bool { return time.Since(start)/time.Second%2 == 0 }
				})
				if tc.stops {
					w.start(t, "b", "10.0.0.2").Set.Want([]string{"b"})
				}
				time.Sleep(20 * time.Second)
				if a.answers("b") {
					t.Error("back, although every second datagram is lost")
				}
				w.set(func() { w.lost = nil })
				t.Logf("back after %v", a.until(t, "b", true, 4*time.Second))
			})
		})
	}
}

// A process that did not run for a while does not blame its peers.
func TestPause(t *testing.T) {
	run(t, func(t *testing.T, w *network, a, _ *peer) {
		w.set(func() { w.stalled = netip.MustParseAddr("10.0.0.1") })
		for range 600 {
			time.Sleep(tick)
			if !a.answers("b") {
				t.Fatal("gone")
			}
		}
		w.set(func() { w.stalled = netip.Addr{} })
	})
}

// forged sends a datagram with the source of a node.
func (w *network) forged(from, to string, d datagram) {
	w.write(netip.MustParseAddr(from), netip.MustParseAddr(to), d.encode())
}

func TestAttackers(t *testing.T) {
	for _, tc := range []struct {
		name    string
		attacks func(w *network, a *peer)
	}{
		{"has another version with no nonce", func(w *network, _ *peer) { w.forged("10.0.0.2", "10.0.0.1", datagram{9, answer, 7, nonce{}, ""}) }},
		{"has another version at another address", func(w *network, a *peer) {
			w.forged("10.0.0.9", "10.0.0.1", datagram{9, answer, 7, a.nonce(), ""})
		}},
		{"has another version with another key", func(w *network, a *peer) {
			w.forged("10.0.0.2", "10.0.0.1", datagram{9, answer, 8, a.nonce(), ""})
		}},
		{"has another version at another port", func(w *network, a *peer) {
			w.set(func() { w.conns[netip.MustParseAddr("10.0.0.1")].port.Add(1) })
			w.forged("10.0.0.2", "10.0.0.1", datagram{9, answer, 7, a.nonce(), ""})
			synctest.Wait()
			w.set(func() { w.conns[netip.MustParseAddr("10.0.0.1")].port.Add(-1) })
		}},
		{"has another version with another nonce", func(w *network, _ *peer) {
			w.forged("10.0.0.2", "10.0.0.1", datagram{9, answer, 7, newNonce(), ""})
		}},
		{"garbage", func(w *network, _ *peer) {
			for i := range 2 * maxSize {
				w.write(netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.1"), []byte(strings.Repeat("kprx", i))[:i])
			}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			run(t, func(t *testing.T, w *network, a, _ *peer) {
				tc.attacks(w, a)
				synctest.Wait()
				if !a.answers("b") {
					t.Errorf("gone: %v", a.Missing(false))
				}
				if n := a.names(); len(n) != 2 {
					t.Errorf("nodes %v, want 2", n)
				}
			})
		})
	}
}

// Before there were two probes, no nonce is no answer.
func TestNoNonce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newNetwork()
		w.set(func() { w.nodes["b"] = []netip.Addr{netip.MustParseAddr("10.0.0.2")} })
		a := w.start(t, "a", "10.0.0.1")
		a.Want([]string{"b"})
		for range 60 {
			time.Sleep(tick / 4)
			w.forged("10.0.0.2", "10.0.0.1", datagram{9, answer, 7, nonce{}, ""})
		}
		if got, want := fmt.Sprint(a.Missing(false)), "map[b:10.0.0.2 does not answer through the tunnel]"; got != want {
			t.Errorf("missing: %s, want %s", got, want)
		}
	})
}

// Answers that repeat one, or that nobody asked for, make no peer.
func TestForgedAnswers(t *testing.T) {
	run(t, func(t *testing.T, w *network, a, b *peer) {
		b.stop()
		a.until(t, "b", false, 5*time.Second)
		for range 100 {
			w.forged("10.0.0.2", "10.0.0.1", datagram{1, answer, 7, newNonce(), ""})
			time.Sleep(tick)
		}
		seen := a.nonce()
		for range 20 {
			w.forged("10.0.0.2", "10.0.0.1", datagram{1, answer, 7, seen, ""})
			time.Sleep(tick)
		}
		if a.answers("b") {
			t.Error("a peer")
		}
	})
}

// Nobody gets more than it sends, or an answer that is meant for others.
func TestAnswers(t *testing.T) {
	run(t, func(t *testing.T, w *network, a, b *peer) {
		time.Sleep(tick)
		w.mu.Lock()
		w.lost = func(_, to netip.Addr, _ datagram) bool { return to == netip.MustParseAddr("10.0.0.1") }
		w.sent = nil
		w.mu.Unlock()
		for range 3000 { // in three seconds
			w.forged("10.0.0.1", "10.0.0.2", datagram{1, probe, 7, newNonce(), "a"})
			w.forged("10.0.0.9", "10.0.0.2", datagram{1, probe, 7, newNonce(), "a"})
			w.forged("10.0.0.9", "10.0.0.2", datagram{1, probe, 7, newNonce(), "no_name"})
			w.forged("10.0.0.1", "10.0.0.2", datagram{1, probe, 8, newNonce(), "a"})
			time.Sleep(time.Millisecond)
		}
		answers := map[string]int{}
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, x := range w.sent {
			if d, _ := decode(x.payload); x.from == netip.MustParseAddr("10.0.0.2") && d.kind == answer {
				answers[x.to.String()]++
				if len(x.payload) != headerSize {
					t.Errorf("an answer of %d bytes, want %d", len(x.payload), headerSize)
				}
			}
		}
		if n := answers["10.0.0.1"]; len(answers) != 1 || n < 10 || n > 16 {
			t.Errorf("answers: %v, want 10 to 16 to 10.0.0.1", answers)
		}
		if got, want := fmt.Sprint(b.names()), "[a b]"; got != want {
			t.Errorf("b knows %s, want %s", got, want)
		}
	})
}

// A flood is read in parts, so that it costs little of a processor.
func TestFlood(t *testing.T) {
	run(t, func(t *testing.T, w *network, a, _ *peer) {
		start := time.Now()
		for range 3 * maxReads {
			w.forged("10.0.0.9", "10.0.0.1", datagram{1, answer, 7, nonce{}, ""})
		}
		var in chan parcel
		w.set(func() { in = w.conns[netip.MustParseAddr("10.0.0.1")].in })
		for len(in) > 0 {
			time.Sleep(tick)
		}
		if d := time.Since(start); d < 2*time.Second || d > 4*time.Second {
			t.Errorf("read in %v, want 2 to 4 s", d)
		}
	})
}

func TestVersions(t *testing.T) {
	run(t, func(t *testing.T, w *network, a, b *peer) {
		b.stop()
		c := w.open(netip.MustParseAddr("10.0.0.2"))
		defer c.Close()
		for range 3 {
			d, _ := decode((<-c.in).payload)
			w.forged("10.0.0.2", "10.0.0.1", datagram{2, answer, 7, d.nonce, ""})
		}
		synctest.Wait()
		if got, want := fmt.Sprint(a.Missing(false)), "map[b:it answers as version 2, this is version 1]"; a.answers("b") || got != want {
			t.Errorf("missing: %s, want %s", got, want)
		}
	})
}

// The API server is asked rarely, also for nodes that never answer, or names that do not exist.
func TestRequests(t *testing.T) {
	for _, tc := range []struct {
		name    string
		happens func(w *network, a *peer, step int) // each second, for ten minutes
		most    int
	}{
		{"all is well", func(*network, *peer, int) {}, 1},
		{"a node without the layer", func(_ *network, a *peer, step int) { a.Want([]string{"b", "silent"}) }, 10},
		{"a node that does not exist", func(_ *network, a *peer, step int) { a.Want([]string{"b", "none"}) }, 10},
		{"new names all the time", func(w *network, _ *peer, step int) {
			w.forged("10.0.0.9", "10.0.0.1", datagram{1, probe, 7, newNonce(), fmt.Sprint("x", step)})
		}, 10},
		{"a forged source", func(w *network, _ *peer, step int) {
			w.forged("10.0.0.9", "10.0.0.1", datagram{1, probe, 7, newNonce(), "b"})
		}, 10},
		{"many nodes come, one each ten seconds", func(_ *network, a *peer, step int) {
			want := []string{"b"}
			for i := range step / 10 {
				want = append(want, fmt.Sprint("silent-", i))
			}
			a.Want(want)
		}, 63},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newNetwork()
				w.start(t, "b", "10.0.0.2").Set.Want([]string{"a"})
				w.set(func() { w.nodes["silent"] = []netip.Addr{netip.MustParseAddr("10.0.0.3")} })
				a := w.start(t, "a", "10.0.0.1")
				a.Want([]string{"b"})
				time.Sleep(5 * time.Second)
				before, _ := w.counts() // b's, too
				for step := range 600 {
					tc.happens(w, a, step)
					time.Sleep(time.Second)
					if step%100 == 0 {
						w.set(func() { w.sent = nil })
					}
				}
				asked, _ := w.counts()
				var strangers int
				a.look(func() { strangers = a.strangers })
				if t.Logf("%d requests, %d nodes, %d strangers", asked-before, len(a.names()), strangers); asked-before > tc.most || strangers > maxStrangers {
					t.Errorf("%d requests and %d strangers, want at most %d and %d", asked-before, strangers, tc.most, maxStrangers)
				}
				if !a.answers("b") {
					t.Errorf("missing: %v", a.Missing(false))
				}
			})
		})
	}
}

// A node that got another address is found there, and one that is gone is not known any more.
func TestMoves(t *testing.T) {
	run(t, func(t *testing.T, w *network, a, b *peer) {
		b.stop()
		b = w.start(t, "b", "10.0.0.3")
		b.Want([]string{"b"})
		a.until(t, "b", false, 5*time.Second)
		t.Logf("found after %v", a.until(t, "b", true, 30*time.Second))
		if got := a.Known(false)["b"]; got != netip.MustParseAddr("10.0.0.3") {
			t.Errorf("b is at %v", got)
		}
		b.stop()
		w.set(func() { delete(w.nodes, "b") })
		time.Sleep(time.Minute)
		if got, want := fmt.Sprint(a.Known(false), a.Missing(false)), "map[a:10.0.0.1] map[b:there is no Node of this name]"; got != want {
			t.Errorf("%s, want %s", got, want)
		}
	})
}

// A node that was silent for long, and answered again, is found soon when it moves after that.
func TestMovesLater(t *testing.T) {
	run(t, func(t *testing.T, w *network, a, b *peer) {
		b.stop()
		time.Sleep(11 * time.Minute)
		b = w.start(t, "b", "10.0.0.2")
		b.Want([]string{"b"})
		a.until(t, "b", true, 15*time.Second)
		b.stop()
		w.start(t, "b", "10.0.0.3").Set.Want([]string{"b"})
		a.until(t, "b", false, 5*time.Second)
		a.until(t, "b", true, 45*time.Second)
	})
}

// This node notices that it moved itself when nobody answers any more.
func TestMovesItself(t *testing.T) {
	run(t, func(t *testing.T, w *network, a, _ *peer) {
		old := netip.MustParseAddr("10.0.0.1")
		w.set(func() {
			w.nodes["a"] = []netip.Addr{netip.MustParseAddr("10.0.0.9")}
			w.lost = func(from, to netip.Addr, _ datagram) bool { return from == old || to == old }
		})
		a.until(t, "b", false, 5*time.Second)
		t.Logf("back after %v", a.until(t, "b", true, time.Minute))
		w.set(func() {
			if w.conns[old] != nil {
				t.Error("what was open at the old address is open")
			}
		})
	})
}

func TestDecode(t *testing.T) {
	for text, edit := range map[string]func(datagram) []byte{
		"a probe without a name": func(d datagram) []byte { d.name = ""; return d.encode() },
		"an answer with a name":  func(d datagram) []byte { d.kind = answer; return d.encode() },
		"no kind":                func(d datagram) []byte { d.kind = 0; return d.encode() },
		"what came back":         func(d datagram) []byte { d.kind, d.name = gone, ""; return d.encode() },
		"a long name":            func(d datagram) []byte { d.name = strings.Repeat("x", maxName+1); return d.encode() },
		"another protocol":       func(d datagram) []byte { return append([]byte("KPRX"), d.encode()[4:]...) },
	} {
		good := datagram{version, probe, 7, newNonce(), "a"}
		if d, is := decode(good.encode()); !is || d != good {
			t.Errorf("%+v became %+v", good, d)
		}
		if d, is := decode(edit(good)); is {
			t.Errorf("%s: %+v, want none", text, d)
		}
	}
}

// During an outage of the API server, known nodes stay, and others follow after it.
func TestOutage(t *testing.T) {
	run(t, func(t *testing.T, w *network, a, _ *peer) {
		w.start(t, "c", "10.0.0.3").Set.Want([]string{"c"})
		w.mu.Lock()
		w.err = errors.New("refused")
		all := w.nodes
		w.nodes = nil
		w.mu.Unlock()
		a.Want([]string{"b", "c"})
		time.Sleep(time.Minute)
		if got, want := fmt.Sprint(a.Answering(false), a.Missing(false)), "map[a:10.0.0.1 b:10.0.0.2] map[c:refused]"; got != want {
			t.Errorf("%s, want %s", got, want)
		}
		w.set(func() { w.nodes, w.err = all, nil })
		a.until(t, "c", true, 30*time.Second)
	})
}
