// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package silence

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"kubeproxy/common/service"
	"kubeproxy/test/kit"
)

// over returns an endpoint of another protocol at the address of endpoint(i).
func over(p service.Protocol, i int) service.Address {
	a := endpoint(i)
	a.Protocol = p
	return a
}

// newDatagrams starts a Box in front of four endpoints of a port of UDP, beside those of TCP.
func newDatagrams(t *testing.T, p service.Protocol) *world {
	w := newWorld(t, 4)
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range 4 {
		for j := range 4 {
			if i != j {
				w.peers[over(p, i)] = append(w.peers[over(p, i)], over(p, j))
			}
		}
	}
	return w
}

// asks has a client send a datagram to endpoints. Those in answers answer it.
func (w *world) asks(client byte, answers bool, all ...int) {
	for _, i := range all {
		e := Evidence{Endpoint: over(service.UDP, i), Port: web, Client: netip.AddrFrom4([4]byte{192, 168, 1, client}), At: time.Now()}
		if answers {
			e.Kind = Answered
		}
		w.Observe(e)
	}
}

// Endpoints of UDP are left out if neither clients nor dials get an answer, while others of the
// Service port answer both.
func TestDatagrams(t *testing.T) {
	for _, tc := range []struct {
		name    string
		happens func(w *world) // five times a second
		dead    []int          // hosts
		silent  bool           // the dead ones count as silent
		dials   int            // at most, in a minute
	}{
		{"a dead host", func(w *world) { w.asks(1, false, 0, 0); w.asks(1, true, 1, 2, 3) }, []int{0}, true, 200},
		{"a dead host, and noise of many", func(w *world) {
			for c := range byte(2 * mostClients) {
				w.asks(100+c, false, 0)
			}
			w.asks(1, false, 0, 0)
			w.asks(1, true, 1, 2, 3)
		}, []int{0}, true, 200},
		{"few requests", func(w *world) { w.asks(1, false, 0); w.asks(1, true, 1, 2, 3) }, []int{0}, true, 200},
		{"nobody ever answers", func(w *world) { w.asks(1, false, 0, 1, 2, 3) }, []int{0}, false, 0},
		{"all hosts dead", func(w *world) { w.asks(1, false, 0, 1, 2, 3) }, []int{0, 1, 2, 3}, false, 0},
		{"clients that others do not answer", func(w *world) { w.asks(1, false, 0, 0); w.asks(2, true, 1, 2, 3) }, []int{0}, false, 0},
		{"noise that servers ignore, and hosts that live", func(w *world) { w.asks(1, false, 0, 1, 2, 3); w.asks(1, true, 1) }, nil, false, 600},
		{"a host that lives behind a policy", func(w *world) { w.asks(1, false, 0, 0); w.asks(1, true, 0, 1, 2, 3) }, []int{0}, false, 0},
		{"noise, and a policy that keeps the node out", func(w *world) { w.asks(1, false, 0, 0); w.asks(1, true, 1) }, []int{0, 1, 2, 3}, false, 600},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newDatagrams(t, service.UDP)
				defer w.stop()
				var dead []service.Address
				for _, i := range tc.dead {
					dead = append(dead, over(service.UDP, i))
				}
				w.set(w.dead, true, dead...)
				for i := range 5 * 60 {
					tc.happens(w)
					w.rest(200 * time.Millisecond)
					_, out := w.outs[over(service.UDP, 0)]
					kit.Need(t, !out || tc.silent, "silent after %d requests", i+1)
				}
				if tc.silent {
					w.waitFor(t, 0, dead...)
					t.Logf("silent after %v: %+v", w.outs[dead[0]][0].Sub(w.Records()[dead[0]].Since), w.Records()[dead[0]])
					w.set(w.dead, false, dead...)
					t.Logf("back after %v", w.waitFor(t, 10*time.Second))
				}
				kit.Check(t, len(w.dials) <= tc.dials, "%d dials, want at most %d", len(w.dials), tc.dials)
				w.checkDials(t)
			})
		})
	}
}

// A silent TCP endpoint has the others at its address dialled, whatever their protocol, and
// two those on the node. Only those whose host does not answer follow, over UDP if a client
// waits, too.
func TestHostOfDatagrams(t *testing.T) {
	for _, p := range []service.Protocol{service.UDP, service.SCTP} {
		t.Run(p.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newDatagrams(t, p)
				defer w.stop()
				w.node = map[service.Address]string{}
				for i := range 4 {
					w.node[endpoint(i)], w.node[over(p, i)] = "a", "a"
				}
				w.set(w.dead, true, endpoint(0), over(p, 0), over(p, 1))
				ask := func() {
					if p == service.UDP {
						w.asks(1, false, 0, 1)
						w.asks(1, true, 2, 3)
					}
				}
				w.clients(endpoint(0))
				w.waitFor(t, time.Second, endpoint(0))
				ask()
				w.rest(10 * time.Millisecond)
				ask()
				t.Logf("its address after %v", w.waitFor(t, 2*time.Second, endpoint(0), over(p, 0)))
				for range 10 {
					ask()
					w.rest(300 * time.Millisecond)
				}
				w.waitFor(t, 0, endpoint(0), over(p, 0), over(p, 1)) // two of the node
				w.set(w.dead, false, endpoint(0), over(p, 0), over(p, 1))
				t.Logf("back after %v", w.waitFor(t, 10*time.Second))
			})
		})
	}
}

// A policy may drop the SYNs to an endpoint of UDP that answers its clients. One at its address
// falls silent, and it stays.
func TestDatagramsWithoutSYNs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDatagrams(t, service.UDP)
		defer w.stop()
		w.node = map[service.Address]string{endpoint(0): "a", over(service.UDP, 0): "a"}
		w.set(w.dead, true, endpoint(0), over(service.UDP, 0))
		w.clients(endpoint(0))
		w.waitFor(t, time.Second, endpoint(0))
		for range 50 {
			w.rest(700 * time.Millisecond) // for two looks at connection tracking
			w.asks(1, true, 0, 1, 2, 3)
		}
		n := len(w.outs[over(service.UDP, 0)])
		kit.Check(t, n <= 0, "silent %d times", n)
	})
}
