// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"context"
	"sync/atomic"
	"time"
)

// pollInterval is the interval between two reads of the kernel state if a read is cheap.
// For expensive reads, pollShare limits the cost to one part in pollShare of the time.
const (
	pollInterval = 2 * time.Second
	pollShare    = 100
)

// poller schedules reads of the kernel state between two sync periods. The kernel sends
// no notification when virtual servers change, and clients are refused until they are
// repaired.
type poller struct {
	requested atomic.Bool
	nextPoll  atomic.Int64 // when the next read is due, Unix time in nanoseconds
}

// polled records a read that began at start.
func (l *poller) polled(start time.Time) {
	now := time.Now()
	l.nextPoll.Store(now.Add(max(pollInterval, pollShare*now.Sub(start))).UnixNano())
}

// watch requests a read when one is due.
func (l *poller) watch(ctx context.Context, touched func()) error {
	return tick(ctx, pollInterval, func() {
		if next := l.nextPoll.Load(); next != 0 && time.Now().UnixNano() >= next {
			l.requested.Store(true)
			touched()
		}
	})
}

// tick calls do periodically until ctx is done.
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
