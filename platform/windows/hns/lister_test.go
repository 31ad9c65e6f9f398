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
func (l *lister) start(k *fake) {
	l.end()
	l.fake, l.calls, l.ended = k, make(chan *listCall), make(chan struct{})
}

// wrap returns b so that no round waits for a listing.
func (l *lister) wrap(b *Backend) reconcile.Backend {
	b.host.patience = 1
	return &listedBackend{b, l}
}

// end lets the listings of a process end.
func (l *lister) end() {
	if l.ended != nil {
		close(l.ended)
	}
	l.ended, l.open, l.pending = nil, nil, nil
}

// List waits for the test if no round waits for it.
func (l *lister) List(ctx context.Context, what ObjectKinds) (Listing, error) {
	if ctx.Value(unawaited{}) == nil {
		if what == All {
			l.begun++
		}
		return l.fake.List(ctx, what)
	}
	c := &listCall{round: ctx.Value(roundKey{}).(int), done: make(chan struct{})}
	ended := ctx.Value(endedKey{}).(chan struct{})
	select {
	case l.calls <- c:
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
func (l *lister) begin() {
	for l.open = <-l.calls; l.open.round != l.round; l.open = <-l.calls {
		l.open.err = errEnded
		close(l.open.done)
	}
	l.begun++
	c := l.open
	if c.listing, c.err = l.fake.List(context.Background(), Networks); c.err != nil {
		l.close()
		return
	}
	c.endpoints, c.balancers = slices.Sorted(maps.Keys(l.endpoints)), slices.Sorted(maps.Keys(l.balancers))
}

// proceed draws how many objects are listed, up to most.
func (l *lister) proceed(most int) {
	if l.open == nil || l.draw == nil {
		return
	}
	for range l.draw(most) {
		if l.open != nil {
			l.next()
		}
	}
}

// next lists an object, or ends after the last one.
func (l *lister) next() {
	c := l.open
	l.pause()
	switch {
	case len(c.endpoints) > 0:
		if e, ok := l.endpoints[c.endpoints[0]]; ok {
			c.listing.Endpoints = append(c.listing.Endpoints, e)
		}
		c.endpoints = c.endpoints[1:]
	case len(c.balancers) > 0:
		lb, ok := l.balancers[c.balancers[0]]
		if ok {
			c.listing.LoadBalancers = append(c.listing.LoadBalancers, lb)
		} else if l.strict {
			c.err = codeError("list load balancers", 0x490)
			l.close()
			return
		}
		c.balancers = c.balancers[1:]
	default:
		l.close()
	}
}

// close has the process receive the listing.
func (l *lister) close() {
	close(l.open.done)
	<-l.pending.done
	l.open = nil
}

// failed reports whether the latest listing failed, of which a later round learns.
func (l *lister) failed() bool { return l.pending != nil && l.open == nil && l.pending.err != nil }

// finish lists the rest. It reports whether a listing went on.
func (l *lister) finish() bool {
	open := l.open != nil
	for l.open != nil {
		l.next()
	}
	return open
}

func (l *lister) CreateEndpoint(ctx context.Context, e Endpoint) (Endpoint, error) {
	l.proceed(2)
	defer l.proceed(2)
	return l.fake.CreateEndpoint(ctx, e)
}

func (l *lister) DeleteEndpoint(ctx context.Context, id string) error {
	l.proceed(2)
	defer l.proceed(2)
	return l.fake.DeleteEndpoint(ctx, id)
}

func (l *lister) CreateLoadBalancer(ctx context.Context, lb LoadBalancer) (LoadBalancer, error) {
	l.proceed(2)
	defer l.proceed(2)
	return l.fake.CreateLoadBalancer(ctx, lb)
}

func (l *lister) UpdateLoadBalancer(ctx context.Context, lb LoadBalancer) (LoadBalancer, error) {
	l.proceed(2)
	defer l.proceed(2)
	return l.fake.UpdateLoadBalancer(ctx, lb)
}

func (l *lister) DeleteLoadBalancer(ctx context.Context, lb LoadBalancer) error {
	l.proceed(2)
	defer l.proceed(2)
	return l.fake.DeleteLoadBalancer(ctx, lb)
}
