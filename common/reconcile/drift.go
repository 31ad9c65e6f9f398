// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package reconcile

import "time"

// Forgetter is a Backend that can be asked to read the dataplane in its next
// round, as in a first one: another process programmed it meanwhile.
type Forgetter interface {
	Backend
	// Forget is called between two rounds.
	Forget()
}

// SuspectFinder is a Backend that may know which process altered its dataplane.
type SuspectFinder interface {
	Backend
	// Suspect names the process that did so last, nothing if that is not known.
	Suspect() string
}

// quietPeriod is how long others must have altered nothing to end a dispute.
const quietPeriod = time.Minute

// countDrift counts the latest round among those that found what others had altered.
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

// contestedRounds is how many rounds must find what others had altered to call it a
// dispute. One operator who tries something does not make that many.
const contestedRounds = 10

// Contested reports that others alter the dataplane again and again.
func (r *Result) Contested() bool { return r.DriftRounds >= contestedRounds }

// driftPause is how long what others do is to cause no round after r. A few changes
// are repaired at once. Whoever makes changes again and again gets a repair at least
// once in Drift.Max, so a dataplane that others break is broken no longer, but for
// one that takes long to compare.
func (l *Loop) driftPause(r *Result) time.Duration {
	if r.DriftRounds < contestedRounds/2 || l.Drift.First == 0 || len(r.Drift) == 0 {
		return 0
	}
	return max(l.Drift.After(r.DriftRounds-contestedRounds/2+1), time.Duration(l.DriftCostFactor)*r.Took)
}
