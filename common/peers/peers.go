// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package peers knows which nodes take packets through the tunnel. It learns the addresses
// of nodes by few requests, without a watch of Nodes, and probes them through the tunnel
// itself. A node that does not answer is no peer.
package peers

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"
)

const (
	// tick is the time between two looks at the clock, interval between two probes of a node.
	tick, interval = 200 * time.Millisecond, time.Second
	// patience is how long a peer need not answer, grace if its kernel says that only its process is gone.
	patience, grace = 3 * time.Second, time.Minute
	// comeback is how many answers in a row make a peer.
	comeback = 2
	// answerPause is the time between two answers to a node. maxReads is how many datagrams are
	// read in a second of one family.
	answerPause, maxReads = interval / 5, 10000
	// lookPause is the time between two requests for addresses, after lookBurst more. For a node
	// that was not found, or stays where it was and does not answer, it grows to memory, which
	// is how long nodes are known that want this one.
	lookPause, memory = 10 * time.Second, 10 * time.Minute
	lookBurst         = 2
	// lookTime bounds a request.
	lookTime = time.Minute
	// maxStrangers bounds the names that were heard and not found.
	maxStrangers = 256
)

// IPv6 is whether that family is meant, and not IPv4.
type IPv6 bool

// Through is whether a datagram goes through the tunnel only.
type Through bool

// Conn sends datagrams to nodes and receives theirs.
type Conn interface {
	// Send sends through the tunnel, or if that need not be, another way where there is none.
	Send(b []byte, to netip.AddrPort, tunnel Through) error
	// Receive may return what was sent and ErrRefused.
	Receive(b []byte) (size int, from netip.AddrPort, err error)
	Close() error
}

// ErrRefused is the answer of a node where no process listens.
var ErrRefused = errors.New("nobody listens")

// Options are what a Set needs.
type Options struct {
	Node string // this node
	Key  uint32 // that peers have, too
	Port uint16 // of UDP, where peers listen
	// Find calls found with each Node of names that exists, and perhaps with others.
	Find func(ctx context.Context, names []string, found func(name string, all []netip.Addr)) error
	// Open returns the way to other nodes for this one's address.
	Open func(own netip.Addr) (Conn, error)
	// Changed is called after changes, not for each one.
	Changed func()
}

// Set is the nodes that this one wants as peers, or that want this one.
type Set struct {
	o       Options
	wake    chan struct{}    // something is due
	changed chan struct{}    // what users see
	moved   [2]chan struct{} // the ways begin anew, by family

	mu        sync.Mutex
	nodes     map[string]*node
	places    [2]map[netip.Addr][]*node // by family, nil if outdated
	strangers int                       // how many of them are
	looking   bool
	paid      time.Time // until when requests are spent
	lookErr   error     // of that
	// Requests that find no stranger pause for longer and longer, until strangersAt.
	strangersPause time.Duration
	strangersAt    time.Time
	conns          [2]Conn // by family, nil if closed
	openErr        [2]error
	begun          time.Time // with the ways: another process may still have the port
}

// node is one that is wanted, or was heard.
type node struct {
	name   string
	wanted bool
	asked  bool // whether it exists was answered
	found  bool
	looked time.Time
	lookAt time.Time // zero for never
	pause  time.Duration
	ways   [2]way // by family
}

// stranger is whether it is only known from hearsay.
func (n *node) stranger() bool { return !n.wanted && !n.found }

// way is how a node is reached in one family.
type way struct {
	addr netip.Addr
	outgoing
	incoming
}

// outgoing is what probes of a node showed.
type outgoing struct {
	since    time.Time // of the first probe
	next     time.Time
	sent     [2]nonce // the latest first
	answers  [2]bool  // whether these were answered
	answered time.Time
	row      int // answers in a row
	up       bool
	refused  time.Time // the latest time that only its process did not answer
	version  byte      // with which it answers, if it is another one
	err      error     // of the latest probe
}

// incoming is what a node sent.
type incoming struct {
	heard      time.Time // its latest probe
	probe      nonce     // of that
	answeredAt time.Time
}

// New returns a Set.
func New(o Options) *Set {
	signal := func() chan struct{} { return make(chan struct{}, 1) }
	return &Set{o: o, begun: time.Now(), nodes: map[string]*node{}, wake: signal(), changed: signal(), moved: [2]chan struct{}{signal(), signal()}}
}

// notify wakes whoever waits for c, once.
func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Want sets the nodes that are wanted as peers. Without any, this one is no peer of others, and says so before it
// returns.
func (s *Set) Want(names []string) {
	if len(names) == 0 {
		s.send(s.farewells())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	want := map[string]bool{}
	for _, name := range names {
		want[name], want[s.o.Node] = true, true
	}
	for name := range want {
		if n := s.nodes[name]; n == nil {
			s.add(&node{name: name, wanted: true})
		} else if !n.wanted {
			s.turn(n, func() { n.wanted = true })
		}
	}
	for name, n := range s.nodes {
		if n.wanted && !want[name] {
			s.turn(n, func() { n.wanted = false })
			for i := range n.ways {
				n.ways[i].outgoing = outgoing{}
			}
		}
	}
	notify(s.wake)
	notify(s.changed)
}

// farewells returns what to say to nodes that probe this one.
func (s *Set) farewells() (all []message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.nodes {
		for i, conn := range s.conns {
			if w := &n.ways[i]; conn != nil && w.addr.IsValid() && w.probe != (nonce{}) {
				all = append(all, message{conn, w, w.addr, datagram{version, farewell, s.o.Key, w.probe, ""}})
			}
		}
	}
	return all
}

// Reopen begins anew with the ways to other nodes, which another process may have had, or gets.
func (s *Set) Reopen() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begun = time.Now()
	for i := range s.conns {
		s.reopen(i)
	}
}

func (s *Set) reopen(i int) {
	if notify(s.moved[i]); s.conns[i] != nil {
		s.conns[i].Close()
	}
}

// add adds a node, which is looked for as soon as possible.
func (s *Set) add(n *node) {
	n.lookAt, n.pause = time.Now(), lookPause
	s.nodes[n.name] = n
	if n.stranger() {
		s.strangers++
	}
}

func (s *Set) remove(n *node) {
	s.places = [2]map[netip.Addr][]*node{}
	delete(s.nodes, n.name)
	if n.stranger() {
		s.strangers--
	}
}

// turn changes what n is.
func (s *Set) turn(n *node, change func()) {
	s.remove(n)
	change()
	s.nodes[n.name] = n
	if n.stranger() {
		s.strangers++
	}
}

func index(ipv6 IPv6) int {
	if ipv6 {
		return 1
	}
	return 0
}

// Answering returns the wanted nodes that answer as peers. This one does, and its address may
// be unknown.
func (s *Set) Answering(ipv6 IPv6) map[string]netip.Addr {
	return s.choose(ipv6, func(n *node, w *way) bool { return n.wanted && (w.up || n.name == s.o.Node) })
}

// Known returns the nodes that may send packets through the tunnel: those that are wanted and
// those that want this one, if they exist.
func (s *Set) Known(ipv6 IPv6) map[string]netip.Addr {
	return s.choose(ipv6, func(_ *node, w *way) bool { return w.addr.IsValid() })
}

func (s *Set) choose(ipv6 IPv6, which func(*node, *way) bool) map[string]netip.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[string]netip.Addr{}
	for name, n := range s.nodes {
		if w := &n.ways[index(ipv6)]; which(n, w) {
			all[name] = w.addr
		}
	}
	return all
}

// Missing returns why wanted nodes are no peers.
func (s *Set) Missing(ipv6 IPv6) map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[string]string{}
	for name, n := range s.nodes {
		if n.wanted && !n.ways[index(ipv6)].up && name != s.o.Node {
			all[name] = s.why(n, index(ipv6))
		}
	}
	return all
}

func (s *Set) why(n *node, i int) string {
	w := &n.ways[i]
	switch {
	case s.openErr[i] != nil:
		return s.openErr[i].Error()
	case !n.asked && s.lookErr != nil:
		return s.lookErr.Error()
	case !n.asked:
		return "its address is not read yet"
	case !n.found:
		return "there is no Node of this name"
	case !w.addr.IsValid():
		return fmt.Sprintf("its Node has no InternalIP of IPv%d", 4+2*i)
	case w.version != 0:
		return fmt.Sprintf("it answers as version %d, this is version %d", w.version, version)
	case w.err != nil:
		return w.err.Error()
	}
	return fmt.Sprintf("%s does not answer through the tunnel", w.addr)
}

// Settled reports whether each wanted node had the time to answer. Until then, what an
// earlier process found may hold.
func (s *Set) Settled() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for name, n := range s.nodes {
		if !n.wanted || name == s.o.Node {
			continue
		}
		if !n.asked && s.lookErr == nil {
			return false
		}
		for i := range n.ways {
			if w := &n.ways[i]; w.addr.IsValid() && !w.judged(now) && (s.openErr[i] == nil || now.Sub(s.begun) < patience) {
				return false
			}
		}
	}
	return true
}

// judged reports whether the node is a peer or had the time to answer.
func (w *way) judged(now time.Time) bool {
	return w.up || !w.since.IsZero() && now.Sub(w.since) >= patience
}
