// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package silence

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"kubeproxy/common/service"
)

// suspect is an endpoint with evidence against it, silent or not, and for a while after
// that one that was.
type suspect struct {
	address service.Address
	port    service.PortName
	byNode  bool   // no client accuses it: others of its node are silent
	busy    bool   // dials are under way
	asked   *batch // the latest

	first, last time.Time          // evidence since it last answered, zero without
	flows       int                // of clients, without an answer
	clients     map[netip.Addr]int // how many of them, by client
	answered    time.Time          // the latest answer to a client
	doubts      map[netip.Addr]doubtful
	doubted     time.Time // until when doubts are kept
	dials       int       // without an answer in this suspicion
	rounds      int       // since the last verdict
	undecided   bool      // dials say nothing
	due         time.Time // of the next dials

	out         time.Time // since when it is silent, zero if it is not
	since       time.Time // see Record
	why         string
	until       time.Time // of the trial; then, how long the times of it are kept
	outs        int       // how often in a row it became silent
	lastOut     time.Time
	clientsOnly bool // dials did not decide
}

func (s *suspect) silent() bool    { return !s.out.IsZero() }
func (s *suspect) suspected() bool { return !s.silent() && !s.first.IsZero() }

// accuse adds an evidence against s.
func (s *suspect) accuse(e Evidence) {
	if s.silent() || e.Kind == Unanswered && e.At.Before(s.doubts[e.Client].until) {
		return
	}
	if s.first.IsZero() || s.byNode && s.address.Protocol == service.TCP {
		s.first, s.byNode = e.At, false
		s.due = later(s.due, e.At.Add(pace)) // others may accuse it at once
	}
	s.port, s.last = e.Port, e.At
	if e.Kind != Unanswered {
		return
	}
	s.flows++
	if _, known := s.clients[e.Client]; known || len(s.clients) < mostClients {
		if s.clients == nil {
			s.clients = map[netip.Addr]int{}
		}
		s.clients[e.Client]++
	}
}

// doubtful is a client that accused an endpoint which answers.
type doubtful struct {
	times int
	until time.Time
}

// exonerate doubts the clients that accuse s, as it answers.
func (s *suspect) exonerate(now time.Time) {
	maps.DeleteFunc(s.doubts, func(_ netip.Addr, d doubtful) bool { return now.Sub(d.until) > longestDoubt })
	for c := range s.clients {
		d := s.doubts[c]
		if len(s.doubts) >= mostClients && d.times == 0 {
			continue
		}
		if s.doubts == nil {
			s.doubts = map[netip.Addr]doubtful{}
		}
		length := min(doubt<<min(d.times, 10), longestDoubt)
		s.doubts[c] = doubtful{d.times + 1, now.Add(length)}
		s.doubted = later(s.doubted, now.Add(2*length))
	}
	s.clear(now)
}

// nextLook is when something is to be done about s without new evidence.
func (s *suspect) nextLook() time.Time {
	switch {
	case s.silent() && s.until.Before(s.due):
		return s.until
	case s.silent() || s.suspected():
		return later(s.due, s.held())
	}
	return s.forgotten()
}

// held is until when s may not become silent again.
func (s *suspect) held() time.Time {
	if s.silent() || s.lastOut.IsZero() {
		return time.Time{}
	}
	return s.lastOut.Add(hold)
}

// forgotten is until when s is kept without a suspicion.
func (s *suspect) forgotten() time.Time {
	return later(later(s.due, s.held()), later(s.until, s.doubted))
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// clear ends a suspicion.
func (s *suspect) clear(now time.Time) {
	s.first, s.byNode, s.flows, s.clients, s.dials, s.rounds = time.Time{}, false, 0, nil, 0, 0
	s.undecided = false
	s.due = now.Add(pause)
}

// advance looks at all suspects, and returns those to dial as far as the second has room,
// in the order of their turn: begun ones, those that clients accuse, then by time.
func (b *Box) advance(now time.Time) []*suspect {
	var due []*suspect
	limit := max(0, b.room(now)) / leastDials
	for a, s := range b.suspects {
		switch {
		case s.silent() && s.answered.After(s.out):
			b.back(s, now)
		case s.busy:
		case s.silent() && !now.Before(s.until):
			b.try(s, now)
		case s.suspected() && s.answered.After(s.first):
			s.clear(now)
		case s.suspected() && s.undecided && !now.Before(s.held()) && b.clientsSay(s, now):
			b.heard(a, s, now)
		case now.Before(s.nextLook()):
		case s.silent() || s.suspected():
			due = s.takeTurn(due, limit)
		default:
			delete(b.suspects, a)
		}
	}
	b.forgetOld(now)
	return due
}

// takeTurn inserts s in due, of which only the first ones matter.
func (s *suspect) takeTurn(due []*suspect, limit int) []*suspect {
	if n := len(due); n == limit && (n == 0 || s.compare(due[n-1]) >= 0) {
		return due
	}
	i, _ := slices.BinarySearchFunc(due, s, (*suspect).compare)
	due = slices.Insert(due, i, s)
	return due[:min(len(due), limit)]
}

func (s *suspect) compare(t *suspect) int {
	return cmp.Or(cmp.Compare(s.class(), t.class()), s.due.Compare(t.due), s.first.Compare(t.first))
}

func (s *suspect) class() int {
	switch {
	case s.suspected() && s.dials > 0:
		return 0
	case s.byNode:
		return 2
	}
	return 1
}

// back ends the silence of s: it answers.
func (b *Box) back(s *suspect, now time.Time) {
	s.clear(now)
	s.out, s.until, s.outs, b.changed = time.Time{}, time.Time{}, 0, true
}

// try ends the silence of s to see what clients say.
func (b *Box) try(s *suspect, now time.Time) {
	length := s.until.Sub(s.out)
	s.clear(now)
	s.out, s.until, b.changed = time.Time{}, now.Add(2*length), true
}

// leaveOut makes s silent.
func (b *Box) leaveOut(a service.Address, s *suspect, now time.Time) {
	first, longest := trial, longestTrial
	s.why = fmt.Sprintf("%d dials of this node got no answer, and others did", s.dials)
	if s.clientsOnly {
		first, longest = trialByClients, longestTrialByClients
		s.why = fmt.Sprintf("%d connections got no answer, and others did", s.flows)
	}
	if s.byNode {
		s.why += "; others of its node are silent"
	}
	s.until = now.Add(min(first<<min(s.outs, 10), longest))
	s.out, s.lastOut, s.since, s.rounds, b.changed = now, now, s.first, 0, true
	s.outs++
	s.due = now.Add(jitter(pause))
	b.fresh = append(b.fresh, a)
}

// jitter returns up to a fifth less.
func jitter(d time.Duration) time.Duration { return d - rand.N(d/5) }

// batch is a round of dials to one suspect, and to controls: others that should answer.
type batch struct {
	of       service.Address
	silent   bool // it was when this began
	started  time.Time
	groups   []*group
	controls []service.Address
	patience time.Duration
	pending  int
}

// group is the dials to one endpoint. The first one of a batch is for the suspect.
type group struct {
	to             service.Address
	sent, answered int
}

// begin dials a suspect, and controls if it is not silent yet. It returns false if the
// second has no room for it.
func (b *Box) begin(ctx context.Context, s *suspect, now time.Time) bool {
	b.mu.Lock()
	a, port, room := s.address, s.port, b.room(now)
	b.mu.Unlock()
	peers, alike := b.options.Peers(a, port)
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case len(peers) == 0:
		b.spend(now, 1)
		b.alone(s, now)
		return true
	case b.options.Dial == nil || !b.dialsTell(s, now):
		b.spend(now, 1)
		b.clientsDecide(a, s, now)
		return true
	}
	x := &batch{of: a, silent: s.silent(), started: now}
	n := leastDials
	if s.suspected() && (s.dials > 0 || s.flows > 1) {
		n = max(b.needed(now)-s.dials, 1)
	}
	if n+mostControls*controlDials > room {
		return false
	}
	x.add(a, n)
	if s.suspected() && alike {
		b.addControls(x, peers)
	}
	b.spend(now, x.pending)
	s.busy, s.asked, x.patience = true, x, b.patience(a, now)
	for _, to := range x.controls {
		x.patience = max(x.patience, b.patience(to, now))
	}
	for _, g := range x.groups {
		for range g.sent {
			b.running.Go(func() { b.dial(ctx, x, g) })
		}
	}
	return true
}

func (x *batch) add(a service.Address, n int) {
	x.groups = append(x.groups, &group{to: a, sent: n})
	x.pending += n
}

// alone ends the case of an endpoint that cannot be left out: it is the only one, or none
// any more.
func (b *Box) alone(s *suspect, now time.Time) {
	if s.silent() {
		b.back(s, now)
		return
	}
	s.clear(now)
}

// addControls adds two dials to each of up to three peers, those without a suspicion first. What
// another batch has just dialled is not dialled again.
func (b *Box) addControls(x *batch, peers []service.Address) {
	peers = slices.Clone(peers)
	rand.Shuffle(len(peers), func(i, j int) { peers[i], peers[j] = peers[j], peers[i] })
	slices.SortStableFunc(peers, func(p, q service.Address) int { return cmp.Compare(b.doubt(p), b.doubt(q)) })
	x.controls = peers[:min(len(peers), mostControls)]
	for _, p := range x.controls {
		c := b.controls[p]
		if x.started.Sub(c.started) < dialTime/3 {
			continue
		}
		c.started = x.started
		b.controls[p] = c
		x.add(p, controlDials)
	}
}

// doubt orders controls.
func (b *Box) doubt(a service.Address) int {
	switch s := b.suspects[a]; {
	case s == nil:
		return 0
	case s.silent():
		return 2
	case s.suspected():
		return 1
	}
	return 0
}

func (b *Box) dial(ctx context.Context, x *batch, g *group) {
	ctx, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	began := time.Now()
	verdict := time.AfterFunc(x.patience, func() { b.dialled(x, g, false) })
	answered := b.options.Dial(ctx, g.to)
	took := time.Since(began)
	if verdict.Stop() {
		b.dialled(x, g, answered)
	}
	if !answered || took <= dialTime {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if took < time.Second || took > 1200*time.Millisecond { // else the SYN was lost, and TCP sent another one
		b.late[g.to] = late{took, time.Now()}
	}
	if s := b.suspects[g.to]; s != nil {
		s.answered = time.Now()
		b.signal()
	}
}

// dialled takes the outcome of a dial.
func (b *Box) dialled(x *batch, g *group, answered bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if answered {
		g.answered++
		c := b.controls[g.to]
		c.answered, c.started = later(c.answered, x.started), later(c.started, x.started)
		b.controls[g.to] = c
	}
	if x.pending--; x.pending == 0 {
		b.finished = append(b.finished, x)
		b.signal()
	}
}

// judge decides what a batch means for its suspect.
func (b *Box) judge(x *batch, now time.Time) {
	for _, g := range x.groups {
		b.countLoss(now, g.sent, g.answered)
	}
	s := b.suspects[x.of]
	if s == nil { // the Box has stopped
		return
	}
	s.busy = false
	if x.silent != s.silent() { // a client was answered meanwhile
		return
	}
	s.rounds++
	switch own := x.groups[0]; {
	case s.silent() && (own.answered > 0 || s.answered.After(s.out)):
		b.back(s, now)
	case s.silent():
		s.due = now.Add(jitter(min(pause<<min(s.rounds, 10), redial)))
	case own.answered > 0:
		s.exonerate(now)
	case s.answered.After(s.first):
		s.clear(now)
	case !b.controlAnswered(x):
		s.dials = 0
		b.clientsDecide(x.of, s, now)
	default:
		s.dials += own.sent
		s.due = now // more, if this is not enough
		if s.dials >= b.needed(now) {
			s.clientsOnly = false
			b.leaveOut(x.of, s, now)
		}
	}
}

func (b *Box) controlAnswered(x *batch) bool {
	return slices.ContainsFunc(x.controls, func(p service.Address) bool {
		at := b.controls[p].answered
		return !at.IsZero() && !at.Before(x.started.Add(-dialTime/3))
	})
}

// dialsTell reports whether it matters if dials to s are answered. Others than TCP endpoints
// refuse them, so that they tell of the host alone: that a silent one may answer again, and
// what silent ones on the node have led to. Over UDP clients must wait as well, because many
// servers answer nobody.
func (b *Box) dialsTell(s *suspect, now time.Time) bool {
	switch {
	case s.address.Protocol == service.TCP:
		return true
	case s.silent():
		return !s.clientsOnly
	}
	if s.address.Protocol == service.UDP {
		return b.clientsSay(s, now)
	}
	return s.byNode
}

// heard is for an undecided endpoint that enough clients accuse.
func (b *Box) heard(a service.Address, s *suspect, now time.Time) {
	if a.Protocol == service.UDP {
		s.undecided, s.due = false, now // for dials
		return
	}
	s.clientsOnly = true
	b.leaveOut(a, s, now)
}

// clientsDecide is for endpoints of which dials say nothing, because a policy may block the
// node, or for protocols that it does not dial. As many connections must have got no answer
// as dials would have to, and none one. Only clients count that another endpoint has
// answered: a policy may block the others. UDP is never left to them: whoever sends what a
// server ignores would decide.
func (b *Box) clientsDecide(a service.Address, s *suspect, now time.Time) {
	udp, say := a.Protocol == service.UDP, b.clientsSay(s, now)
	switch {
	case s.silent():
		s.due = s.until
	case udp && (say || b.accusers(s) == 0 && now.Sub(s.first) > hold):
		s.exonerate(now)
	case say:
		b.heard(a, s, now)
	case s.byNode && !udp || now.Sub(s.last) > hold:
		s.clear(now)
	default:
		s.undecided = true
		s.due = now.Add(min(pause<<min(s.rounds, 10), 8*pause))
	}
}

// clientsSay reports whether as many clients accuse s as dials would be needed. Over UDP dials
// follow, so fewer do, and one where others of the node are silent: a policy may drop SYNs to
// an endpoint that answers.
func (b *Box) clientsSay(s *suspect, now time.Time) bool {
	enough := leastDials
	switch {
	case s.address.Protocol != service.UDP:
		enough = b.needed(now)
	case s.byNode:
		enough = 1
	}
	return b.accusers(s) >= enough
}

// accusers is how many connections got no answer of clients that another endpoint answered
// since: if all fall silent, the answers before say nothing.
func (b *Box) accusers(s *suspect) int {
	n := 0
	for c, flows := range s.clients {
		if b.answers[clientOf{s.port, c}].After(s.first) {
			n += flows
		}
	}
	return n
}

// lookAtNode suspects all endpoints at the address of a silent one, and all of a node that has
// two. It looks at one node at a time, as SameNode may read all slices.
func (b *Box) lookAtNode(now time.Time) {
	b.mu.Lock()
	if len(b.fresh) == 0 || now.Sub(b.nodeLook) < 10*pace || b.options.SameNode == nil {
		b.mu.Unlock()
		return
	}
	a := b.fresh[0]
	b.nodeLook = now
	b.mu.Unlock()
	same := b.options.SameNode(a)
	b.mu.Lock()
	defer b.mu.Unlock()
	silent := 0
	for x := range same {
		if s := b.suspects[x]; x != a && s != nil && s.silent() {
			silent++
		}
	}
	b.fresh = slices.DeleteFunc(b.fresh, func(x service.Address) bool { _, here := same[x]; return here || x == a })
	for x, port := range same {
		if silent > 0 || x.Addr == a.Addr {
			b.suspectOfNode(x, port, now)
		}
	}
	b.signal()
}

// suspectOfNode makes a suspect of an endpoint, unless it is one that will be dialled anyway.
func (b *Box) suspectOfNode(a service.Address, port service.PortName, now time.Time) {
	s := b.suspects[a]
	switch {
	case s == nil && len(b.suspects) >= most, s != nil && (s.silent() || s.suspected() && a.Protocol == service.TCP):
		return
	case s == nil:
		s = &suspect{address: a}
		b.suspects[a] = s
	case s.suspected():
		s.undecided, s.due = false, now
	}
	s.port, s.first, s.last, s.byNode = port, now, now, true
}
