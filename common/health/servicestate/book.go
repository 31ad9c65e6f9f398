// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package servicestate tells for each Service what of it is programmed, since
// when and why not, from snapshots and the results of rounds for them. It
// neither programs nor judges: whether the proxy is healthy is left to
// package health.
package servicestate

import (
	"slices"
	"sync"
	"time"

	"kubeproxy/common/health"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

// Problem is something in a Service that had to be left out or guessed.
type Problem struct {
	Namespace, Name string // of the Service
	Field, Message  string
}

// Book holds what is known. All methods may be called from any goroutine.
type Book struct {
	// Latest, if set, returns what is wanted now, so that what no round has
	// been for yet shows. It may return nil.
	Latest func() *service.Snapshot
	// Problems, if set, returns what could not be used of the Services.
	Problems func() []Problem
	// Unanswered, if set, returns health checks that load balancers get no answer
	// to, each with an address in its message.
	Unanswered func() []Problem
	// Missing says why a family is not programmed at all.
	Missing map[service.Family]string

	mu      sync.Mutex
	pages   [2]page // by family
	noticed map[Problem]time.Time
}

// page is one family's part.
type page struct {
	done *service.Snapshot // in force, but for failed
	// first is when the first snapshot came into force; marks are about the
	// ports that did later, so that a quiet proxy keeps next to none.
	first  mark
	marks  map[*service.Port]mark
	failed map[service.PortName]failure
	notes  reconcile.Notes
	// without says why nothing of the family is programmed, if so.
	without string
	err     failure // a round that failed as a whole, and none since did better
}

// mark is when something came into force.
type mark struct {
	generation uint64
	at         int64 // Unix nanoseconds
}

type failure struct {
	message string
	since   time.Time
	cause   error
}

// limits reports that the dataplane can do no more for the port, ever or for now:
// what it can is in force.
func (f failure) limits() bool { return reconcile.InForce(f.cause) }

// Noticed says that a problem has come up now. One that nobody said this of
// counts from when it was first asked for.
func (b *Book) Noticed(p Problem, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.noticed == nil {
		b.noticed = map[Problem]time.Time{}
	}
	b.noticed[p] = now
}

// keep forgets when problems came up that are none any more.
func (b *Book) keep(problems []Problem) {
	old := b.noticed
	b.noticed = make(map[Problem]time.Time, len(problems))
	for _, p := range problems {
		at, ok := old[p]
		if !ok {
			at = time.Now()
		}
		b.noticed[p] = at.UTC()
	}
}

// Result takes in a round of f for a snapshot.
func (b *Book) Result(f service.Family, s *service.Snapshot, r reconcile.Result) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := &b.pages[f]
	if r.Err != nil && !health.Partial(r.Err) {
		p.err = p.err.again(r.Err, r.Start)
		return
	}
	p.err = failure{}
	failed := map[service.PortName]failure{}
	for _, e := range reconcile.Failed(r.Err) {
		failed[e.Name] = p.failed[e.Name].again(e.Err, r.Start)
	}
	p.notes, p.without = r.Notes, r.Without
	p.turn(f, s, failed, mark{s.Generation, r.Start.Add(r.Took).UnixNano()})
}

// again returns the failure that goes on, or begins, with err.
func (f failure) again(err error, at time.Time) failure {
	if f.since.IsZero() {
		f.since = at
	}
	f.message, f.cause = err.Error(), err
	return f
}

// turn notes that s is in force but for failed.
func (p *page) turn(f service.Family, s *service.Snapshot, failed map[service.PortName]failure, m mark) {
	if p.done == nil {
		p.first, p.marks = m, map[*service.Port]mark{}
	} else {
		for c := range service.Diff(p.done, s, f) {
			delete(p.marks, c.Old)
			if c.New != nil {
				p.marks[c.New] = m
			}
		}
	}
	for name, was := range p.failed {
		if port := s.Port(f, name); port != nil && !was.limits() {
			p.marks[port] = m // in force only now, or not even now
		}
	}
	p.done, p.failed = s, failed
}

// since returns when a port of p.done came into force.
func (p *page) since(port *service.Port) mark {
	if m, ok := p.marks[port]; ok {
		return m
	}
	return p.first
}

// wanted returns the snapshot to tell about.
func (b *Book) wanted() *service.Snapshot {
	if b.Latest != nil {
		if s := b.Latest(); s != nil {
			return s
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	var newest *service.Snapshot
	for _, p := range b.pages {
		if p.done != nil && (newest == nil || p.done.Generation > newest.Generation) {
			newest = p.done
		}
	}
	return newest
}

// Failing reports that a port of the Service could not be programmed in the
// latest round that got that far, or not an address of a load balancer.
func (b *Book) Failing(namespace, name string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for f, p := range b.pages {
		for n, wrong := range p.failed {
			if n.Namespace == namespace && n.Name == name && (!wrong.limits() || p.shut(p.done.Port(service.Family(f), n), wrong)) {
				return true
			}
		}
	}
	return false
}

// shut reports that a load balancer would find port closed.
func (p *page) shut(port *service.Port, wrong failure) bool {
	return port != nil && slices.ContainsFunc(port.Frontends, func(f service.Frontend) bool {
		return f.Kind == service.LoadBalancerIP && reconcile.Loses(wrong.cause, f)
	})
}
