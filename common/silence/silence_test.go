// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package silence

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"kubeproxy/common/service"
	"kubeproxy/test/kit"
)

// world is a network of endpoints, and what a Box says about it.
type world struct {
	*Box
	t        *testing.T
	dialling int
	toldAt   time.Time
	mu       sync.Mutex
	rand     *rand.Rand
	dead     map[service.Address]bool
	blocked  map[service.Address]bool // the node, not clients
	takes    map[service.Address]time.Duration
	peers    map[service.Address][]service.Address
	node     map[service.Address]string
	loss     float64
	unlike   bool // dials to peers say nothing
	dials    []time.Time
	dialled  map[service.Address]int
	silent   map[service.Address]Record
	outs     map[service.Address][]time.Time
	end      context.CancelFunc
	ended    chan struct{}
}

var web = service.PortName{Namespace: "shop", Name: "web", Port: "http", Protocol: service.TCP}

func endpoint(i int) service.Address {
	return service.AddressOf(service.TCP, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 8080))
}

// newWorld starts a Box in front of n endpoints of one Service port.
func newWorld(t *testing.T, n int) *world {
	t.Helper()
	w := &world{
		t:    t,
		rand: rand.New(rand.NewPCG(1, 2)), dead: map[service.Address]bool{}, blocked: map[service.Address]bool{}, peers: map[service.Address][]service.Address{},
		node: map[service.Address]string{}, dialled: map[service.Address]int{}, outs: map[service.Address][]time.Time{}, ended: make(chan struct{}),
	}
	for i := range n {
		for j := range min(n, 20) {
			if i != j {
				w.peers[endpoint(i)] = append(w.peers[endpoint(i)], endpoint(j))
			}
		}
	}
	w.Box = New(Options{
		Dial: w.dial, Changed: w.took,
		Peers:    func(a service.Address, _ service.PortName) ([]service.Address, bool) { return w.peers[a], !w.unlike },
		SameNode: w.sameNode,
	})
	var ctx context.Context
	ctx, w.end = context.WithCancel(t.Context())
	go func() {
		defer close(w.ended)
		w.Run(ctx)
	}()
	return w
}

// rest lets d pass. The test may read afterwards, and what it did before is seen.
func (w *world) rest(d time.Duration) {
	w.seen(&w.mu)
	w.seen(&w.Box.mu)
	time.Sleep(d)
	synctest.Wait()
}

// seen makes what the test wrote visible to whoever takes the lock next.
func (*world) seen(l sync.Locker) {
	l.Lock()
	defer l.Unlock()
}

func (w *world) stop() {
	w.end()
	<-w.ended
	w.mu.Lock()
	defer w.mu.Unlock()
	kit.Check(w.t, w.dialling <= 0, "%d dials after the end", w.dialling)
}

// dial answers after a millisecond, or never.
func (w *world) dial(ctx context.Context, a service.Address) bool {
	w.mu.Lock()
	w.dials = append(w.dials, time.Now())
	w.dialled[a]++
	w.dialling++
	defer func() {
		w.mu.Lock()
		w.dialling--
		w.mu.Unlock()
	}()
	takes := w.takes[a]
	lost := w.dead[a] || w.blocked[a] || w.rand.Float64() < w.loss
	w.mu.Unlock()
	if lost {
		<-ctx.Done()
		time.Sleep(time.Millisecond)
		return false
	}
	select {
	case <-ctx.Done():
	case <-time.After(max(takes, time.Millisecond)):
	}
	return ctx.Err() == nil
}

func (w *world) took(all map[service.Address]Record) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for a := range all {
		if _, before := w.silent[a]; !before {
			w.outs[a] = append(w.outs[a], time.Now())
		}
	}
	w.silent = all
	d := time.Since(w.toldAt)
	kit.Check(w.t, d >= 100*time.Millisecond || len(all) <= 0, "Changed is called again after %v", d)
	w.toldAt = time.Now()
}

func (w *world) sameNode(a service.Address) map[service.Address]service.PortName {
	all := map[service.Address]service.PortName{}
	for x, n := range w.node {
		if x != a && n == w.node[a] {
			all[x] = web
		}
	}
	return all
}

// clients open a connection each; the first packet of each is answered, or not.
func (w *world) clients(all ...service.Address) {
	for i, a := range all {
		w.mu.Lock()
		lost := w.dead[a] || w.rand.Float64() < w.loss
		w.mu.Unlock()
		e := Evidence{Endpoint: a, Port: web, Client: netip.AddrFrom4([4]byte{192, 168, 0, byte(i % 4)}), At: time.Now(), Kind: Answered}
		if lost {
			e.Kind = Unanswered
		}
		w.Observe(e)
	}
}

func (w *world) set(x map[service.Address]bool, to bool, all ...service.Address) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, a := range all {
		x[a] = to
	}
}

func (w *world) list() []service.Address {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []service.Address
	for a := range w.silent {
		all = append(all, a)
	}
	slices.SortFunc(all, service.Address.Compare)
	return all
}

// waitFor returns after what time the silent ones are want.
func (w *world) waitFor(t *testing.T, most time.Duration, want ...service.Address) time.Duration {
	t.Helper()
	start := time.Now()
	for !slices.Equal(w.list(), want) {
		if time.Since(start) > most {
			t.Fatalf("silent after %v: %d, want %d: %v, want %v", most, len(w.list()), len(want), w.list(), want)
		}
		w.rest(5 * time.Millisecond)
	}
	w.rest(0)
	return time.Since(start)
}

// checkDials fails if more than 200 dials were made in a second.
func (w *world) checkDials(t *testing.T) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := perSecond; i < len(w.dials); i++ {
		d := w.dials[i].Sub(w.dials[i-perSecond])
		kit.Need(t, d >= time.Second, "%d dials in %v", perSecond+1, d)
	}
}

func TestDeadAndBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 10)
		defer w.stop()
		w.set(w.dead, true, endpoint(3))
		w.clients(endpoint(3))
		took := w.waitFor(t, 700*time.Millisecond, endpoint(3))
		r := w.Records()[endpoint(3)]
		t.Logf("silent after %v: %+v, %d dials", took, r, w.dialled[endpoint(3)])
		kit.Check(t, r.Why != "" && time.Since(r.Since) <= time.Second && r.Until.After(time.Now()), "record %+v", r)
		w.rest(80 * time.Second)
		n := w.dialled[endpoint(3)]
		kit.Check(t, n <= 80, "%d dials in 80 s", n)
		w.set(w.dead, false, endpoint(3))
		t.Logf("back after %v", w.waitFor(t, 10*time.Second))
		w.rest(time.Minute)
		kit.Check(t, len(w.suspects) == 0, "still kept: %v", w.suspects)
		w.checkDials(t)
	})
}

// An answer to a client counts at once.
func TestBackByClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 4)
		defer w.stop()
		w.set(w.dead, true, endpoint(1))
		w.clients(endpoint(1))
		w.waitFor(t, 700*time.Millisecond, endpoint(1))
		w.rest(30 * time.Second)
		w.Observe(Evidence{Endpoint: endpoint(1), Port: web, At: time.Now(), Kind: Answered})
		w.waitFor(t, 20*time.Millisecond)
	})
}

func TestAllDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 6)
		defer w.stop()
		for i := range 6 {
			w.set(w.dead, true, endpoint(i))
		}
		for range 100 {
			for i := range 6 {
				w.clients(endpoint(i))
			}
			w.rest(300 * time.Millisecond)
		}
		kit.Check(t, len(w.outs) == 0, "silent: %v", w.outs)
		w.set(w.dead, false, endpoint(5)) // one is back: now the others count
		for range 40 {
			w.clients(endpoint(0), endpoint(1), endpoint(2), endpoint(3), endpoint(4))
			w.rest(300 * time.Millisecond)
		}
		n := len(w.list())
		kit.Check(t, n == 5, "%d silent, want 5", n)
		w.checkDials(t)
	})
}

// A relay is the only client. What it got from others before they died, too, says nothing.
func TestAllDeadForRelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 4)
		defer w.stop()
		relay := func(all ...service.Address) {
			for range 8 {
				for _, a := range all {
					e := Evidence{Endpoint: a, Port: web, At: time.Now(), Kind: Answered}
					if w.dead[a] {
						e.Kind = Unanswered
					}
					w.Observe(e)
				}
			}
			w.rest(300 * time.Millisecond)
		}
		w.set(w.dead, true, endpoint(0))
		relay(endpoint(0), endpoint(1), endpoint(2), endpoint(3))
		w.waitFor(t, time.Second, endpoint(0))
		relay(endpoint(1), endpoint(2), endpoint(3))
		w.set(w.dead, true, endpoint(1), endpoint(2), endpoint(3))
		for range 40 {
			relay(endpoint(1), endpoint(2), endpoint(3))
		}
		kit.Check(t, len(w.outs) == 1, "silent: %v", w.outs)
	})
}

// Losses alone make nothing silent, and what dies meanwhile is found.
func TestLoss(t *testing.T) {
	for _, loss := range []float64{0.01, 0.2, 0.36, 0.5} {
		t.Run(fmt.Sprint(loss), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 10)
				defer w.stop()
				w.set(w.dead, false)
				w.mu.Lock()
				w.Box.options.Dial, w.loss = w.dial, loss
				w.mu.Unlock()
				for range 600 * 10 {
					w.clients(endpoint(w.rand.IntN(10)), endpoint(w.rand.IntN(10)), endpoint(w.rand.IntN(10)))
					w.rest(100 * time.Millisecond)
				}
				kit.Check(t, len(w.outs) == 0, "silent at a loss of %v: %v", loss, w.outs)
				t.Logf("%d dials", len(w.dials))
				w.set(w.dead, true, endpoint(4))
				limit := 5 * time.Second
				if loss > 0.1 {
					limit = longestDoubt + 3*time.Second // all four clients are doubted
				}
				start := time.Now()
				for len(w.list()) == 0 && time.Since(start) < limit {
					w.clients(endpoint(4), endpoint(5))
					w.rest(100 * time.Millisecond)
				}
				w.waitFor(t, 0, endpoint(4))
				t.Logf("found after %v", time.Since(start))
				w.checkDials(t)
			})
		})
	}
}

// A client that a policy blocks accuses everybody, all the time. Endpoints are not dialled for
// it all the time, and what other clients see counts at once.
func TestBlockedClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 10)
		defer w.stop()
		blocked := func(n int) {
			for range n {
				for i := range 10 {
					w.Observe(Evidence{Endpoint: endpoint(i), Port: web, Client: netip.MustParseAddr("192.168.9.9"), At: time.Now()})
				}
				w.rest(200 * time.Millisecond)
			}
		}
		blocked(5 * 60)
		before := len(w.dials)
		blocked(5 * 300)
		n := len(w.dials) - before
		kit.Check(t, n <= 10*11*(leastDials+mostControls*controlDials), "%d dials in five minutes", n)
		t.Logf("%d dials in the first minute, %d in five more", before, len(w.dials)-before)
		w.set(w.dead, true, endpoint(6))
		w.clients(endpoint(6))
		w.waitFor(t, 700*time.Millisecond, endpoint(6))
	})
}

// Packets of an attacker lead to dials, and to nothing else.
func TestForged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		defer w.stop()
		for i := range 100_000 {
			w.peers[endpoint(i)] = []service.Address{endpoint(i + 1), endpoint(i + 2)}
		}
		for i := range 100_000 {
			w.Observe(Evidence{Endpoint: endpoint(i), Port: web, At: time.Now()})
			kit.Need(t, len(w.suspects) <= most, "%d suspects", len(w.suspects))
		}
		w.rest(4 * time.Minute)
		w.checkDials(t)
		kit.Check(t, len(w.outs) == 0 && len(w.dials) >= 50*perSecond, "silent: %v, %d dials", w.outs, len(w.dials))
		n := len(w.suspects) + len(w.answers) + len(w.Box.controls)
		kit.Check(t, n <= 0, "%d things are kept", n)
	})
}

// One that dies while an attacker accuses others is found nevertheless.
func TestForgedBeside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 300)
		defer w.stop()
		w.set(w.dead, true, endpoint(7))
		for i := 0; len(w.list()) == 0; i++ {
			for j := range 300 {
				w.Observe(Evidence{Endpoint: endpoint(j), Port: web, At: time.Now()})
			}
			w.rest(100 * time.Millisecond)
			kit.Need(t, i <= 200, "not found in 20 s")
		}
		w.waitFor(t, 0, endpoint(7))
		w.checkDials(t)
	})
}

// A policy that blocks the node makes dials worthless. Then connections decide, of clients
// that others answer.
func TestNodeBlocked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 4)
		defer w.stop()
		all := []service.Address{endpoint(0), endpoint(1), endpoint(2), endpoint(3)}
		w.set(w.blocked, true, all...)
		stranger := netip.MustParseAddr("192.168.9.9") // blocked as well
		for range 100 {
			for _, a := range all {
				w.Observe(Evidence{Endpoint: a, Port: web, Client: stranger, At: time.Now()})
			}
			w.clients(endpoint(0), endpoint(1))
			w.rest(100 * time.Millisecond)
		}
		kit.Need(t, len(w.outs) == 0, "silent by a client that nobody answers: %v", w.outs)
		w.set(w.dead, true, endpoint(2))
		start := time.Now()
		for i := 0; i < 100 && len(w.list()) == 0; i++ {
			w.clients(all...)
			w.clients(endpoint(2), endpoint(2), endpoint(2), endpoint(0), endpoint(1), endpoint(3))
			w.rest(100 * time.Millisecond)
		}
		w.waitFor(t, 0, endpoint(2))
		t.Logf("silent after %v", time.Since(start))
		w.waitFor(t, 10*time.Second+20*time.Millisecond) // half open
		for range 2000 {
			out := slices.Contains(w.list(), endpoint(2))
			if !out {
				w.clients(endpoint(2))
			}
			w.clients(endpoint(0), endpoint(1), endpoint(3))
			w.rest(100 * time.Millisecond)
		}
		n := len(w.outs[endpoint(2)])
		kit.Check(t, n >= 3 && n <= 6, "silent %d times in 200 s, want 10, 20, 40 and 80 s", n)
		w.set(w.dead, false, endpoint(2))
		w.waitFor(t, 90*time.Second)
	})
}

// If only endpoints of the own node are there to compare with, a policy may block dials to
// one of another node alone. Then connections decide, and soon.
func TestUnlike(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		defer w.stop()
		w.unlike = true
		w.set(w.blocked, true, endpoint(1))
		for range 100 {
			w.Observe(Evidence{Endpoint: endpoint(1), Port: web, Client: netip.MustParseAddr("192.168.9.9"), At: time.Now()})
			w.clients(endpoint(0), endpoint(0))
			w.rest(100 * time.Millisecond)
		}
		kit.Need(t, len(w.outs) == 0, "silent: %v", w.outs)
		w.set(w.dead, true, endpoint(1))
		start := time.Now()
		for i := 0; i < 100 && len(w.list()) == 0; i++ {
			w.clients(endpoint(0), endpoint(1), endpoint(1), endpoint(1))
			w.clients(endpoint(1), endpoint(0), endpoint(0), endpoint(0))
			w.rest(50 * time.Millisecond)
		}
		w.waitFor(t, 0, endpoint(1))
		t.Logf("silent after %v", time.Since(start))
		d := time.Since(start)
		kit.Check(t, d <= time.Second, "silent after %v", d)
	})
}

// Without dials, as for SCTP.
func TestNoDials(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 0)
		defer w.stop()
		a, b := endpoint(1), endpoint(2)
		a.Protocol, b.Protocol = service.SCTP, service.SCTP
		w.peers[a] = []service.Address{b}
		w.set(w.dead, true, a)
		for range 40 {
			w.clients(a, b, b, b)
			w.Observe(Evidence{Endpoint: b, Port: web, Client: netip.MustParseAddr("192.168.0.0"), At: time.Now(), Kind: Answered})
			w.rest(50 * time.Millisecond)
		}
		w.waitFor(t, 0, a)
		kit.Check(t, len(w.dials) == 0, "%d dials", len(w.dials))
	})
}

// Two silent endpoints make those of their node suspects. Only those that do not answer
// count.
func TestNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 220)
		defer w.stop()
		var want []service.Address
		for i := range 220 {
			w.node[endpoint(i)] = "b"
			if i >= 20 && i < 120 {
				w.node[endpoint(i)] = "a"
			}
			if i >= 20 && i < 110 {
				want = append(want, endpoint(i))
			}
		}
		w.set(w.dead, true, want...)
		w.clients(endpoint(20))
		w.waitFor(t, 700*time.Millisecond, endpoint(20))
		w.rest(3 * time.Second)
		for i := 21; i < 120; i++ {
			kit.Need(t, w.dialled[endpoint(i)] <= 0, "one is silent, and %v of its node is dialled", endpoint(i))
		}
		w.clients(endpoint(50))
		t.Logf("90 of one node: %v", w.waitFor(t, 7*time.Second, want...))
		for i := 110; i < 120; i++ {
			kit.Check(t, w.dialled[endpoint(i)] != 0, "%v of the node was not dialled", endpoint(i))
		}
		kit.Check(t, w.dialled[endpoint(200)] <= 0, "one of another node was dialled")
		w.checkDials(t)
	})
}

// One that comes and goes becomes silent at most once in ten seconds.
func TestFlapping(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 5)
		defer w.stop()
		for i := range 3000 {
			w.set(w.dead, i/20%2 == 0, endpoint(1))
			w.clients(endpoint(1), endpoint(2))
			w.rest(100 * time.Millisecond)
		}
		outs := w.outs[endpoint(1)]
		for i := 1; i < len(outs); i++ {
			d := outs[i].Sub(outs[i-1])
			kit.Check(t, d >= 10*time.Second, "silent again after %v", d)
		}
		t.Logf("%d times in 300 s", len(outs))
		kit.Check(t, len(outs) != 0, "never silent")
	})
}

// Those without others are neither dialled nor left out, and one that loses its others, or
// its Service, is no longer silent.
func TestAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		w.set(w.dead, true, endpoint(1), endpoint(9))
		for range 20 {
			w.clients(endpoint(9), endpoint(1), endpoint(1))
			w.rest(100 * time.Millisecond)
		}
		w.waitFor(t, 0, endpoint(1))
		kit.Check(t, w.dialled[endpoint(9)] <= 0, "one without others was dialled")
		w.mu.Lock()
		delete(w.peers, endpoint(1))
		w.mu.Unlock()
		w.waitFor(t, 10*time.Second)
		w.stop()
	})
}

// The end of the Box ends what it said.
func TestEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3)
		w.set(w.dead, true, endpoint(1))
		w.clients(endpoint(1))
		w.waitFor(t, 700*time.Millisecond, endpoint(1))
		w.clients(endpoint(2))
		w.set(w.dead, true, endpoint(2))
		w.clients(endpoint(2))
		w.rest(50 * time.Millisecond) // dials are under way
		w.stop()
		w.waitFor(t, 0)
	})
}

// Answers are late where the way to an endpoint is long: from one, or from all of them. None is
// left out for long, and one that is dead is found.
func TestLate(t *testing.T) {
	for _, tc := range []struct {
		name string
		slow int // endpoints
		took time.Duration
		most time.Duration // that one is left out
	}{
		{"one", 1, 700 * time.Millisecond, 500 * time.Millisecond},
		{"one, by far", 1, 1500 * time.Millisecond, 1300 * time.Millisecond},
		{"all", 5, 700 * time.Millisecond, 0},
		{"all, by far", 5, 1500 * time.Millisecond, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 5)
				defer w.stop()
				w.takes = map[service.Address]time.Duration{}
				for i := range tc.slow {
					w.takes[endpoint(i)] = tc.took
				}
				out := time.Duration(0)
				for i := range 300 {
					w.Observe(Evidence{Endpoint: endpoint(0), Port: web, Client: netip.AddrFrom4([4]byte{192, 168, 0, 1}), At: time.Now()})
					w.rest(100 * time.Millisecond)
					if len(w.list()) > 0 {
						out += 100 * time.Millisecond
					}
					known := tc.slow == 5 && i > 1 || time.Duration(i)*100*time.Millisecond > tc.took
					kit.Need(t, !known || w.Late(endpoint(0)), "not late after %d requests", i+1)
				}
				kit.Check(t, out <= tc.most, "left out for %v, want %v at most", out, tc.most)
				w.set(w.dead, true, endpoint(4))
				w.clients(endpoint(4))
				t.Logf("left out for %v; a dead one is known after %v", out, w.waitFor(t, 10*time.Second, endpoint(4)))
				kit.Check(t, tc.slow != 1 || !w.Late(endpoint(4)),
					"the dead one counts as late, although others answer")
			})
		})
	}
}
