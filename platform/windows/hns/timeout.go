// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// How long HNS may take before the call is reported. A listing makes several calls for
// each object, other operations make a few. On a node with many load balancers, some take
// half a minute (kubernetes/kubernetes#109162).
const (
	slowCallThreshold = 10 * time.Second
	slowListThreshold = time.Minute
	// maxListProgress is the longest time in which a listing, seen from outside, may
	// still make progress: ten thousand objects on a slow HNS.
	maxListProgress      = 20 * time.Minute
	listProgressInterval = 10 * time.Second
)

// WithTimeout returns a Driver whose calls return when their context ends, even if HNS
// has not answered. The result of such a call is unknown. It calls reportSlow with a text
// while HNS does not answer, and with "" once it has. It calls reportProgress as long as
// work progresses.
func WithTimeout(d Driver, reportSlow func(text string), reportProgress func()) Driver {
	return &timeoutDriver{driver: d, reportSlow: reportSlow, reportProgress: reportProgress}
}

type timeoutDriver struct {
	driver         Driver
	reportSlow     func(text string)
	reportProgress func()

	mu        sync.Mutex
	lateCalls int // calls that reportSlow reported
}

// reportLate reports one more late call, or with "" one less.
func (p *timeoutDriver) reportLate(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if text != "" {
		p.lateCalls++
		p.reportSlow(text)
	} else if p.lateCalls--; p.lateCalls == 0 {
		p.reportSlow("")
	}
}

// unawaited is the key of a context in which no round waits for the call.
type unawaited struct{}

// withoutWaiting returns ctx for a call that no round waits for.
func withoutWaiting(ctx context.Context) context.Context {
	return context.WithValue(ctx, unawaited{}, true)
}

// consequence describes what a late call prevents.
func consequence(ctx context.Context) string {
	if ctx.Value(unawaited{}) != nil {
		return "what others change in HNS is not seen meanwhile; changes of Services are programmed"
	}
	return "nothing can be programmed meanwhile"
}

// await returns the result of do, unless ctx ends before.
func await[T any](ctx context.Context, p *timeoutDriver, op string, do func() (T, error)) (T, error) {
	var none T
	if ctx.Err() != nil {
		return none, fmt.Errorf("%s: left undone: %w", op, ctx.Err())
	}
	type answer struct {
		value T
		err   error
	}
	answers := make(chan answer, 1) // HNS may answer after await returned
	go func() {
		value, err := do()
		answers <- answer{value, err}
	}()
	after := slowCallThreshold
	var beat <-chan time.Time
	if op == opList {
		after = slowListThreshold
		beats := time.NewTicker(listProgressInterval)
		defer beats.Stop()
		beat = beats.C
	}
	begun := time.Now()
	late := time.NewTimer(after)
	defer late.Stop()
	for reported := false; ; {
		select {
		case a := <-answers:
			if reported {
				p.reportLate("")
			}
			if a.err == nil {
				p.reportProgress()
			}
			return a.value, a.err
		case <-beat:
			if time.Since(begun) < maxListProgress {
				p.reportProgress()
			}
		case <-late.C:
			reported = true
			p.reportLate(fmt.Sprintf("HNS has not answered for %s (%s), and %s; if it stays so, restart it: Restart-Service hns", after, op, consequence(ctx)))
		case <-ctx.Done():
			if reported {
				p.reportLate("")
			}
			return none, fmt.Errorf("%s: HNS has not answered: %w", op, ctx.Err())
		}
	}
}

const opList = "list all objects"

func (p *timeoutDriver) List(ctx context.Context, what ObjectKinds) (Listing, error) {
	return await(ctx, p, opList, func() (Listing, error) { return p.driver.List(ctx, what) })
}

func (p *timeoutDriver) CreateEndpoint(ctx context.Context, e Endpoint) (Endpoint, error) {
	return await(ctx, p, "create endpoint "+e.Name, func() (Endpoint, error) { return p.driver.CreateEndpoint(ctx, e) })
}

func (p *timeoutDriver) HasEndpoint(ctx context.Context, id string) (bool, error) {
	return await(ctx, p, "find endpoint "+id, func() (bool, error) { return p.driver.HasEndpoint(ctx, id) })
}

func (p *timeoutDriver) DeleteEndpoint(ctx context.Context, id string) error {
	_, err := await(ctx, p, "delete endpoint "+id, func() (any, error) { return nil, p.driver.DeleteEndpoint(ctx, id) })
	return err
}

func (p *timeoutDriver) CreateLoadBalancer(ctx context.Context, lb LoadBalancer) (LoadBalancer, error) {
	return await(ctx, p, "create load balancer "+lb.Key.String(), func() (LoadBalancer, error) { return p.driver.CreateLoadBalancer(ctx, lb) })
}

func (p *timeoutDriver) UpdateLoadBalancer(ctx context.Context, lb LoadBalancer) (LoadBalancer, error) {
	return await(ctx, p, "change load balancer "+lb.Key.String(), func() (LoadBalancer, error) { return p.driver.UpdateLoadBalancer(ctx, lb) })
}

func (p *timeoutDriver) PortsLeft(ctx context.Context, k Key) (bool, error) {
	return await(ctx, p, "look for dynamic ports", func() (bool, error) { return p.driver.PortsLeft(ctx, k) })
}

func (p *timeoutDriver) DeleteLoadBalancer(ctx context.Context, lb LoadBalancer) error {
	_, err := await(ctx, p, "delete load balancer "+lb.Key.String(), func() (any, error) { return nil, p.driver.DeleteLoadBalancer(ctx, lb) })
	return err
}
