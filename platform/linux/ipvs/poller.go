// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"context"
	"sync/atomic"
	"time"
)

// pollInterval is how often the kernel is asked what it holds if that costs little,
// and pollShare bounds what it costs where it is more: one part in so many of the
// time.
const (
	pollInterval = 2 * time.Second
	pollShare    = 100
)

// poller spaces the comparisons between two sync periods. The kernel tells nobody
// who changes virtual servers, and until they are right again clients are refused.
type poller struct {
	requested atomic.Bool
	nextPoll  atomic.Int64 // when another one is worth it, Unix time in nanoseconds
}

// polled notes that the kernel was looked at.
func (l *poller) polled(start time.Time) {
	now := time.Now()
	l.nextPoll.Store(now.Add(max(pollInterval, pollShare*now.Sub(start))).UnixNano())
}

// watch has the kernel looked at when that is worth it.
func (l *poller) watch(ctx context.Context, touched func()) error {
	return tick(ctx, pollInterval, func() {
		if next := l.nextPoll.Load(); next != 0 && time.Now().UnixNano() >= next {
			l.requested.Store(true)
			touched()
		}
	})
}

// tick calls do from time to time, until ctx ends.
func tick(ctx context.Context, every time.Duration, do func()) error {
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
			do()
		}
	}
}
