// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package reconcile

import "time"

// Forgetter is a Backend that caches the dataplane and can drop that cache, so that its
// next round lists the dataplane like a first one. A Loop calls Forget when another
// process has programmed the dataplane.
type Forgetter interface {
	Backend
	// Forget is called between two rounds.
	Forget()
}

// SuspectFinder is a Backend that may know which process altered its dataplane.
type SuspectFinder interface {
	Backend
	// Suspect names the process that altered it last. It is empty if that is unknown.
	Suspect() string
}

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
