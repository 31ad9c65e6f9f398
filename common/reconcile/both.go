// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"kubeproxy/common/service"
)

// Both returns a Backend that is main and a second one, which serves a part of the same
// snapshots. Neither depends on the other: if one fails, the other continues, and the
// errors are joined. Of the Outcome of the second one, only Err, Drift, Notes and
// Degraded are used.
func Both(main, second Backend) Backend { return &both{main, second} }

type both struct{ main, second Backend }

// Plan implements Backend.
func (b *both) Plan(ctx context.Context, want *service.Snapshot) (Plan, error) {
	p, err := b.main.Plan(ctx, want)
	q, err2 := b.second.Plan(ctx, want)
	switch {
	case err2 != nil && err != nil:
		return nil, errors.Join(err, err2)
	case err != nil && q.Empty():
		return nil, err
	case err != nil:
		p = failedPlan{err}
	case err2 != nil:
		q = failedPlan{err2}
	}
	return &combinedPlan{p, q}, nil
}

// Cleanup implements Backend.
func (b *both) Cleanup(ctx context.Context) error {
	return errors.Join(b.main.Cleanup(ctx), b.second.Cleanup(ctx))
}

// Watch implements Backend.
func (b *both) Watch(ctx context.Context, touched func()) error {
	return WatchAll(ctx, touched, b.main.Watch, b.second.Watch)
}

// SetResync implements Backend.
func (b *both) SetResync(d time.Duration) {
	b.main.SetResync(d)
	b.second.SetResync(d)
}

// Forget implements Backend.
func (b *both) Forget() {
	b.main.Forget()
	b.second.Forget()
}

// Close implements Backend.
func (b *both) Close() error { return errors.Join(b.main.Close(), b.second.Close()) }

// failedPlan is the placeholder for a plan whose Plan call failed.
type failedPlan struct{ err error }

func (u failedPlan) String() string                { return "" }
func (u failedPlan) Empty() bool                   { return false }
func (u failedPlan) Outcome() Outcome              { return Outcome{Err: fmt.Errorf("plan: %w", u.err)} }
func (u failedPlan) Apply(context.Context) Outcome { return u.Outcome() }

// combinedPlan is two plans as one.
type combinedPlan struct{ main, second Plan }

// String implements Plan.
func (b *combinedPlan) String() string { return b.main.String() + b.second.String() }

// Empty implements Plan.
func (b *combinedPlan) Empty() bool { return b.main.Empty() && b.second.Empty() }

// Outcome implements Plan.
func (b *combinedPlan) Outcome() Outcome { return b.main.Outcome().with(b.second.Outcome()) }

// Apply implements Plan.
func (b *combinedPlan) Apply(ctx context.Context) Outcome {
	first := outcomeOf(ctx, b.main)
	return first.with(outcomeOf(ctx, b.second))
}

// outcomeOf applies p unless it is empty.
func outcomeOf(ctx context.Context, p Plan) Outcome {
	if p.Empty() {
		return p.Outcome()
	}
	return p.Apply(ctx)
}

// with returns o with Err, Drift, Notes and Degraded of second added.
func (o Outcome) with(second Outcome) Outcome {
	switch {
	case o.Err == nil:
		o.Err = second.Err
	case second.Err != nil:
		o.Err = errors.Join(o.Err, second.Err)
	}
	o.Drift = slices.Concat(o.Drift, second.Drift)
	if o.Degraded != "" && second.Degraded != "" {
		o.Degraded += "; "
	}
	o.Degraded += second.Degraded
	switch {
	case len(o.Notes) == 0:
		o.Notes = second.Notes
	case len(second.Notes) > 0:
		o.Notes = maps.Clone(o.Notes)
		for name, notes := range second.Notes {
			o.Notes[name] = slices.Concat(o.Notes[name], notes)
		}
	}
	return o
}
