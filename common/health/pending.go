// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package health

import (
	"slices"
	"time"
)

// maxTimes bounds the memory of pending. It is even, see thinOut.
const maxTimes = 64

// pending records since when there is something to do. A round completes what came before
// it began. The times of what came during the round remain.
type pending struct {
	times []time.Time // the oldest first
}

func (p *pending) add(t time.Time) {
	if len(p.times) == maxTimes {
		p.thinOut()
	}
	p.times = append(p.times, t)
}

// thinOut removes every second time except the first and the last. The time after a
// removed one stands in for it. So an age can come out too low by the gap between the
// two, but no change counts as done too early.
func (p *pending) thinOut() {
	kept := p.times[:1]
	for i := 1; i < len(p.times); i += 2 {
		kept = append(kept, p.times[i])
	}
	p.times = kept
}

// clearUntil removes times up to start.
func (p *pending) clearUntil(start time.Time) {
	p.times = slices.DeleteFunc(p.times, func(t time.Time) bool { return !t.After(start) })
}

// atLeast ensures that there is an entry no later than t.
func (p *pending) atLeast(t time.Time) {
	if len(p.times) == 0 || t.Before(p.times[0]) {
		p.times = slices.Insert(p.times, 0, t)
	}
}

// oldest returns since when there is something to do, or the zero time.
func (p *pending) oldest() time.Time {
	if len(p.times) == 0 {
		return time.Time{}
	}
	return p.times[0]
}
