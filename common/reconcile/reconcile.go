// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package reconcile keeps a dataplane equal to the latest snapshot. A Loop takes
// snapshots and a Backend, and produces one Result per round. It decides when rounds run:
// batching, retries and resyncs. The Backend decides what to change. Loop.Report handles
// a Result.
package reconcile

import (
	"context"
	"errors"
	"fmt"
	"time"

	"kubeproxy/common/service"
)

// Backend programs one dataplane, such as nftables for IPv4 or HNS. Its methods are
// called from one goroutine at a time, except Watch, which runs beside the others. A
// Backend embeds Base for what it does not need.
type Backend interface {
	// Plan compares want with the installed state and returns the changes that are still
	// needed. It changes nothing.
	Plan(ctx context.Context, want *service.Snapshot) (Plan, error)

	// Cleanup removes everything that any Backend of this kind installed, and nothing
	// else. That includes leftovers of earlier processes. Nothing to remove is success.
	Cleanup(ctx context.Context) error

	// Watch calls touched after each change of the dataplane by another process, until
	// ctx ends. touched returns at once.
	Watch(ctx context.Context, touched func()) error

	// SetResync sets the longest pause between rounds. It is called between two rounds,
	// whenever that pause changes.
	SetResync(time.Duration)

	// Forget drops what the Backend remembers of the dataplane, so that the next Plan
	// lists it like a first one. It is called between two rounds, when another process
	// has programmed the dataplane.
	Forget()

	// Close releases what the Backend holds of the system. The dataplane stays.
	Close() error
}

// Base is a Backend without Plan and Cleanup, which detects no changes, remembers nothing
// and holds nothing.
type Base struct{}

// Watch implements Backend.
func (Base) Watch(ctx context.Context, _ func()) error {
	<-ctx.Done()
	return nil
}

// SetResync implements Backend.
func (Base) SetResync(time.Duration) {}

// Forget implements Backend.
func (Base) Forget() {}

// Close implements Backend.
func (Base) Close() error { return nil }

// WatchAll runs watches, which are like Backend.Watch, until ctx or one of them ends.
func WatchAll(ctx context.Context, touched func(), watches ...func(context.Context, func()) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, len(watches))
	for _, watch := range watches {
		go func() {
			err := watch(ctx, touched)
			cancel()
			ended <- err
		}()
	}
	var errs []error
	for range watches {
		errs = append(errs, <-ended)
	}
	return errors.Join(errs...)
}

// Plan is an ordered list of changes to one dataplane. It is good for one Apply.
type Plan interface {
	fmt.Stringer // one change a line

	// Empty reports whether the dataplane already matches. Then Apply is not called.
	Empty() bool

	// Outcome returns what is known without Apply. For an empty plan that is the outcome
	// of the round.
	Outcome() Outcome

	// Apply makes the changes. After a failed change it continues where that is safe, and
	// it joins the errors.
	Apply(ctx context.Context) Outcome
}
