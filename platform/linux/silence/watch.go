// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package silence sees which endpoints do not answer: it looks at connection tracking for
// connections through Services whose first packet got no answer, and dials endpoints.
// Package common/silence decides what that means.
package silence

import (
	"context"
	"errors"
	"maps"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"

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
	// share is the part of a processor that looks take at most.
	share = 100

	// maxEndpoints and maxFlows bound what is kept: endpoints with waiting connections, and
	// connections of each. maxPorts are looked at for answers, each with maxAnswers
	// connections: in up to maxWalks of the table by their port numbers, or one of all that
	// have an answer.
	maxEndpoints, maxFlows         = 4096, 8
	maxPorts, maxAnswers, maxWalks = 4, 1 << 15, 2
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

	cpuTime func() time.Duration // that the calling thread has used
	driver  conntrack.Driver
	waiting map[service.Address][]*flow // by endpoint
	fresh   int                         // how many of them are not told yet
	looks   int
	known   *service.Snapshot
	useful  bool          // see isUseful, of known
	asked   time.Time     // when it was
	owed    time.Duration // until looks have taken no more than their share
	second  bool          // the next look is the second of a pair
	// answered are the connections with an answer to the ports of Undecided, unless they are
	// too many, by the numbers that the kernel gives them.
	answered map[portOf]map[uint32]bool
}

// flow is a connection whose client waits.
type flow struct {
	client, to netip.AddrPort
	since      time.Time
	look       int // the last one that saw it
	told       bool
}

// run looks until ctx ends. An error means that this kernel cannot dump its table.
func (w *Watch) run(ctx context.Context) error {
	w.waiting = map[service.Address][]*flow{}
	for {
		before := w.cpuTime()
		err := w.look(ctx, time.Now())
		if ctx.Err() != nil || errors.Is(err, errors.ErrUnsupported) {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(w.next(w.cpuTime() - before)):
		}
	}
}

// next returns the time until the next look, after one that took cost. Looks that find
// connections come in pairs, because the entries may last for a second only: the second one
// is on credit.
func (w *Watch) next(cost time.Duration) time.Duration {
	w.owed += share * cost
	w.second = !w.second && w.fresh > 0
	pause := w.pause()
	if !w.second {
		pause = max(pause, w.owed)
	}
	w.owed = max(w.owed-pause, 0)
	return pause
}

func (w *Watch) pause() time.Duration {
	switch {
	case !w.useful:
		return lonelyPause
	case w.fresh == 0:
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
	if w.useful {
		if err := w.driver.Dump(ctx, conntrack.Filter{AllFamilies: true, OneWay: true}, func(x conntrack.Flow) { w.see(x, now) }); err != nil {
			return err
		}
	}
	w.tell(now)
	return w.lookForAnswers(ctx, now)
}

// isUseful reports whether s has a port with two endpoints, so that one can be left out.
func (w *Watch) isUseful(s *service.Snapshot) bool {
	for _, f := range w.Families {
		for p := range s.Ports(f) {
			if max(len(p.Cluster), len(p.Local)) > 1 && w.Wanted(p.Name) {
				return true
			}
		}
	}
	return false
}

// see records an entry of a connection that waits. Its endpoint differs from where the
// client sent it.
func (w *Watch) see(x conntrack.Flow, now time.Time) {
	waits := x.Opening() || x.Protocol == service.UDP && !x.Answered
	if !waits || x.ReplySrc == x.Dst {
		return
	}
	e := service.AddressOf(x.Protocol, x.ReplySrc)
	have := w.waiting[e]
	i := slices.IndexFunc(have, func(f *flow) bool { return f.client == x.Src && f.to == x.Dst })
	switch {
	case i >= 0:
		have[i].look = w.looks
	case len(have) < maxFlows && (have != nil || len(w.waiting) < maxEndpoints):
		w.waiting[e] = append(have, &flow{client: x.Src, to: x.Dst, since: now, look: w.looks})
	}
}

// tell forgets the connections that wait no more, and tells of those that have waited for
// long enough.
func (w *Watch) tell(now time.Time) {
	due := map[service.Address][]silence.Evidence{} // by frontend
	w.fresh = 0
	for e, flows := range w.waiting {
		flows = slices.DeleteFunc(flows, func(f *flow) bool { return f.look != w.looks })
		if w.waiting[e] = flows; len(flows) == 0 {
			delete(w.waiting, e)
		}
		for _, f := range flows {
			if f.told {
				continue
			}
			if now.Sub(f.since) < busyPause {
				w.fresh++
				continue
			}
			f.told = true
			to := service.AddressOf(e.Protocol, f.to)
			due[to] = append(due[to], silence.Evidence{Endpoint: e, Client: f.client.Addr(), At: now, Kind: silence.Unanswered})
		}
	}
	if len(due) == 0 {
		return
	}
	for _, f := range w.Families {
		for p := range w.known.Ports(f) {
			w.tellOf(p, due)
		}
	}
}

// tellOf tells of the connections to the frontends of p that lead to one of its endpoints.
// NodePorts are known by their endpoints, whichever address of the node the client used.
func (w *Watch) tellOf(p *service.Port, due map[service.Address][]silence.Evidence) {
	for _, x := range p.Frontends {
		a := p.Address(x)
		if x.Addr.IsValid() {
			w.tellTo(p, due[a])
			continue
		}
		for to, all := range due {
			if to.OnNode() == a {
				w.tellTo(p, all)
			}
		}
	}
}

func (w *Watch) tellTo(p *service.Port, all []silence.Evidence) {
	for _, e := range all {
		if has(p.Cluster, e.Endpoint) || has(p.Local, e.Endpoint) {
			e.Port = p.Name
			w.Observe(e)
		}
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
