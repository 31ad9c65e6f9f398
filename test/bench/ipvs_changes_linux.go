// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"runtime"
	"time"
)

// measureVirtualPaths measures connections alone.
func measureVirtualPaths(ctx context.Context, t task) (*figures, error) {
	f := newFigures()
	return f, t.withVirtual(func(n *network, r *pipeline) error {
		if _, err := r.apply(ctx); err != nil {
			return err
		}
		return t.connections(f, n)
	})
}

// measureVirtualChanges measures what follows the first program, and then connections.
func measureVirtualChanges(ctx context.Context, t task) (*figures, error) {
	f := newFigures()
	return f, t.withVirtual(func(n *network, r *pipeline) error {
		runtime.GC() // the objects are no part of what follows
		t.logf("first program")
		m := start()
		if _, err := r.apply(ctx); err != nil {
			return err
		}
		f.usage("first", m)
		if err := t.checkProgrammed(n); err != nil {
			return err
		}
		for _, c := range changes()[:2] {
			t.logf("changes: %s", c.metric)
			if err := t.virtualChange(ctx, f, r, c); err != nil {
				return err
			}
		}
		if err := r.restore(ctx, t.Services); err != nil {
			return err
		}
		if err := r.drained(ctx); err != nil {
			return err
		}
		if err := t.virtualRestart(ctx, f, n); err != nil {
			return err
		}
		return t.connections(f, n)
	})
}

// virtualChange changes one Service at a time.
func (t task) virtualChange(ctx context.Context, f *figures, r *pipeline, c change) error {
	var took []time.Duration
	var spent time.Duration
	rounds := t.pick(virtualRounds, 10)
	for round := range rounds {
		to := c.a
		if round%2 == 1 {
			to = c.b
		}
		s := newSlice(serviceOfRound(round, t.Services), to)
		m := start()
		r.tracker.SetSlice(s)
		changed, err := r.apply(ctx)
		wall, cpu := m.stop()
		if err != nil || !changed {
			return fmt.Errorf("change one Service: changed=%v, %w", changed, err)
		}
		took, spent = append(took, wall), spent+cpu
	}
	f.set(c.metric+".p50", quantile(took, 0.5))
	f.set(c.metric+".p99", quantile(took, 0.99))
	f.seconds(c.metric+".cpu", spent/time.Duration(rounds))
	return nil
}

// drained waits until removed endpoints are drained, which the proxy checks every five
// seconds; a restart checks at once.
func (r *pipeline) drained(ctx context.Context) error {
	const long = 8 * time.Second
	began := time.Now()
	for now := range ticks(ctx, time.Second) {
		if _, err := r.apply(ctx); err != nil {
			return fmt.Errorf("let endpoints go: %w", err)
		}
		if now.Sub(began) > long {
			return nil
		}
	}
	return ctx.Err()
}

// virtualRestart measures a second proxy that finds the state of the first, and then the
// comparison that is made once in a sync period.
func (t task) virtualRestart(ctx context.Context, f *figures, n *network) error {
	t.logf("restart")
	r, err := newVirtual(n, 0)
	if err != nil {
		return err
	}
	r.feed(t.Services)
	runtime.GC()
	r.tracker.Synced()
	for _, metric := range []string{"restart", "again"} {
		m := start()
		changed, err := r.apply(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", metric, err)
		}
		f.usage(metric, m)
		if changed {
			return errNotEmpty
		}
	}
	return nil
}
