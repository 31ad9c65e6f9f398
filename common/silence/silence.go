// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package silence decides which endpoints do not answer. Evidence leads to a suspicion,
// whoever caused it. Then the node dials the endpoint and others of its Service port. Only
// an endpoint that does not answer while others do counts as silent. Over UDP and SCTP dials
// tell of its host. The package knows no system: others find evidence, dial, and leave
// endpoints out.
package silence

import (
	"context"
	"maps"
	"math"
	"net/netip"
	"sync"
	"time"

	"kubeproxy/common/service"
)

// Kind is what an Evidence says.
type Kind uint8

// The kinds.
const (
	Unanswered  Kind = iota // the first packet of a client got no answer for 200 ms or more
	Answered                // it got one
	Unreachable             // the node knows no way there: no route, a neighbour that failed, ICMP
)

// Evidence is what the node saw of an endpoint. Each connection is told at most once as
// Unanswered.
type Evidence struct {
	Endpoint service.Address
	Port     service.PortName // that the client used
	Client   netip.Addr       // invalid if unknown
	At       time.Time        // when it was seen
	Kind     Kind
}

// Record is an endpoint that counts as silent.
type Record struct {
	Since time.Time // of the first evidence
	Why   string    // one clause
	// Until is when it is used again even if it does not answer the node.
	Until time.Time
}

// Options are what a Box needs from others. Functions are called from one goroutine,
// except for Dial.
type Options struct {
	// Dial sends one SYN to an endpoint, and says whether anything came back before the
	// context ended: a refusal is an answer. One of another protocol than TCP refuses it,
	// so that dials tell whether its host answers. Without Dial clients alone decide.
	Dial func(context.Context, service.Address) bool
	// Peers returns some other endpoints of a Service port that should answer. No result
	// means that the endpoint is not one, is the only one, or is not to be looked at. Alike
	// means that whoever may connect to them from this node may connect to the endpoint:
	// policies may differ for pods of the own node.
	Peers func(service.Address, service.PortName) (all []service.Address, alike bool)
	// SameNode returns endpoints on the node of this one, bounded.
	SameNode func(service.Address) map[service.Address]service.PortName
	// Changed is called with all that count as silent, after changes, ten times a second at
	// most.
	Changed func(map[service.Address]Record)
}

const (
	dialTime  = 300 * time.Millisecond // how long an answer may take, or twice what late ones took
	longest   = 2 * time.Second        // it is waited for one, which tells that the endpoint lives
	lateTime  = time.Minute            // a late one is remembered
	perSecond = 200                    // dials at most
	most      = 4096                   // suspects, and clients whose answers are kept
	pace      = 10 * time.Millisecond  // between two looks at the suspects
	pause     = time.Second            // between two rounds of dials to one endpoint
	redial    = 9 * time.Second        // the longest pause between dials to a silent one
	hold      = 10 * time.Second       // at most one change to silent in it; evidence is forgotten after it

	leastDials, mostDials      = 3, 24
	mostControls, controlDials = 3, 2

	// A client that accuses an endpoint which answers is not heard for a while, as a policy may
	// block it: the first time this long, and longer while it goes on.
	doubt, longestDoubt = time.Second, 30 * time.Second
	chance              = 1e-6 // that all dials to an endpoint that answers are lost
	mostClients         = 32   // that are kept of a suspect

	// trial and trialByClients are after what time a silent endpoint is used again although
	// dials to it fail, the first time: a policy may admit clients and not the node. The
	// time doubles while clients get no answer.
	trial, longestTrial                   = 2 * time.Minute, time.Hour
	trialByClients, longestTrialByClients = hold, 8 * hold
)

// Box holds the suspects. All methods may be called from any goroutine.
type Box struct {
	options Options
	wake    chan struct{}
	running sync.WaitGroup // dials

	mu       sync.Mutex
	suspects map[service.Address]*suspect
	answers  map[clientOf]time.Time // the latest answer to a client, while there are suspects
	finished []*batch
	// controls have the start of the latest round of dials, and of the latest that was
	// answered. Both are forgotten soon.
	controls map[service.Address]control
	late     map[service.Address]late
	dials    []time.Time // of the last second; a question to Peers without dials counts as one
	loss     [8]bin
	fresh    []service.Address // silent ones whose nodes are not looked at yet
	nodeLook time.Time
	changed  bool
	told     time.Time // when Changed was called
}

// clientOf is a client of a Service port.
type clientOf struct {
	port   service.PortName
	client netip.Addr
}

type control struct{ started, answered time.Time }

// late is what the latest answer after dialTime took.
type late struct {
	took time.Duration
	at   time.Time
}

// bin counts dials to endpoints that answered one in the same round, for ten seconds.
type bin struct {
	at         int64
	sent, lost int
}

// New returns a Box without suspects. Run makes it work.
func New(o Options) *Box {
	return &Box{
		options: o, wake: make(chan struct{}, 1), suspects: map[service.Address]*suspect{},
		answers: map[clientOf]time.Time{}, controls: map[service.Address]control{}, late: map[service.Address]late{},
	}
}

// Observe takes an Evidence. It is cheap, and never waits for the network.
func (b *Box) Observe(e Evidence) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.suspects[e.Endpoint]
	switch {
	case e.Kind == Answered && len(b.suspects) == 0:
		return
	case e.Kind == Answered:
		if x := (clientOf{e.Port, e.Client}); len(b.answers) < most || !b.answers[x].IsZero() {
			b.answers[x] = e.At
		}
		if s == nil {
			return
		}
		s.answered = e.At
	case s == nil && len(b.suspects) >= most:
		return
	default:
		if s == nil {
			s = &suspect{address: e.Endpoint}
			b.suspects[e.Endpoint] = s
		}
		b.makeRoom(s, e)
		s.accuse(e)
	}
	b.signal()
}

// makeRoom forgets a client of s that nobody answered lately for one that somebody did, as
// only these count.
func (b *Box) makeRoom(s *suspect, e Evidence) {
	if len(s.clients) < mostClients || b.answers[clientOf{e.Port, e.Client}].IsZero() {
		return
	}
	for c := range s.clients {
		if b.answers[clientOf{s.port, c}].IsZero() {
			delete(s.clients, c)
			return
		}
	}
}

func (b *Box) signal() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// Records returns the endpoints that count as silent.
func (b *Box) Records() map[service.Address]Record {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.records()
}

// Late reports whether answers of an endpoint may be late: they were lately, or no other one of
// its port answers this node in time either, which dials them as clients wait.
func (b *Box) Late(a service.Address) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	if b.patience(a, now) > dialTime {
		return true
	}
	s := b.suspects[a]
	if s == nil || s.asked == nil || now.Sub(s.asked.started) > hold || now.Sub(s.asked.started) < dialTime/2 {
		return false
	}
	x := s.asked
	return len(x.controls) > 0 && x.groups[0].answered == 0 && !b.controlAnswered(x)
}

// patience is how long a dial to an endpoint may take.
func (b *Box) patience(a service.Address, now time.Time) time.Duration {
	if l := b.late[a]; now.Sub(l.at) < lateTime {
		return min(2*l.took, longest)
	}
	return dialTime
}

func (b *Box) records() map[service.Address]Record {
	all := map[service.Address]Record{}
	for a, s := range b.suspects {
		if s.silent() {
			all[a] = Record{s.since, s.why, s.until}
		}
	}
	return all
}

// Undecided returns the endpoints of which dials do not say enough, silent ones too, with the
// Service port of their clients: what clients see decides.
func (b *Box) Undecided() map[service.Address]service.PortName {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := map[service.Address]service.PortName{}
	for a, s := range b.suspects {
		if s.silent() && s.clientsOnly || s.suspected() && (s.undecided || a.Protocol == service.UDP) {
			all[a] = s.port
		}
	}
	return all
}

// Run works until ctx ends. Then nothing is silent, and Changed has been told.
func (b *Box) Run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-b.wake:
		case <-timer.C:
		}
		timer.Reset(b.step(ctx))
		rest(ctx, b.breath())
	}
	b.running.Wait()
	b.mu.Lock()
	had := len(b.records()) > 0
	clear(b.suspects)
	b.mu.Unlock()
	if had {
		b.options.Changed(map[service.Address]Record{})
	}
}

// breath is the time between two looks at the suspects: longer if they are many.
func (b *Box) breath() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	return pace * time.Duration(1+len(b.suspects)/512)
}

func rest(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// step judges what has ended, begins what is due, and returns when to look again if
// nothing happens before.
func (b *Box) step(ctx context.Context) time.Duration {
	now := time.Now()
	b.mu.Lock()
	for _, x := range b.finished {
		b.judge(x, now)
	}
	b.finished = nil
	due := b.advance(now)
	b.mu.Unlock()
	for _, s := range due {
		if !b.begin(ctx, s, now) {
			break
		}
	}
	b.lookAtNode(now)
	b.mu.Lock()
	var all map[service.Address]Record
	if b.changed && now.Sub(b.told) >= 10*pace {
		b.changed, b.told, all = false, now, b.records()
	}
	next := b.next(now)
	b.mu.Unlock()
	if all != nil {
		b.options.Changed(all)
	}
	return next
}

// next returns the time to the next step.
func (b *Box) next(now time.Time) time.Duration {
	if len(b.suspects) == 0 && !b.changed {
		clear(b.answers)
		clear(b.controls)
		return time.Hour
	}
	soonest := now.Add(time.Hour)
	if len(b.fresh) > 0 {
		soonest = b.nodeLook.Add(10 * pace)
	}
	if t := b.told.Add(10 * pace); b.changed && t.Before(soonest) {
		soonest = t
	}
	for _, s := range b.suspects {
		if t := s.nextLook(); t.Before(soonest) && !s.busy {
			soonest = t
		}
	}
	if b.room(now) < leastDials+mostControls*controlDials {
		return max(soonest.Sub(now), 5*pace)
	}
	return max(soonest.Sub(now), pace)
}

// spend counts n dials.
func (b *Box) spend(now time.Time, n int) {
	for range n {
		b.dials = append(b.dials, now)
	}
}

// room is how many dials the last second still has.
func (b *Box) room(now time.Time) int {
	old := 0
	for old < len(b.dials) && now.Sub(b.dials[old]) >= time.Second {
		old++
	}
	b.dials = b.dials[old:]
	return perSecond - len(b.dials)
}

// needed is how many dials without an answer prove silence: so many that by the losses of
// the last minute an endpoint that answers would fail all of them by a chance of 1e-6. The
// share of losses is taken from above, so few dials prove little: without any it is 0.36,
// and none of 300 lost makes it 0.01.
func (b *Box) needed(now time.Time) int {
	sent, lost := 0.0, 0.0
	for _, x := range b.loss {
		if now.Unix()/10-x.at <= 6 {
			sent, lost = sent+float64(x.sent), lost+float64(x.lost)
		}
	}
	share := min((lost+2*math.Sqrt(lost)+3)/(sent+8.3), 0.99)
	return min(max(int(math.Ceil(math.Log(chance)/math.Log(share))), leastDials), mostDials)
}

// countLoss counts a round of dials to one endpoint. One that was not answered at all says
// nothing about losses. Of others one answer is left out, which had to be there.
func (b *Box) countLoss(now time.Time, sent, answered int) {
	if answered == 0 {
		return
	}
	at := now.Unix() / 10
	x := &b.loss[at%int64(len(b.loss))]
	if x.at != at {
		*x = bin{at: at}
	}
	x.sent, x.lost = x.sent+sent-1, x.lost+sent-answered
}

// forgetOld bounds what is kept of clients and controls.
func (b *Box) forgetOld(now time.Time) {
	maps.DeleteFunc(b.answers, func(_ clientOf, at time.Time) bool { return now.Sub(at) > hold })
	maps.DeleteFunc(b.controls, func(_ service.Address, c control) bool { return now.Sub(c.started) > hold })
	maps.DeleteFunc(b.late, func(_ service.Address, l late) bool { return now.Sub(l.at) > lateTime })
}
