// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"fmt"
	"time"
)

// quietPeriod is the time without foreign changes that ends a dispute.
const quietPeriod = time.Minute

// countDrift counts the latest round if it found foreign changes.
func (l *lastRound) countDrift() {
	r := &l.result
	switch {
	case len(r.Drift) > 0:
		l.driftRounds++
		l.lastDrift = r.Start
	case l.driftRounds > 0 && r.Start.Sub(l.lastDrift) >= quietPeriod:
		l.driftRounds = 0
	}
	r.DriftRounds = l.driftRounds
}

// contestedRounds is how many rounds must find foreign changes to make a dispute. One
// operator who experiments does not cause that many.
const contestedRounds = 10

// Contested reports whether another process alters the dataplane again and again.
func (r *Result) Contested() bool { return r.DriftRounds >= contestedRounds }

// driftPause returns how long after r foreign changes cause no round. A few changes are
// repaired at once. Recurring changes are repaired at least once in Drift.Max, which
// bounds the time that the dataplane is broken, unless comparing it takes long.
func (l *Loop) driftPause(r *Result) time.Duration {
	if r.DriftRounds < contestedRounds/2 || l.Drift.First == 0 || len(r.Drift) == 0 {
		return 0
	}
	return max(l.Drift.After(r.DriftRounds-contestedRounds/2+1), time.Duration(l.DriftCostFactor)*r.Took)
}

// MaxDrift is how many changes Outcome.Drift names.
const MaxDrift = 20

// DriftReport collects the lines of Outcome.Drift. The zero value is empty.
type DriftReport struct {
	lines []string
	n     int
}

// Add adds a change. Those after MaxDrift are only counted, so text is not called for them:
// whoever flushes the rules changes them all.
func (r *DriftReport) Add(text func() string) {
	if r.n++; r.n <= MaxDrift {
		r.lines = append(r.lines, text())
	}
}

// Lines returns a line for each change, and one for those that are only counted.
func (r *DriftReport) Lines() []string {
	if r.n > MaxDrift {
		return append(r.lines, fmt.Sprintf("and %d more", r.n-MaxDrift))
	}
	return r.lines
}
