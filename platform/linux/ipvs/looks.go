// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"context"
	"sync/atomic"
	"time"
)

// lookEvery is how often the kernel is asked what it holds if that costs little,
// and lookShare bounds what it costs where it is more: one part in so many of the
// time.
const (
	lookEvery = 2 * time.Second
	lookShare = 100
)

// looks spaces the comparisons between two sync periods. The kernel tells nobody
// who changes virtual servers, and until they are right again clients are refused.
type looks struct {
	wanted atomic.Bool
	next   atomic.Int64 // when another one is worth it, Unix time in nanoseconds
}

// done notes that the kernel was looked at.
func (l *looks) done(start time.Time) {
	now := time.Now()
	l.next.Store(now.Add(max(lookEvery, lookShare*now.Sub(start))).UnixNano())
}

// watch has the kernel looked at when that is worth it.
func (l *looks) watch(ctx context.Context, touched func()) error {
	return tick(ctx, lookEvery, func() {
		if next := l.next.Load(); next != 0 && time.Now().UnixNano() >= next {
			l.wanted.Store(true)
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
