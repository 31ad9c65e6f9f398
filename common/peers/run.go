// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"kubeproxy/common/reconcile"
)

// Run probes and answers until ctx ends.
func (s *Set) Run(ctx context.Context) {
	var all sync.WaitGroup
	defer all.Wait()
	for i := range s.conns {
		all.Go(func() { s.serve(ctx, i) })
	}
	all.Go(func() {
		for wait(ctx, s.changed, nil) {
			s.o.Changed()
		}
	})
	clock := time.NewTicker(tick)
	defer clock.Stop()
	for ctx.Err() == nil {
		idle, due := s.due(time.Now())
		if len(due) > 0 {
			all.Go(func() { s.look(ctx, due) })
		}
		s.send(s.probes(time.Now()))
		if idle {
			wait(ctx, s.wake, nil)
		} else {
			wait(ctx, s.wake, clock.C)
		}
	}
}

func wait(ctx context.Context, c <-chan struct{}, clock <-chan time.Time) bool {
	select {
	case <-ctx.Done():
		return false
	case <-c:
	case <-clock:
	}
	return true
}

// due returns the nodes whose addresses are to be read now. It forgets those that nobody wants
// any more. idle is whether none is left.
func (s *Set) due(now time.Time) (idle bool, names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, n := range s.nodes {
		if !n.wanted && now.Sub(n.ways[0].heard) > memory && now.Sub(n.ways[1].heard) > memory {
			s.remove(n)
			notify(s.changed)
			continue
		}
		if n.wanted && name != s.o.Node && n.found && n.lookAt.IsZero() && n.silent(now) {
			n.lookAt = n.looked.Add(n.pause)
		}
		if !n.lookAt.IsZero() && !n.lookAt.After(now) && (!n.stranger() || !now.Before(s.strangersAt)) {
			names = append(names, name)
		}
	}
	if s.looking || s.paid.Sub(now) > lookBurst*lookPause {
		names = nil
	}
	if names != nil {
		s.looking, s.paid = true, later(s.paid, now).Add(lookPause)
		if !slices.Contains(names, s.o.Node) { // it may be that this one moved
			names = append(names, s.o.Node)
		}
	}
	slices.Sort(names)
	return len(s.nodes) == 0, names
}

// silent reports whether n answers in no family, although it had the time.
func (n *node) silent(now time.Time) bool {
	for i := range n.ways {
		if w := &n.ways[i]; w.addr.IsValid() && (w.up || !w.judged(now)) {
			return false
		}
	}
	return true
}

// look reads the addresses of nodes.
func (s *Set) look(ctx context.Context, names []string) {
	found := map[string][]netip.Addr{}
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	err := s.o.Find(ctx, names, func(name string, all []netip.Addr) {
		if _, due := slices.BinarySearch(names, strings.ToLower(name)); due {
			found[strings.ToLower(name)] = all
		}
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.looking, s.lookErr = false, err
	now, strangers, known := time.Now(), false, false
	for _, name := range names {
		n := s.nodes[name]
		if n == nil {
			continue
		}
		addrs, is := found[name]
		strangers, known = strangers || n.stranger(), known || n.stranger() && is
		if is || err == nil {
			s.learn(n, addrs, is)
		}
		n.looked, n.lookAt = now, time.Time{}
		if !n.found || err != nil {
			n.lookAt = n.looked.Add(n.pause)
		}
	}
	switch {
	case known:
		s.strangersPause = 0
	case strangers:
		s.strangersPause = min(max(2*s.strangersPause, lookPause), memory)
	}
	s.strangersAt = now.Add(s.strangersPause)
	notify(s.changed)
}

// learn takes over whether n exists, and where.
func (s *Set) learn(n *node, addrs []netip.Addr, exists bool) {
	n.asked, n.pause = true, min(2*n.pause, memory)
	s.turn(n, func() { n.found = exists })
	for i := range n.ways {
		w := &n.ways[i]
		at := slices.IndexFunc(addrs, func(a netip.Addr) bool { return a.Is4() == (i == 0) })
		var addr netip.Addr
		if at >= 0 {
			addr = addrs[at]
		}
		if addr != w.addr {
			w.addr, w.outgoing, n.pause = addr, outgoing{}, lookPause
			if n.name == s.o.Node {
				s.reopen(i)
			}
		}
	}
}

// serve opens the way to other nodes in one family, and receives there, until ctx ends. It
// begins anew if this node gets another address.
func (s *Set) serve(ctx context.Context, i int) {
	for ctx.Err() == nil {
		var conn Conn
		err := errors.New("the address of this node is not known")
		own := s.own(i)
		if own.IsValid() {
			conn, err = s.o.Open(own)
		}
		s.mu.Lock()
		s.conns[i], s.openErr[i] = conn, err
		s.mu.Unlock()
		if err == nil {
			notify(s.changed)
			stop := context.AfterFunc(ctx, func() { conn.Close() })
			s.read(ctx, i, conn)
			stop()
			conn.Close()
		}
		var again <-chan time.Time
		if own.IsValid() {
			again = time.After(interval) // another process of this node may just end
		}
		wait(ctx, s.moved[i], again)
	}
}

// own returns the address of this node.
func (s *Set) own(i int) netip.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.nodes[s.o.Node]; n != nil {
		return n.ways[i].addr
	}
	return netip.Addr{}
}

// message is a probe of a node, or a farewell.
type message struct {
	conn Conn
	way  *way
	addr netip.Addr
	datagram
}

func (s *Set) send(all []message) {
	for _, m := range all {
		err := m.conn.Send(m.encode(), netip.AddrPortFrom(m.addr, s.o.Port), m.kind == probe)
		s.mu.Lock()
		m.way.err = err
		s.mu.Unlock()
	}
}

// probes returns those that are due. Nodes that did not answer are no peers from now on.
func (s *Set) probes(now time.Time) (all []message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, n := range s.nodes {
		for i, conn := range s.conns {
			if w := &n.ways[i]; conn != nil && n.wanted && w.addr.IsValid() && name != s.o.Node {
				all = append(all, s.probe(conn, w, now)...)
			}
		}
	}
	return all
}

func (s *Set) probe(conn Conn, w *way, now time.Time) []message {
	if w.up && w.answers == [2]bool{} && (now.Sub(later(w.answered, w.refused)) >= patience || now.Sub(w.answered) >= grace) {
		w.up, w.row = false, 0
		notify(s.changed)
	}
	if now.Before(w.next) {
		return nil
	}
	w.next = now.Add(interval)
	if w.since.IsZero() {
		w.since, w.next = now, now.Add(interval/2+rand.N(interval)) // not all at once
	} else if !w.answers[0] {
		w.row = 0
	}
	w.sent, w.answers = [2]nonce{newNonce(), w.sent[0]}, [2]bool{false, w.answers[0]}
	return []message{{conn, w, w.addr, datagram{version, probe, s.o.Key, w.sent[0], s.o.Node}}}
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// read answers probes and takes answers until conn fails.
func (s *Set) read(ctx context.Context, i int, conn Conn) {
	var began time.Time
	reads, buffer := 0, make([]byte, maxSize+1)
	for {
		size, from, err := conn.Receive(buffer)
		refused := errors.Is(err, ErrRefused)
		if err != nil && !refused {
			return
		}
		now := time.Now()
		if now.Sub(began) >= interval {
			began, reads = now, 0
		}
		if reads++; reads > maxReads {
			reconcile.Pause(ctx, interval-now.Sub(began))
			continue
		}
		d, valid := decode(buffer[:size])
		if !valid || d.key != s.o.Key || from.Port() != s.o.Port {
			continue
		}
		if refused {
			d.kind = gone
		}
		if a := s.receive(i, from.Addr(), d, now); a != nil {
			_ = conn.Send(a.encode(), from, false)
		}
	}
}

// receive returns the answer to d, if it gets one.
func (s *Set) receive(i int, from netip.Addr, d datagram, now time.Time) *datagram {
	s.mu.Lock()
	defer s.mu.Unlock()
	if d.kind == probe {
		return s.answer(i, from, d, now)
	}
	for _, n := range s.at(i, from) {
		if at := slices.Index(n.ways[i].sent[:], d.nonce); at >= 0 {
			s.take(n, i, at, d, now)
		}
	}
	return nil
}

// at returns the nodes with an address. There is more than one after a node got another name.
func (s *Set) at(i int, addr netip.Addr) []*node {
	if s.places[i] == nil {
		s.places[i] = map[netip.Addr][]*node{}
		for _, n := range s.nodes {
			s.places[i][n.ways[i].addr] = append(s.places[i][n.ways[i].addr], n)
		}
	}
	return s.places[i][addr]
}

// answer returns the answer to a probe of a node whose address is known. Others are looked for.
func (s *Set) answer(i int, from netip.Addr, d datagram, now time.Time) *datagram {
	name := strings.ToLower(d.name)
	n := s.nodes[name]
	switch {
	case n == nil && len(validation.IsDNS1123Subdomain(name)) > 0:
		return nil
	case n == nil:
		if s.strangers >= maxStrangers {
			s.forgetStranger()
		}
		n = &node{name: name}
		s.add(n)
		notify(s.wake)
	}
	w := &n.ways[i]
	if w.addr != from {
		if n.lookAt.IsZero() {
			n.lookAt = n.looked.Add(n.pause)
		}
		if n.stranger() {
			w.heard = now
		}
		return nil
	}
	w.heard, w.probe = now, d.nonce
	if now.Sub(w.answeredAt) < answerPause {
		return nil
	}
	w.answeredAt = now
	return &datagram{version, answer, s.o.Key, d.nonce, ""}
}

// forgetStranger forgets one, whichever.
func (s *Set) forgetStranger() {
	for n := range maps.Values(s.nodes) {
		if n.stranger() {
			s.remove(n)
			return
		}
	}
}

// take takes over what a node says to the probe at.
func (s *Set) take(n *node, i, at int, d datagram, now time.Time) {
	w := &n.ways[i]
	was := w.up
	switch {
	case d.kind == gone:
		w.refused = now
	case d.version != version:
		w.version, w.up, w.row = d.version, false, 0
	case d.kind == farewell:
		w.up, w.row = false, 0
	case d.kind == answer && !w.answers[at]:
		w.answers[at], w.answered, w.version = true, now, 0
		w.row++
		w.up = w.up || w.row >= comeback
	}
	if w.up != was {
		n.pause, n.lookAt = lookPause, time.Time{}
		notify(s.changed)
	}
}
