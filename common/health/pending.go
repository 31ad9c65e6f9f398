// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package health

import (
	"slices"
	"time"
)

// maxTimes bounds what pending remembers. It is even, see thin.
const maxTimes = 64

// pending knows since when something is to be done. A round settles what came
// before it began; for what came during it, the times are kept.
type pending struct {
	times []time.Time // the oldest first
}

func (p *pending) add(t time.Time) {
	if len(p.times) == maxTimes {
		p.thinOut()
	}
	p.times = append(p.times, t)
}

// thinOut forgets every second time but the first and the last. What is
// forgotten is stood for by the time after it: an age may then come out too
// low by the gap between the two, but nothing is settled that is not done.
func (p *pending) thinOut() {
	kept := p.times[:1]
	for i := 1; i < len(p.times); i += 2 {
		kept = append(kept, p.times[i])
	}
	p.times = kept
}

// clearUntil forgets what came before start.
func (p *pending) clearUntil(start time.Time) {
	p.times = slices.DeleteFunc(p.times, func(t time.Time) bool { return !t.After(start) })
}

// atLeast makes sure that something is to be done, since t if since nothing
// older.
func (p *pending) atLeast(t time.Time) {
	if len(p.times) == 0 || t.Before(p.times[0]) {
		p.times = slices.Insert(p.times, 0, t)
	}
}

// oldest returns since when something is to be done, zero for nothing.
func (p *pending) oldest() time.Time {
	if len(p.times) == 0 {
		return time.Time{}
	}
	return p.times[0]
}
