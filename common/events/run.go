// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package events

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Run writes Events until ctx ends, and then no more.
func (r *Recorder) Run(ctx context.Context) {
	for ctx.Err() == nil {
		m, note, pause := r.next(time.Now())
		if m == nil {
			r.sleep(ctx, pause)
			continue
		}
		err := r.write(ctx, &note)
		if ctx.Err() == nil {
			r.done(m, &note, err)
		}
	}
}

// idle is how long there may be nothing to look after.
const idle = time.Hour

func (r *Recorder) sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	case <-r.wake:
	}
}

// note is a matter as it was when it was to be told.
type note struct {
	object  Object
	topic   Topic
	bad     bool
	message string
	series  series
	now     time.Time
	others  bool // another node had written it already
}

func (n *note) reason() string {
	if n.bad {
		return n.topic.Bad
	}
	return n.topic.Good
}

// next returns a matter that is due, or how long to wait for one.
func (r *Recorder) next(now time.Time) (*matter, note, time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var first *matter
	for _, list := range r.matters {
		for _, m := range list {
			if !m.due.IsZero() && (first == nil || m.due.Before(first.due)) {
				first = m
			}
		}
	}
	if first == nil {
		return nil, note{}, idle
	}
	if at := latest(first.due, r.pause); at.After(now) {
		return nil, note{}, at.Sub(now)
	}
	if until := r.off[first.object.Namespace]; until.After(now) {
		first.due = until
		return nil, note{}, 0
	}
	if !first.bad && first.topic.Good == "" {
		first.told, first.due = false, time.Time{}
		return nil, note{}, 0
	}
	if d := wait(r.overall, now); d > 0 {
		return nil, note{}, d
	}
	if d := wait(first.limit, now); d > 0 {
		first.due = now.Add(d)
		return nil, note{}, 0
	}
	r.overall.AllowN(now, 1)
	first.limit.AllowN(now, 1)
	n := note{object: first.object, topic: first.topic, bad: first.bad, message: first.message, now: now}
	n.series = first.series[index(n.bad)]
	return first, n, 0
}

// wait is how long a token is still to come, which it does not take.
func wait(l *rate.Limiter, now time.Time) time.Duration {
	take := l.ReserveN(now, 1)
	defer take.CancelAt(now)
	return take.DelayFrom(now)
}

func index(bad bool) int {
	if bad {
		return 1
	}
	return 0
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// done takes in what came of writing n about m, which may have changed
// meanwhile, or be gone.
func (r *Recorder) done(m *matter, n *note, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	switch {
	case err == nil:
		r.fails, r.pause = 0, time.Time{}
		clear(r.told)
		delete(r.off, n.object.Namespace)
		m.series[index(n.bad)] = n.series
		if r.options.Written != nil && !n.others {
			r.options.Written()
		}
	case apierrors.IsForbidden(err) && !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		r.drop(Forbidden)
		r.report(Forbidden, fmt.Errorf("write Event %s: %w", n.reason(), err))
		r.off[n.object.Namespace] = now.Add(rest403)
		return // it stays due
	case passes(err) && now.Sub(m.since) < patience:
		r.report(Unreachable, fmt.Errorf("write Event %s: %w", n.reason(), err))
		r.pause = now.Add(min(time.Second<<min(r.fails, 6), time.Minute))
		r.fails++
		return // it stays due
	case passes(err):
		r.drop(Unreachable)
	default:
		r.drop(Refused)
		r.report(Refused, fmt.Errorf("write Event %s: %w", n.reason(), err))
	}
	m.told, m.due = n.bad, time.Time{}
	if m.bad != m.told {
		r.schedule(m, now)
	}
}

// passes reports that the same may succeed later.
func passes(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return true
	}
	code := status.Status().Code
	return code == 429 || code >= 500 || apierrors.IsUnauthorized(err)
}
