// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"context"
	"fmt"
	"time"

	"kubeproxy/common/service"
)

// Loop runs one Backend in rounds of Plan and Apply. Set the exported fields before Run.
// SetTiming changes some of them later.
type Loop struct {
	Backend Backend
	// Latest returns the snapshot to program. It returns nil until every source has
	// synced.
	Latest func() *service.Snapshot
	// Report is called after each round, from the Loop's goroutine.
	Report func(Result)

	// MinInterval is the least average time between the starts of two rounds. After a
	// quiet time, Burst rounds may follow one another sooner, but no sooner than
	// burstGap, so that changes that arrive together are programmed together. A Burst of
	// 0 counts as 1.
	MinInterval time.Duration
	Burst       int
	// CostFactor, if it is not 0, lets cheap rounds follow one another sooner. A round is
	// charged CostFactor times its duration, and MinInterval at most. With 50, rounds
	// take at most 2 % of the time.
	CostFactor int
	Resync     time.Duration // longest pause between rounds
	// Grace is how long a round may still run after Run's context has ended. Then the
	// round's context ends too. Zero means no limit.
	Grace time.Duration
	Retry Backoff // pauses after failed rounds
	// Drift is the backoff after consecutive rounds that found foreign changes. During
	// the pause, DataplaneChanged causes no round. If DriftCostFactor times the duration
	// of the round is longer, that is the pause. See Result.DriftRounds.
	Drift           Backoff
	DriftCostFactor int
	// Enter, if set, reports whether this process may program the dataplane. If so, that
	// holds until leave is called. If not, the Loop calls Standby instead of a round.
	Enter   func(context.Context) (leave func(), ok bool)
	Standby func(want *service.Snapshot)

	kick    chan struct{}
	changed chan struct{}
	drift   chan struct{}
	timings chan Timing // at most one, for Run to apply
}

// Timing holds the fields of a Loop that can change while it runs. See Loop.
type Timing struct {
	MinInterval, Resync time.Duration
	CostFactor          int
	Retry               Backoff
}

// Backoff is a pause that doubles from First to Max.
type Backoff struct{ First, Max time.Duration }

// After returns the pause after this many consecutive failures, at least one.
func (b Backoff) After(failures int) time.Duration {
	d := b.First
	for range failures - 1 {
		if d >= b.Max {
			return b.Max
		}
		d *= 2
	}
	return min(d, b.Max)
}

// NewLoop returns a Loop for b.
func NewLoop(b Backend) *Loop {
	return &Loop{Backend: b, kick: make(chan struct{}, 1), changed: make(chan struct{}, 1), drift: make(chan struct{}, 1), timings: make(chan Timing, 1)}
}

// Kick requests a round soon. It never blocks, and kicks coalesce.
func (l *Loop) Kick() { signal(l.kick) }

// SnapshotChanged is like Kick, but for a possible change of the snapshot. If Latest
// returns the same snapshot as before and the last round succeeded, there is no round:
// most updates do not affect forwarding yet, and listing a dataplane can take long.
// Report then gets the latest Result again, with the present time.
func (l *Loop) SnapshotChanged() { signal(l.changed) }

// DataplaneChanged is like Kick, for a change of the dataplane by another process. If
// such changes recur, Drift delays the rounds.
func (l *Loop) DataplaneChanged() { signal(l.drift) }

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// SetTiming applies p from now on, starting with a round at once. It never blocks, and
// the latest Timing wins. Only one goroutine may call it at a time.
func (l *Loop) SetTiming(p Timing) {
	select {
	case <-l.timings:
	default:
	}
	l.timings <- p
}

// Run does rounds until ctx ends, which is not an error. A round that has begun is
// finished first, within Grace. Kick and SnapshotChanged end the pause after a failed
// round early, because the change may have removed the cause of the failure.
func (l *Loop) Run(ctx context.Context) error {
	failures := 0
	p := l.newLimiter()
	var last lastRound
	for why := resync; ctx.Err() == nil; {
		pause, start := l.Resync, time.Now()
		next, driftNext := start, start
		if want, leave := l.enter(ctx, &last); want != nil {
			if why == update && failures == 0 && want == last.result.Snapshot {
				last.renew(start)
			} else {
				last.record(l.uninterruptedRound(ctx, want))
			}
			r := last.result
			if why == resync || r.FullSync || last.lastResync.IsZero() {
				last.lastResync = start
			}
			l.Report(r)
			next = p.nextStart(start, time.Since(start))
			driftNext = start.Add(l.driftPause(&r))
			failures++
			if r.Done() {
				failures = 0
				pause = l.resyncPeriod(&r) - start.Sub(last.lastResync)
			} else {
				pause = min(pause, l.Retry.After(failures))
			}
			leave()
		}
		var retimed bool
		if retimed, why = l.waitForNext(ctx, next, driftNext, start.Add(pause)); retimed {
			p = l.newLimiter() // the budget used under the old Timing does not count
		}
	}
	return nil
}

// resyncPeriod is the time from one resync to the next. It is shorter during a dispute,
// so that the end of the dispute is noticed.
func (l *Loop) resyncPeriod(r *Result) time.Duration {
	if r.Contested() {
		return min(l.Resync, quietPeriod)
	}
	return l.Resync
}

// enter returns the snapshot to program. It returns nil if there is none or if this
// process may not program.
func (l *Loop) enter(ctx context.Context, last *lastRound) (want *service.Snapshot, leave func()) {
	leave = func() {}
	if want = l.Latest(); want == nil || l.Enter == nil {
		return want, leave
	}
	entered, ok := l.Enter(ctx)
	if ok {
		return want, entered
	}
	if last.result.Snapshot != nil {
		l.Backend.Forget()
	}
	*last = lastRound{}
	if ctx.Err() == nil && l.Standby != nil {
		l.Standby(want)
	}
	return nil, leave
}

// waitForNext waits until another round is due: not before next, not before driftNext if
// only foreign changes ask for it, and at end at the latest.
func (l *Loop) waitForNext(ctx context.Context, next, driftNext, end time.Time) (retimed bool, why trigger) {
	for _, stage := range []struct {
		until                time.Time
		kick, changed, drift <-chan struct{}
	}{
		{until: next},
		{until: driftNext, kick: l.kick, changed: l.changed},
		{until: end, kick: l.kick, changed: l.changed, drift: l.drift},
	} {
		woken := false
		retimed, woken, why = l.sleep(ctx, stage.until, stage.kick, stage.changed, stage.drift)
		if retimed || woken {
			return retimed, why
		}
	}
	return false, resync
}

// lastRound is the state that a Loop keeps of its latest round.
type lastRound struct {
	result Result // without a Snapshot before the first round
	// lastResync is the start of the latest round that may have found foreign changes.
	// Frequent updates must not delay such rounds.
	lastResync time.Time
	// driftRounds counts rounds with Drift. lastDrift is the start of the latest one.
	driftRounds int
	lastDrift   time.Time
}

// record makes r the latest result. If the backend did not get as far as its rules, they
// are as they were.
func (l *lastRound) record(r Result) {
	if r.Rules == nil {
		r.Rules = l.result.Rules.unwritten()
	}
	l.result = r
	l.countDrift()
}

// renew reuses the result for a round at start that had nothing to do.
func (l *lastRound) renew(start time.Time) {
	r := &l.result
	r.Start, r.Took = start, time.Since(start)
	r.Changed, r.FullSync, r.Drift, r.Removed = false, false, nil, nil
	r.Rules = r.Rules.unwritten()
}

// trigger is why a round is due: either the dataplane must be checked, or only the
// snapshot may have changed.
type trigger bool

const (
	resync trigger = false
	update trigger = true
)

// burstGap is the least time between the starts of two rounds of a burst. It is long
// enough to collect changes that arrive together, and too short for people to notice.
const burstGap = 10 * time.Millisecond

// limiter enforces MinInterval, Burst and CostFactor.
type limiter struct {
	interval   time.Duration
	burst      int
	costFactor int
	// fullBurstAt is when a whole burst is allowed again. Each round delays it by an
	// interval, or by less if the round was cheap.
	fullBurstAt time.Time
}

func (l *Loop) newLimiter() limiter {
	return limiter{interval: l.MinInterval, burst: max(l.Burst, 1), costFactor: l.CostFactor}
}

// nextStart charges a round that began at start and took cost. It returns when the next
// round may start.
func (p *limiter) nextStart(start time.Time, cost time.Duration) time.Time {
	if p.fullBurstAt.Before(start) {
		p.fullBurstAt = start
	}
	charge := p.interval
	if p.costFactor > 0 {
		charge = min(charge, time.Duration(p.costFactor)*cost)
	}
	p.fullBurstAt = p.fullBurstAt.Add(charge)
	earliest := p.fullBurstAt.Add(-time.Duration(p.burst-1) * p.interval)
	if gap := start.Add(min(burstGap, p.interval)); earliest.Before(gap) {
		return gap
	}
	return earliest
}

// uninterruptedRound does a round that outlives ctx by Grace.
func (l *Loop) uninterruptedRound(ctx context.Context, want *service.Snapshot) Result {
	round, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	if l.Grace > 0 {
		defer context.AfterFunc(ctx, func() { time.AfterFunc(l.Grace, end) })()
	}
	return l.round(round, want)
}

func (l *Loop) round(ctx context.Context, want *service.Snapshot) Result {
	r := Result{Snapshot: want, Generation: want.Generation, Start: time.Now()}
	plan, err := l.Backend.Plan(ctx, want)
	if err != nil {
		r.Err = fmt.Errorf("plan: %w", err)
	} else {
		r.Changed, r.Outcome = !plan.Empty(), outcomeOf(ctx, plan)
	}
	r.Took = time.Since(r.Start)
	return r
}

// sleep waits for a time, a channel, the end of ctx or a new Timing. It applies the
// Timing and returns retimed. woken means that sleep returned before the time.
func (l *Loop) sleep(ctx context.Context, until time.Time, kick, changed, drift <-chan struct{}) (retimed, woken bool, why trigger) {
	t := time.NewTimer(max(time.Until(until), 0))
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
		return false, false, resync
	case <-kick:
	case <-drift:
	case <-changed:
		select {
		case <-kick: // needs a full round
		case <-drift:
		default:
			return false, true, update
		}
	case p := <-l.timings:
		l.MinInterval, l.Resync, l.CostFactor, l.Retry = p.MinInterval, p.Resync, p.CostFactor, p.Retry
		l.Backend.SetResync(p.Resync)
		return true, true, resync
	}
	return false, true, resync
}
