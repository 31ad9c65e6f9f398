// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"context"
	"sync/atomic"
	"time"

	"kubeproxy/common/reconcile"
)

// pollInterval is the interval between two reads of the kernel state if a read is cheap.
// For expensive reads, pollShare limits the cost to one part in pollShare of the time.
const (
	pollInterval = 2 * time.Second
	pollShare    = 100
)

// poller schedules reads of the kernel state between two sync periods. The kernel sends
// no notification when virtual servers change (kernel: net/netfilter/ipvs/ip_vs_ctl.c),
// and clients are refused until they are repaired.
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
	return reconcile.Every(ctx, pollInterval, func() {
		if next := l.nextPoll.Load(); next != 0 && time.Now().UnixNano() >= next {
			l.requested.Store(true)
			touched()
		}
	})
}
