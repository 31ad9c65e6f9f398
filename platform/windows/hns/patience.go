// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// How long HNS may take before somebody should know. To list is several calls for
// each object, any other operation is a few.
const (
	lateCall    = 10 * time.Second
	lateListing = time.Minute
	// longListing is how long one may take, as far as can be said from outside,
	// and still get on: ten thousand objects on a slow HNS.
	longListing = 20 * time.Minute
	listingBeat = 10 * time.Second
)

// Patient returns d with calls that end when their context does, whether or not
// HNS has answered: what becomes of such a call nobody knows. Slow is told while
// HNS does not answer, and "" once it has. Moved is called as long as work gets on.
func Patient(d Driver, slow func(text string), moved func()) Driver {
	return &patient{driver: d, slow: slow, moved: moved}
}

type patient struct {
	driver Driver
	slow   func(text string)
	moved  func()

	mu   sync.Mutex
	late int // calls that somebody was told of
}

// tell has somebody know of one more late call, or with "" of one less.
func (p *patient) tell(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if text != "" {
		p.late++
		p.slow(text)
	} else if p.late--; p.late == 0 {
		p.slow("")
	}
}

// await returns what do does, unless ctx ends before.
func await[T any](ctx context.Context, p *patient, op string, do func() (T, error)) (T, error) {
	var none T
	if ctx.Err() != nil {
		return none, fmt.Errorf("%s: left undone: %w", op, ctx.Err())
	}
	type answer struct {
		value T
		err   error
	}
	answers := make(chan answer, 1) // HNS may answer when nobody waits
	go func() {
		value, err := do()
		answers <- answer{value, err}
	}()
	after := lateCall
	var beat <-chan time.Time
	if op == listing {
		after = lateListing
		beats := time.NewTicker(listingBeat)
		defer beats.Stop()
		beat = beats.C
	}
	begun := time.Now()
	late := time.NewTimer(after)
	defer late.Stop()
	for told := false; ; {
		select {
		case a := <-answers:
			if told {
				p.tell("")
			}
			if a.err == nil {
				p.moved()
			}
			return a.value, a.err
		case <-beat:
			if time.Since(begun) < longListing {
				p.moved()
			}
		case <-late.C:
			told = true
			p.tell(fmt.Sprintf("HNS has not answered for %s (%s), and nothing can be programmed meanwhile; if it stays so, restart it: Restart-Service hns", after, op))
		case <-ctx.Done():
			if told {
				p.tell("")
			}
			return none, fmt.Errorf("%s: HNS has not answered: %w", op, ctx.Err())
		}
	}
}

const listing = "list all objects"

func (p *patient) List(ctx context.Context, what What) (Listing, error) {
	return await(ctx, p, listing, func() (Listing, error) { return p.driver.List(ctx, what) })
}

func (p *patient) CreateEndpoint(ctx context.Context, e Endpoint) (Endpoint, error) {
	return await(ctx, p, "create endpoint "+e.Name, func() (Endpoint, error) { return p.driver.CreateEndpoint(ctx, e) })
}

func (p *patient) HasEndpoint(ctx context.Context, id string) (bool, error) {
	return await(ctx, p, "find endpoint "+id, func() (bool, error) { return p.driver.HasEndpoint(ctx, id) })
}

func (p *patient) DeleteEndpoint(ctx context.Context, id string) error {
	_, err := await(ctx, p, "delete endpoint "+id, func() (any, error) { return nil, p.driver.DeleteEndpoint(ctx, id) })
	return err
}

func (p *patient) CreateLoadBalancer(ctx context.Context, lb LoadBalancer) (string, error) {
	return await(ctx, p, "create load balancer "+lb.Key.String(), func() (string, error) { return p.driver.CreateLoadBalancer(ctx, lb) })
}

func (p *patient) UpdateLoadBalancer(ctx context.Context, lb LoadBalancer) (LoadBalancer, error) {
	return await(ctx, p, "change load balancer "+lb.Key.String(), func() (LoadBalancer, error) { return p.driver.UpdateLoadBalancer(ctx, lb) })
}

func (p *patient) PortsLeft(ctx context.Context, k Key) (bool, error) {
	return await(ctx, p, "look for dynamic ports", func() (bool, error) { return p.driver.PortsLeft(ctx, k) })
}

func (p *patient) DeleteLoadBalancer(ctx context.Context, lb LoadBalancer) error {
	_, err := await(ctx, p, "delete load balancer "+lb.Key.String(), func() (any, error) { return nil, p.driver.DeleteLoadBalancer(ctx, lb) })
	return err
}
