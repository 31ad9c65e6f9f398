// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"context"
	"errors"
	"maps"
	"slices"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

// lister has a node list HNS beside rounds. It lists a few objects whenever the process
// writes or time passes, all in the goroutine of the test, so that each run of a case is
// the same.
type lister struct {
	*fake
	pause  func() // lets the time pass that listing an object takes
	strict bool   // a listing fails if a load balancer goes away meanwhile, as with hcsshim
	// draw returns how many objects to list when the process writes or time passes, most
	// at most.
	draw func(most int) int

	calls   chan *listCall
	ended   chan struct{} // closed with the process
	round   int
	begun   int          // listings of everything
	pending *pendingList // the latest that was seen
	open    *listCall    // goes on
}

// listCall is a listing that a process waits for in a goroutine of its own.
type listCall struct {
	round     int // in which it began
	endpoints []string
	balancers []string
	listing   Listing
	err       error
	done      chan struct{}
}

type roundKey struct{}

var errEnded = errors.New("the process has ended")

// start begins with a process. Its Backend is to be used as wrap returns it.
func (s *lister) start(k *fake) {
	s.end()
	s.fake, s.calls, s.ended = k, make(chan *listCall), make(chan struct{})
}

// wrap returns b so that no round waits for a listing.
func (s *lister) wrap(b *Backend) reconcile.Backend {
	b.host.patience = 1
	return &listedBackend{b, s}
}

// end lets the listings of a process end.
func (s *lister) end() {
	if s.ended != nil {
		close(s.ended)
	}
	s.ended, s.open, s.pending = nil, nil, nil
}

// List waits for the test if no round waits for it.
func (s *lister) List(ctx context.Context, what ObjectKinds) (Listing, error) {
	if ctx.Value(unawaited{}) == nil {
		if what == All {
			s.begun++
		}
		return s.fake.List(ctx, what)
	}
	c := &listCall{round: ctx.Value(roundKey{}).(int), done: make(chan struct{})}
	ended := ctx.Value(endedKey{}).(chan struct{})
	select {
	case s.calls <- c:
	case <-ended:
		return Listing{}, errEnded
	}
	select {
	case <-c.done:
		return c.listing, c.err
	case <-ended:
		return Listing{}, errEnded
	}
}

type endedKey struct{}

// listedBackend is a Backend whose listings go on beside its rounds.
type listedBackend struct {
	*Backend
	lister *lister
}

// Plan returns when a listing that it began has seen the first of HNS.
func (b *listedBackend) Plan(ctx context.Context, want *service.Snapshot) (reconcile.Plan, error) {
	s := b.lister
	s.round++
	ctx = context.WithValue(context.WithValue(ctx, roundKey{}, s.round), endedKey{}, s.ended)
	p, err := b.Backend.Plan(ctx, want)
	if l := b.host.pendingNow(); l != nil && l != s.pending {
		s.pending = l
		s.begin()
	}
	return p, err
}

// begin begins the listing of this round. Earlier ones do not count any more.
func (s *lister) begin() {
	for s.open = <-s.calls; s.open.round != s.round; s.open = <-s.calls {
		s.open.err = errEnded
		close(s.open.done)
	}
	s.begun++
	c := s.open
	if c.listing, c.err = s.fake.List(context.Background(), Networks); c.err != nil {
		s.close()
		return
	}
	c.endpoints, c.balancers = slices.Sorted(maps.Keys(s.endpoints)), slices.Sorted(maps.Keys(s.balancers))
}

// proceed draws how many objects are listed, up to most.
func (s *lister) proceed(most int) {
	if s.open == nil || s.draw == nil {
		return
	}
	for range s.draw(most) {
		if s.open != nil {
			s.next()
		}
	}
}

// next lists an object, or ends after the last one.
func (s *lister) next() {
	c := s.open
	s.pause()
	switch {
	case len(c.endpoints) > 0:
		if e, ok := s.endpoints[c.endpoints[0]]; ok {
			c.listing.Endpoints = append(c.listing.Endpoints, e)
		}
		c.endpoints = c.endpoints[1:]
	case len(c.balancers) > 0:
		lb, ok := s.balancers[c.balancers[0]]
		if ok {
			c.listing.LoadBalancers = append(c.listing.LoadBalancers, lb)
		} else if s.strict {
			c.err = codeError("list load balancers", 0x490)
			s.close()
			return
		}
		c.balancers = c.balancers[1:]
	default:
		s.close()
	}
}

// close has the process receive the listing.
func (s *lister) close() {
	close(s.open.done)
	<-s.pending.done
	s.open = nil
}

// failed reports whether the latest listing failed, of which a later round learns.
func (s *lister) failed() bool { return s.pending != nil && s.open == nil && s.pending.err != nil }

// finish lists the rest. It reports whether a listing went on.
func (s *lister) finish() bool {
	open := s.open != nil
	for s.open != nil {
		s.next()
	}
	return open
}

func (s *lister) CreateEndpoint(ctx context.Context, e Endpoint) (Endpoint, error) {
	s.proceed(2)
	defer s.proceed(2)
	return s.fake.CreateEndpoint(ctx, e)
}

func (s *lister) DeleteEndpoint(ctx context.Context, id string) error {
	s.proceed(2)
	defer s.proceed(2)
	return s.fake.DeleteEndpoint(ctx, id)
}

func (s *lister) CreateLoadBalancer(ctx context.Context, lb LoadBalancer) (LoadBalancer, error) {
	s.proceed(2)
	defer s.proceed(2)
	return s.fake.CreateLoadBalancer(ctx, lb)
}

func (s *lister) UpdateLoadBalancer(ctx context.Context, lb LoadBalancer) (LoadBalancer, error) {
	s.proceed(2)
	defer s.proceed(2)
	return s.fake.UpdateLoadBalancer(ctx, lb)
}

func (s *lister) DeleteLoadBalancer(ctx context.Context, lb LoadBalancer) error {
	s.proceed(2)
	defer s.proceed(2)
	return s.fake.DeleteLoadBalancer(ctx, lb)
}
