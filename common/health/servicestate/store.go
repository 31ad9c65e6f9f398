// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package servicestate describes for each Service which part of it is programmed, since
// when, and why not. Snapshots and the results of their rounds go in, the states of
// Services come out. It does not program anything. Whether the proxy is healthy is left
// to package health.
package servicestate

import (
	"slices"
	"sync"
	"time"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

// Problem is a part of a Service that had to be left out or interpreted.
type Problem struct {
	Namespace, Name string // of the Service
	Field, Message  string
}

// Store holds the state. All methods may be called from any goroutine.
type Store struct {
	// Latest, if set, returns the desired snapshot, so that changes without a round yet
	// are visible. It may return nil.
	Latest func() *service.Snapshot
	// Problems, if set, returns what could not be used of the Services.
	Problems func() []Problem
	// Unanswered, if set, returns health checks that load balancers get no answer to.
	// Each message names an address.
	Unanswered func() []Problem
	// Endpoints, if set, returns how each endpoint of a port is used. It is called for
	// requests about one Service only.
	Endpoints func(service.Family, service.PortName) []Endpoint
	// Unavailable is why a family is not programmed at all.
	Unavailable map[service.Family]string

	mu            sync.Mutex
	families      [2]familyState // by family
	problemsSince map[Problem]time.Time
}

// familyState is the state of one family.
type familyState struct {
	programmed *service.Snapshot // in force, except for failed
	// firstActivation is when the first snapshot came into force. activations are for
	// ports that came into force later, so that a quiet proxy stores almost none.
	firstActivation activation
	activations     map[*service.Port]activation
	failed          map[service.PortName]failure
	notes           reconcile.Notes
	// unavailable is why nothing of the family is programmed, or empty.
	unavailable string
	err         failure // a round that failed as a whole, until a later one succeeds
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

// inForce reports whether the dataplane has programmed everything of the port that it
// can, for now or permanently.
func (f failure) inForce() bool { return reconcile.InForce(f.cause) }

// ProblemFound records that a problem appeared at now. A problem without such a record
// counts from the first query.
func (b *Store) ProblemFound(p Problem, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.problemsSince == nil {
		b.problemsSince = map[Problem]time.Time{}
	}
	b.problemsSince[p] = now
}

// pruneProblems removes the times of problems that are over.
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

// Result records a round of f.
func (b *Store) Result(f service.Family, r reconcile.Result) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := &b.families[f]
	if !reconcile.OnlyPortErrors(r.Err) {
		p.err = p.err.update(r.Err, r.Start)
		return
	}
	p.err = failure{}
	failed := map[service.PortName]failure{}
	for _, e := range reconcile.PortErrors(r.Err) {
		failed[e.Name] = p.failed[e.Name].update(e.Err, r.Start)
	}
	p.notes, p.unavailable = r.Notes, r.Unavailable
	p.setProgrammed(f, r.Snapshot, failed, activation{r.Snapshot.Generation, r.Start.Add(r.Took).UnixNano()})
}

// update returns f with the new error. It keeps the start of an earlier failure.
func (f failure) update(err error, at time.Time) failure {
	if f.since.IsZero() {
		f.since = at
	}
	f.message, f.cause = err.Error(), err
	return f
}

// setProgrammed records that s is in force, except for failed.
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
			p.activations[port] = m // came into force now, or is not in force yet
		}
	}
	p.programmed, p.failed = s, failed
}

// since returns when a port of p.programmed came into force.
func (p *familyState) since(port *service.Port) activation {
	if m, ok := p.activations[port]; ok {
		return m
	}
	return p.firstActivation
}

// wanted returns the snapshot to describe.
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

// Failing reports whether a port of the Service, or an address of its load balancer,
// could not be programmed in the latest round that did not fail as a whole.
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

// loadBalancerClosed reports whether port does not serve a load balancer's address.
func (p *familyState) loadBalancerClosed(port *service.Port, wrong failure) bool {
	return port != nil && slices.ContainsFunc(port.Frontends, func(f service.Frontend) bool {
		return f.Kind == service.LoadBalancerIP && reconcile.Affects(wrong.cause, f)
	})
}
