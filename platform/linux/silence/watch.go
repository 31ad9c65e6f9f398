// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package silence sees which endpoints do not answer: it looks at connection tracking for
// connections through Services whose first packet got no answer, and dials endpoints.
// Package common/silence decides what that means. Before the client repeats that packet, the
// entry is deleted, so that it draws an endpoint again.
package silence

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/common/silence"
	"kubeproxy/platform/linux/conntrack"
)

const (
	// busyPause is the time between two looks while connections wait for an answer. One that
	// waits for that long is unanswered.
	busyPause = 200 * time.Millisecond
	// idlePause is the time between two looks otherwise. A client repeats its first packet
	// after a second. Until then two looks and a dial should be done.
	idlePause = 2 * busyPause
	// lonelyPause is the time between two looks for work if no Service has two endpoints.
	lonelyPause = 5 * time.Second
	// share is the part of a processor that looks take at most, and hurry while connections
	// through Services get no answer: rush first, for burst, which is saved up otherwise. UDP has
	// only these savings, which are a part of the share, as many servers answer nobody.
	share, savings, hurry, rush = 125, 500, 25, 10
	burst                       = time.Second
	// urgency is how long one of these connections matters for that.
	urgency = 2 * time.Second

	// maxEndpoints and maxFlows bound what is kept: endpoints with waiting connections, and
	// connections of each, or moreFlows while the endpoints have maxMore in all beyond the
	// first. maxPorts are looked at for answers, each with maxAnswers
	// connections: in up to maxWalks of the table by their port numbers, or one of all that
	// have an answer. As many UDP flows that were told are remembered.
	maxEndpoints, maxFlows         = 4096, 8
	moreFlows, maxMore             = 256, 8192
	maxPorts, maxAnswers, maxWalks = 4, 1 << 15, 2

	// drawAfter is when a connection without an answer draws again. Its client repeats the
	// first packet after a second (RFC 6298, 2.1), and timers of Linux are never early. It was
	// seen for drawSeen at least. The next repetition comes after two seconds more, so one that
	// drew before, or whose answer may be late, has time. At most maxDraws do it in each drawPause.
	drawAfter, drawSeen = 900 * time.Millisecond, 500 * time.Millisecond
	drawAgain, drawLate = 1900 * time.Millisecond, 2900 * time.Millisecond
	maxDraws, drawPause = 64, 50 * time.Millisecond
	// A client draws mostDraws times in drawMemory, as endpoints may be slow.
	mostDraws, drawMemory = 6, time.Minute
)

// Watch looks for connections without an answer.
type Watch struct {
	Families []service.Family
	// Latest returns the snapshot that tells which connections go through a Service.
	Latest func() *service.Snapshot
	// Wanted reports whether endpoints of a Service port that do not answer matter.
	Wanted func(service.PortName) bool
	// Undecided returns the endpoints for which it matters whether clients get answers.
	Undecided func() map[service.Address]service.PortName
	// Direct is whether clients of a Service may connect to its endpoints themselves, as with
	// socket acceleration. Others tell which of them got no answer.
	Direct bool
	// Observe gets each connection without an answer, once, and new ones with an answer to
	// the ports of Undecided.
	Observe func(silence.Evidence)
	// Draws reports whether connections without an answer draw again, and Drawn gets those
	// that do, with the endpoint that did not answer.
	Draws func() bool
	Drawn func(service.Address)
	// LetGo makes the rules forget the endpoint of a client with session affinity, if it is this one.
	LetGo func(p *service.Port, client netip.Addr, endpoint service.Address)
	// Late reports whether answers of an endpoint may be late.
	Late func(service.Address) bool

	cpuTime func() time.Duration // that the calling thread has used
	driver  conntrack.Driver
	waiting map[service.Address][]*flow // by endpoint
	fresh   int                         // how many of them are not told yet
	more    int                         // how many are kept beyond maxFlows
	draws   []*flow                     // that will draw again, by time
	drawn   map[client]draws
	// late is when endpoints answered whose entry was about to be deleted, or what its client drew before.
	// Those for which one waited in vain have the zero time, until they answer so themselves.
	late   map[service.Address]time.Time
	told   map[uint32]int // the look that saw them last, by the numbers that the kernel gives UDP flows
	looks  int
	looked time.Time // when the latest look began
	urgent time.Time // until when looks are
	likely time.Time // until when they are as far as savings last
	known  *service.Snapshot
	useful bool          // see isUseful, of known
	asked  time.Time     // when it was
	used   time.Duration // see cpuTime
	owed   time.Duration // until looks have taken no more than their share
	saved  time.Duration // of the processor
	second bool          // the next look is the second of a pair
	// answered are the connections with an answer to the ports of Undecided, unless they are
	// too many, by the numbers that the kernel gives them.
	answered map[portOf]map[uint32]bool
}

// flow is a connection whose client waits.
type flow struct {
	conntrack.Flow
	place  int       // among those to its endpoint
	began  time.Time // at the earliest
	since  time.Time // of the look that saw it first
	look   int       // the last one that saw it
	told   bool
	drawAt time.Time // when it draws again, zero if it does not
	port   *service.Port
}

func (f *flow) client() client            { return client{f.Src, f.Dst} }
func (f *flow) endpoint() service.Address { return service.AddressOf(f.Protocol, f.ReplySrc) }

// client is one that repeats its first packet, and draws how often it drew again.
type (
	client struct{ from, to netip.AddrPort }
	draws  struct {
		times int
		at    time.Time // the latest
		from  service.Address
	}
)

// run looks until ctx ends. An error means that this kernel cannot dump its table.
func (w *Watch) run(ctx context.Context) error {
	w.waiting, w.drawn, w.told = map[service.Address][]*flow{}, map[client]draws{}, map[uint32]int{}
	w.late, w.saved, w.used = map[service.Address]time.Time{}, burst, w.cpuTime()
	w.looked = time.Now().Add(-idlePause)
	for {
		err := w.look(ctx, time.Now())
		if ctx.Err() != nil || errors.Is(err, errors.ErrUnsupported) {
			return err
		}
		before := w.used
		w.used = w.cpuTime()
		w.drawUntil(ctx, time.Now().Add(w.next(w.used-before)))
		if ctx.Err() != nil {
			return nil
		}
	}
}

// next returns the time until the next look, after one that took cost. Looks that find
// connections come in pairs, because clients repeat their first packet soon: the second one
// is on credit.
func (w *Watch) next(cost time.Duration) time.Duration {
	pause := w.pause()
	switch urgent := w.looked.Before(w.urgent); {
	case w.looked.Before(later(w.urgent, w.likely)) && w.saved >= cost:
		w.saved -= cost
		return max(pause, rush*cost)
	case urgent:
		return max(pause, hurry*cost)
	}
	w.owed += share * cost
	w.second = !w.second && w.fresh > 0
	if !w.second {
		pause = max(pause, w.owed)
	}
	w.owed = max(w.owed-pause, 0)
	w.saved = min(w.saved+pause/savings, burst)
	return pause
}

func (w *Watch) pause() time.Duration {
	switch {
	case !w.useful:
		return lonelyPause
	case w.fresh == 0 && !w.looked.Before(later(w.urgent, w.likely)):
		return idlePause
	}
	return busyPause
}

// look looks once. The next one sees what an error hides.
func (w *Watch) look(ctx context.Context, now time.Time) error {
	if s := w.Latest(); s != w.known || now.Sub(w.asked) >= lonelyPause { // Wanted may have changed
		w.known, w.useful, w.asked = s, w.isUseful(s), now
	}
	w.looks++
	began := w.looked
	w.looked = now
	if w.useful {
		see := func(x conntrack.Flow) { w.see(x, began, now) }
		if err := w.driver.Dump(ctx, conntrack.Filter{AllFamilies: true, OneWay: true}, see); err != nil {
			return err
		}
	}
	w.tell(now)
	return w.lookForAnswers(ctx, now)
}

// isUseful reports whether s has a port with two endpoints, so that one can be left out, or
// drawn instead of the other.
func (w *Watch) isUseful(s *service.Snapshot) bool {
	for _, f := range w.Families {
		for p := range s.Ports(f) {
			if max(len(p.Cluster), len(p.Local)) > 1 && (w.Wanted(p.Name) || p.Name.Protocol != service.UDP && w.Draws()) {
				return true
			}
		}
	}
	return false
}

// see records an entry of a connection that waits. Its endpoint differs from where the
// client sent it. An entry that was deleted may have the ID of the next one.
func (w *Watch) see(x conntrack.Flow, began, now time.Time) {
	waits := x.Opening() || x.Protocol == service.UDP && !x.Answered
	if !waits || x.ReplySrc == x.Dst {
		return
	}
	if _, told := w.told[x.ID]; told && x.Protocol == service.UDP {
		w.told[x.ID] = w.looks
		return
	}
	e := service.AddressOf(x.Protocol, x.ReplySrc)
	have := w.waiting[e]
	i := slices.IndexFunc(have, func(f *flow) bool { return f.ID == x.ID && f.Src == x.Src && f.Dst == x.Dst && f.look >= w.looks-1 })
	switch {
	case i >= 0:
		have[i].look = w.looks
	case x.Protocol == service.UDP && len(w.told) >= maxAnswers:
	case len(have) >= maxFlows && (len(have) >= moreFlows || w.more >= maxMore):
	case have != nil || len(w.waiting) < maxEndpoints:
		w.waiting[e] = append(have, &flow{Flow: x, place: len(have), began: began, since: now, look: w.looks})
		if len(have) >= maxFlows {
			w.more++
		}
	}
}

// tell forgets the connections that wait no more, and tells of those that have waited for
// long enough.
func (w *Watch) tell(now time.Time) {
	due := map[service.Address][]*flow{} // by frontend
	w.fresh, w.more = 0, 0
	for e, flows := range w.waiting {
		flows = slices.DeleteFunc(flows, func(f *flow) bool {
			if f.look == w.looks-1 && !f.drawAt.IsZero() { // nobody else removes such entries
				w.late[e] = now
				from := w.drawn[f.client()].from
				if _, known := w.late[from]; !known { // its answer may have come too late
					w.late[from] = now
				}
			}
			return f.look != w.looks
		})
		if w.waiting[e] = flows; len(flows) == 0 {
			delete(w.waiting, e)
		}
		w.more += max(0, len(flows)-maxFlows)
		for _, f := range flows {
			if f.told {
				continue
			}
			if now.Sub(f.since) < busyPause {
				w.fresh++
				continue
			}
			f.told = true
			if e.Protocol == service.UDP { // it waits no more, and makes room for others
				w.told[f.ID] = w.looks
			}
			to := service.AddressOf(e.Protocol, f.Dst)
			due[to] = append(due[to], f)
		}
	}
	maps.DeleteFunc(w.told, func(_ uint32, look int) bool { return look != w.looks })
	w.draws = slices.DeleteFunc(w.draws, func(f *flow) bool { return f.look != w.looks })
	if len(due) == 0 {
		return
	}
	for _, f := range w.Families {
		for p := range w.known.Ports(f) {
			w.tellOf(p, due, now)
		}
	}
	slices.SortFunc(w.draws, func(f, g *flow) int { return f.drawAt.Compare(g.drawAt) })
}

// tellOf tells of the connections to the frontends of p that lead to one of its endpoints.
// NodePorts are known by their endpoints, whichever address of the node the client used.
func (w *Watch) tellOf(p *service.Port, due map[service.Address][]*flow, now time.Time) {
	for _, x := range p.Frontends {
		a := p.Address(x)
		if x.Addr.IsValid() {
			w.tellTo(p, due[a], now)
			continue
		}
		for to, all := range due {
			if to.OnNode() == a {
				w.tellTo(p, all, now)
			}
		}
	}
}

func (w *Watch) tellTo(p *service.Port, all []*flow, now time.Time) {
	for _, f := range all {
		e := f.endpoint()
		if has(p.Cluster, e) || has(p.Local, e) {
			w.Observe(silence.Evidence{Endpoint: e, Port: p.Name, Client: f.Src.Addr(), At: now, Kind: silence.Unanswered})
		}
		if p.Name.Protocol != service.UDP && f.drawAt.IsZero() && hasOthers(p, e) && w.Draws() && w.mayDraw(f, now) {
			w.urgent, f.port = now.Add(urgency), p
			f.drawAt = later(f.began.Add(drawAfter), f.since.Add(drawSeen))
			if d := w.drawn[f.client()]; now.Sub(d.at) < drawMemory {
				f.drawAt = f.began.Add(drawAgain)
			}
			f.drawAt = later(f.drawAt, now.Add(busyPause)) // Late may know by then
			w.draws = append(w.draws, f)
		}
	}
}

// hasOthers reports whether clients of p, where e is an endpoint, may get another one.
func hasOthers(p *service.Port, e service.Address) bool {
	return len(p.Cluster) > 1 && has(p.Cluster, e) || len(p.Local) > 1 && has(p.Local, e) || len(p.Cluster) > 0 && has(p.Draining, e)
}

func (w *Watch) mayDraw(f *flow, now time.Time) bool {
	d := w.drawn[f.client()]
	return d.times < mostDraws || now.Sub(d.at) > drawMemory
}

// drawUntil deletes entries of connections when it is their time, until end.
func (w *Watch) drawUntil(ctx context.Context, end time.Time) {
	earliest, next := time.Time{}, time.Time{}
	for next.Before(end) {
		next = end
		if len(w.draws) > 0 {
			next = later(w.draws[0].drawAt, earliest)
		}
		if !reconcile.Pause(ctx, min(time.Until(next), time.Until(end))) {
			return
		}
		if next.Before(end) {
			earliest = time.Now().Add(drawPause)
			w.draw(ctx, time.Now())
		}
	}
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// draw deletes entries whose time it is, unless they got an answer by now. If they are many,
// the first ones to each endpoint come first.
func (w *Watch) draw(ctx context.Context, now time.Time) {
	due := func() int {
		n, _ := slices.BinarySearchFunc(w.draws, now, func(f *flow, t time.Time) int { return cmp.Or(f.drawAt.Compare(t), -1) })
		return n
	}
	for _, f := range w.draws[:due()] {
		if e := f.endpoint(); w.Late(e) || now.Sub(w.late[e]) < drawMemory {
			f.drawAt = later(f.drawAt, f.began.Add(drawLate))
		}
	}
	slices.SortFunc(w.draws, func(f, g *flow) int { return f.drawAt.Compare(g.drawAt) })
	n := due()
	if n == 0 {
		return
	}
	slices.SortStableFunc(w.draws[:n], func(f, g *flow) int { return cmp.Compare(f.place/maxFlows, g.place/maxFlows) })
	chosen := w.draws[:min(n, maxDraws)]
	w.draws = w.draws[len(chosen):]
	entries := make([]conntrack.Flow, len(chosen))
	for i, f := range chosen {
		entries[i], f.look = f.Flow, -1
	}
	deleted, _ := w.driver.Delete(ctx, entries) // after an error the client has to wait for longer
	for _, f := range chosen[:deleted] {        // if one was answered, perhaps that one
		w.Drawn(f.endpoint())
		if now.Sub(f.began) >= drawLate {
			w.late[f.endpoint()] = time.Time{}
		}
		d := w.drawn[f.client()]
		if now.Sub(d.at) > drawMemory {
			d.times = 0
		}
		if d.times > 0 && f.port.Affinity > 0 { // one lost packet must not end that
			w.LetGo(f.port, f.Src.Addr(), f.endpoint())
		}
		w.drawn[f.client()] = draws{d.times + 1, now, f.endpoint()}
	}
	if len(w.drawn) > maxMore {
		maps.DeleteFunc(w.drawn, func(_ client, d draws) bool { return now.Sub(d.at) > drawMemory })
	}
	if len(w.late) > maxMore {
		maps.DeleteFunc(w.late, func(_ service.Address, at time.Time) bool { return now.Sub(at) > drawMemory })
	}
}

// has reports whether one of the endpoints, which are sorted, is e.
func has(endpoints []service.Endpoint, e service.Address) bool {
	_, found := slices.BinarySearchFunc(endpoints, netip.AddrPortFrom(e.Addr, e.Port), func(x service.Endpoint, a netip.AddrPort) int { return x.Addr.Compare(a) })
	return found
}

// portOf is a Service port in one family.
type portOf struct {
	family service.Family
	name   service.PortName
}

// lookForAnswers tells of connections to the ports of Undecided that got an answer since the
// look before.
func (w *Watch) lookForAnswers(ctx context.Context, now time.Time) error {
	before := w.answered
	w.answered = map[portOf]map[uint32]bool{}
	var filters []conntrack.Filter
	for e, name := range w.Undecided() {
		x := portOf{e.Family, name}
		p := w.known.Port(e.Family, name)
		if p == nil || w.answered[x] != nil || len(w.answered) == maxPorts {
			continue
		}
		w.answered[x] = map[uint32]bool{}
		for _, f := range p.Frontends {
			filter := conntrack.Filter{Family: p.Family, Protocol: p.Name.Protocol, Port: f.Port}
			if !slices.Contains(filters, filter) {
				filters = append(filters, filter)
			}
		}
	}
	if len(filters) > maxWalks || w.Direct && len(filters) > 0 {
		filters = []conntrack.Filter{{AllFamilies: true, Answered: true}}
	}
	for _, f := range filters {
		if err := w.driver.Dump(ctx, f, func(x conntrack.Flow) { w.seeAnswer(x, before, now) }); err != nil {
			w.answered = nil
			return err
		}
	}
	for x, all := range w.answered {
		if x.name.Protocol == service.UDP && len(all) > 0 { // else its servers may answer nobody
			w.likely = now.Add(urgency)
		}
	}
	maps.DeleteFunc(w.answered, func(_ portOf, all map[uint32]bool) bool { return len(all) > maxAnswers })
	return nil
}

// seeAnswer records an entry with an answer, and tells of it if it is not in before, unless
// there was none.
func (w *Watch) seeAnswer(x conntrack.Flow, before map[portOf]map[uint32]bool, now time.Time) {
	e := service.AddressOf(x.Protocol, x.ReplySrc)
	for of, all := range w.answered {
		if !x.Answered || x.Protocol != of.name.Protocol || e.Family != of.family || all[x.ID] || len(all) > maxAnswers {
			continue
		}
		p := w.known.Port(of.family, of.name)
		to := slices.ContainsFunc(p.Frontends, func(f service.Frontend) bool { return f.Port == x.Dst.Port() })
		if a := service.AddressOf(x.Protocol, x.Dst); w.Direct && (has(p.Cluster, a) || has(p.Local, a)) {
			to = true
		}
		if !to || !has(p.Cluster, e) && !has(p.Local, e) {
			continue
		}
		if all[x.ID] = true; before[of] != nil && !before[of][x.ID] {
			w.Observe(silence.Evidence{Endpoint: e, Port: of.name, Client: x.Src.Addr(), At: now, Kind: silence.Answered})
		}
	}
}

// Dial sends a first packet of TCP to an endpoint and reports whether anything came back before
// ctx ended. A refusal is an answer, and the lack of a route is none. The server does not
// notice: a reset comes instead of the acknowledgement with which it would accept.
func Dial(ctx context.Context, e service.Address) bool {
	d := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error { return c.Control(delayAck) }}
	c, err := d.DialContext(ctx, "tcp", netip.AddrPortFrom(e.Addr, e.Port).String())
	if err != nil {
		return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET)
	}
	_ = c.(*net.TCPConn).SetLinger(0) // it is closed anyway
	_ = c.Close()
	return true
}

// OfRelay returns what an attempt of a listener to reach an endpoint says, and whether it
// says anything.
func OfRelay(name service.PortName, endpoint netip.AddrPort, err error) (silence.Evidence, bool) {
	e := silence.Evidence{Endpoint: service.AddressOf(name.Protocol, endpoint), Port: name, At: time.Now()}
	switch {
	case !endpoint.IsValid():
		return e, false
	case err == nil || errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET):
		e.Kind = silence.Answered
	case timedOut(err):
		e.Kind = silence.Unanswered
	case errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.ENETUNREACH):
		e.Kind = silence.Unreachable
	default:
		return e, false
	}
	return e, true
}

func timedOut(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}
