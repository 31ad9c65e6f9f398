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

// Store holds what is known. All methods may be called from any goroutine.
type Store struct {
	// Latest, if set, returns what is wanted now, so that what no round has
	// been for yet shows. It may return nil.
	Latest func() *service.Snapshot
	// Problems, if set, returns what could not be used of the Services.
	Problems func() []Problem
	// Unanswered, if set, returns health checks that load balancers get no answer
	// to, each with an address in its message.
	Unanswered func() []Problem
	// Unavailable says why a family is not programmed at all.
	Unavailable map[service.Family]string

	mu            sync.Mutex
	families      [2]familyState // by family
	problemsSince map[Problem]time.Time
}

// familyState is one family's part.
type familyState struct {
	programmed *service.Snapshot // in force, but for failed
	// firstActivation is when the first snapshot came into force; marks are about the
	// ports that did later, so that a quiet proxy keeps next to none.
	firstActivation activation
	activations     map[*service.Port]activation
	failed          map[service.PortName]failure
	notes           reconcile.Notes
	// unavailable says why nothing of the family is programmed, if so.
	unavailable string
	err         failure // a round that failed as a whole, and none since did better
}

// activation is when something came into force.
type activation struct {
	generation uint64
	at         int64 // Unix nanoseconds
}

type failure struct {
	message string
	since   time.Time
	cause   error
}

// inForce reports that the dataplane can do no more for the port, ever or for now:
// what it can is in force.
func (f failure) inForce() bool { return reconcile.InForce(f.cause) }

// ProblemFound says that a problem has come up now. One that nobody said this of
// counts from when it was first asked for.
func (b *Store) ProblemFound(p Problem, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.problemsSince == nil {
		b.problemsSince = map[Problem]time.Time{}
	}
	b.problemsSince[p] = now
}

// pruneProblems forgets when problems came up that are none any more.
func (b *Store) pruneProblems(problems []Problem) {
	old := b.problemsSince
	b.problemsSince = make(map[Problem]time.Time, len(problems))
	for _, p := range problems {
		at, ok := old[p]
		if !ok {
			at = time.Now()
		}
		b.problemsSince[p] = at.UTC()
	}
}

// Result takes in a round of f for a snapshot.
func (b *Store) Result(f service.Family, s *service.Snapshot, r reconcile.Result) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := &b.families[f]
	if r.Err != nil && !health.OnlyPortErrors(r.Err) {
		p.err = p.err.update(r.Err, r.Start)
		return
	}
	p.err = failure{}
	failed := map[service.PortName]failure{}
	for _, e := range reconcile.PortErrors(r.Err) {
		failed[e.Name] = p.failed[e.Name].update(e.Err, r.Start)
	}
	p.notes, p.unavailable = r.Notes, r.Unavailable
	p.setProgrammed(f, s, failed, activation{s.Generation, r.Start.Add(r.Took).UnixNano()})
}

// update returns the failure that goes on, or begins, with err.
func (f failure) update(err error, at time.Time) failure {
	if f.since.IsZero() {
		f.since = at
	}
	f.message, f.cause = err.Error(), err
	return f
}

// setProgrammed notes that s is in force but for failed.
func (p *familyState) setProgrammed(f service.Family, s *service.Snapshot, failed map[service.PortName]failure, m activation) {
	if p.programmed == nil {
		p.firstActivation, p.activations = m, map[*service.Port]activation{}
	} else {
		for c := range service.Diff(p.programmed, s, f) {
			delete(p.activations, c.Old)
			if c.New != nil {
				p.activations[c.New] = m
			}
		}
	}
	for name, was := range p.failed {
		if port := s.Port(f, name); port != nil && !was.inForce() {
			p.activations[port] = m // in force only now, or not even now
		}
	}
	p.programmed, p.failed = s, failed
}

// since returns when a port of p.done came into force.
func (p *familyState) since(port *service.Port) activation {
	if m, ok := p.activations[port]; ok {
		return m
	}
	return p.firstActivation
}

// wanted returns the snapshot to tell about.
func (b *Store) wanted() *service.Snapshot {
	if b.Latest != nil {
		if s := b.Latest(); s != nil {
			return s
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	var newest *service.Snapshot
	for _, p := range b.families {
		if p.programmed != nil && (newest == nil || p.programmed.Generation > newest.Generation) {
			newest = p.programmed
		}
	}
	return newest
}

// Failing reports that a port of the Service could not be programmed in the
// latest round that got that far, or not an address of a load balancer.
func (b *Store) Failing(namespace, name string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for f, p := range b.families {
		for n, wrong := range p.failed {
			if n.Namespace == namespace && n.Name == name && (!wrong.inForce() || p.loadBalancerClosed(p.programmed.Port(service.Family(f), n), wrong)) {
				return true
			}
		}
	}
	return false
}

// loadBalancerClosed reports that a load balancer would find port closed.
func (p *familyState) loadBalancerClosed(port *service.Port, wrong failure) bool {
	return port != nil && slices.ContainsFunc(port.Frontends, func(f service.Frontend) bool {
		return f.Kind == service.LoadBalancerIP && reconcile.Affects(wrong.cause, f)
	})
}
