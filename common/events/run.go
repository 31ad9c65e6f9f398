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
	"k8s.io/apimachinery/pkg/util/wait"
)

// Run writes Events until ctx ends.
func (r *Recorder) Run(ctx context.Context) {
	for ctx.Err() == nil {
		m, pending, pause := r.nextDue(time.Now())
		if m == nil {
			r.sleep(ctx, pause)
			continue
		}
		err := r.write(ctx, &pending)
		if ctx.Err() == nil {
			r.recordResult(m, &pending, err)
		}
	}
}

// idle is the pause while there is nothing to do.
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

// pendingEvent is a copy of a condition at the time of its report.
type pendingEvent struct {
	object        Object
	topic         Topic
	failed        bool
	message       string
	series        series
	now           time.Time
	writtenByPeer bool          // another node had written it before
	asked         time.Duration // how long the API server wants no other request
}

func (n *pendingEvent) reason() string {
	if n.failed {
		return n.topic.Reason
	}
	return n.topic.RecoveredReason
}

// nextDue returns a condition that is due, or the time until one is.
func (r *Recorder) nextDue(now time.Time) (*condition, pendingEvent, time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var first *condition
	for _, list := range r.conditions {
		for _, m := range list {
			if !m.due.IsZero() && (first == nil || m.due.Before(first.due)) {
				first = m
			}
		}
	}
	if first == nil {
		return nil, pendingEvent{}, idle
	}
	if at := latest(first.due, r.pausedUntil); at.After(now) {
		return nil, pendingEvent{}, at.Sub(now)
	}
	if until := r.pausedNamespaces[first.object.Namespace]; until.After(now) {
		first.due = until
		return nil, pendingEvent{}, 0
	}
	if !first.failed && first.topic.RecoveredReason == "" {
		first.reportedFailed, first.due = false, time.Time{}
		return nil, pendingEvent{}, 0
	}
	if d := tokenDelay(r.overall, now); d > 0 {
		return nil, pendingEvent{}, d
	}
	if d := tokenDelay(first.limit, now); d > 0 {
		first.due = now.Add(d)
		return nil, pendingEvent{}, 0
	}
	r.overall.AllowN(now, 1)
	first.limit.AllowN(now, 1)
	n := pendingEvent{object: first.object, topic: first.topic, failed: first.failed, message: first.message, now: now}
	n.series = first.series[seriesIndex(n.failed)]
	return first, n, 0
}

// tokenDelay returns the time until a token is available. It does not take the token.
func tokenDelay(l *rate.Limiter, now time.Time) time.Duration {
	take := l.ReserveN(now, 1)
	defer take.CancelAt(now)
	return take.DelayFrom(now)
}

func seriesIndex(failed bool) int {
	if failed {
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

// recordResult records the outcome of writing n for m, which may have changed or been
// removed meanwhile.
func (r *Recorder) recordResult(m *condition, n *pendingEvent, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	switch {
	case err == nil:
		r.failures, r.pausedUntil = 0, time.Time{}
		clear(r.reported)
		delete(r.pausedNamespaces, n.object.Namespace)
		m.series[seriesIndex(n.failed)] = n.series
		if r.options.Written != nil && !n.writtenByPeer {
			r.options.Written()
		}
	case apierrors.IsForbidden(err) && !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		r.countDropped(Forbidden)
		r.report(Forbidden, fmt.Errorf("write Event %s: %w", n.reason(), err))
		r.pausedNamespaces[n.object.Namespace] = now.Add(forbiddenPause)
		return // it stays due
	case retryable(err) && now.Sub(m.since) < retryTimeout:
		r.report(Unreachable, fmt.Errorf("write Event %s: %w", n.reason(), err))
		pause := min(time.Second<<min(r.failures, 6), time.Minute)
		if n.asked > 0 { // it asks all nodes alike
			pause = max(pause, wait.Jitter(n.asked, 0.5))
		}
		r.pausedUntil = now.Add(pause)
		r.failures++
		return // it stays due
	case retryable(err):
		r.countDropped(Unreachable)
	default:
		r.countDropped(Refused)
		r.report(Refused, fmt.Errorf("write Event %s: %w", n.reason(), err))
	}
	m.reportedFailed, m.due = n.failed, time.Time{}
	if m.failed != m.reportedFailed {
		r.schedule(m, now)
	}
}

var _ apierrors.APIStatus = (*apierrors.StatusError)(nil)

// retryable reports whether a later attempt may succeed.
func retryable(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return true
	}
	code := status.Status().Code
	return code == 429 || code >= 500 || apierrors.IsUnauthorized(err)
}
