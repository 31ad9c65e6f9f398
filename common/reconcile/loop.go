// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"context"
	"fmt"
	"time"

	"kubeproxy/common/service"
)

// Loop runs one Backend. Set the exported fields before Run; SetTiming changes
// some of them later.
type Loop struct {
	Backend Backend
	// Latest returns what to program, nil until every source has synced.
	Latest func() *service.Snapshot
	// Report is called after each round, from the Loop's goroutine.
	Report func(Result)

	// MinInterval is the least time between the starts of two rounds, on
	// average: after a quiet time Burst rounds may follow one another sooner,
	// but no sooner than burstGap, so that changes that come together are
	// programmed together. A Burst of 0 counts as 1.
	MinInterval time.Duration
	Burst       int
	// CostFactor, if it is not 0, lets cheap rounds follow one another sooner: a
	// round is charged with CostFactor times as long as it took, if that is less
	// than MinInterval. With 50, rounds take 2 % of the time at most.
	CostFactor int
	Resync     time.Duration // longest pause between rounds
	// Grace is how long a round may still take when Run is to end, before its
	// context ends, too. Zero is for as long as it takes.
	Grace time.Duration
	Retry Backoff // pauses after failed rounds
	// Drift is the pause after rounds in a row that found what others had
	// altered, before what others do causes another round. DriftCostFactor, if it is
	// more, is how many times as long as the round took. See Result.DriftRounds.
	Drift           Backoff
	DriftCostFactor int
	// Enter, if set, reports that the dataplane may be touched until leave is
	// called. While it may not, Standby is called in place of rounds.
	Enter   func(context.Context) (leave func(), ok bool)
	Standby func(want *service.Snapshot)

	kick    chan struct{}
	changed chan struct{}
	drift   chan struct{}
	timings chan Timing // at most one, for Run to take in
}

// Timing is what of a Loop can change while it runs, see Loop.
type Timing struct {
	MinInterval, Resync time.Duration
	CostFactor          int
	Retry               Backoff
}

// Backoff is a pause that doubles from First to Max.
type Backoff struct{ First, Max time.Duration }

// After returns the pause after so many failures in a row, at least one.
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

// Kick asks for a round soon. It never blocks, and kicks coalesce.
func (l *Loop) Kick() { signal(l.kick) }

// SnapshotChanged is like Kick, where Latest may have something else to program. If it has
// not, and all is done, there is no round: most news are of what has no part in
// forwarding yet, and to look at a dataplane may take long. Report then has the
// latest Result once more, as of now.
func (l *Loop) SnapshotChanged() { signal(l.changed) }

// DataplaneChanged is like Kick, where others changed the dataplane. While they do so again
// and again, rounds are put off as Drift says.
func (l *Loop) DataplaneChanged() { signal(l.drift) }

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// SetTiming spaces rounds otherwise from now on, beginning with one at once. It
// never blocks, and the latest Pace counts. It is for one goroutine at a time.
func (l *Loop) SetTiming(p Timing) {
	select {
	case <-l.timings:
	default:
	}
	l.timings <- p
}

// Run does rounds until ctx ends, which is not an error. A round that has
// begun is finished first, if need be within Grace. A Kick cuts the pause after
// a failed round short, as do News: what changed may be what was wrong.
func (l *Loop) Run(ctx context.Context) error {
	failures := 0
	p := l.newLimiter()
	var last lastRound
	for why := resync; ctx.Err() == nil; {
		pause, start := l.Resync, time.Now()
		next, driftNext := start, start
		if want, leave := l.enter(ctx, &last); want != nil {
			if why == update && failures == 0 && want == last.want {
				last.renew(start)
			} else {
				last.want, last.result = want, l.uninterruptedRound(ctx, want)
				last.countDrift()
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
			p = l.newLimiter() // what the old pace has used up does not count
		}
	}
	return nil
}

// resyncPeriod is how long after a look at the dataplane the next one is due. The end of
// a dispute is to be noticed.
func (l *Loop) resyncPeriod(r *Result) time.Duration {
	if r.Contested() {
		return min(l.Resync, quietPeriod)
	}
	return l.Resync
}

// enter returns what to program, nil if nothing is to be or may be.
func (l *Loop) enter(ctx context.Context, last *lastRound) (want *service.Snapshot, leave func()) {
	leave = func() {}
	if want = l.Latest(); want == nil || l.Enter == nil {
		return want, leave
	}
	entered, ok := l.Enter(ctx)
	if ok {
		return want, entered
	}
	if f, forgets := l.Backend.(Forgetter); forgets && last.want != nil {
		f.Forget()
	}
	*last = lastRound{}
	if ctx.Err() == nil && l.Standby != nil {
		l.Standby(want)
	}
	return nil, leave
}

// waitForNext waits until another round is due: none before next, none before calm
// because of what others do, and one at the end at the latest.
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

// lastRound is the latest round of a Loop.
type lastRound struct {
	want   *service.Snapshot
	result Result
	// lastResync is when a round last began that may have found what others did:
	// what changes all the time must not put such rounds off.
	lastResync time.Time
	// driftRounds and drifted count rounds with Drift and say when the latest was.
	driftRounds int
	lastDrift   time.Time
}

// renew has the result count for start, too, when there is nothing else to do.
func (l *lastRound) renew(start time.Time) {
	r := &l.result
	r.Start, r.Took = start, time.Since(start)
	r.Changed, r.FullSync, r.Drift, r.Removed = false, false, nil, nil
}

// trigger is why a round is due: somebody should look at the dataplane, or there
// may be something else to program.
type trigger bool

const (
	resync trigger = false
	update trigger = true
)

// burstGap is the least time between the starts of two rounds of a burst,
// long enough for what comes together and too short for people to notice.
const burstGap = 10 * time.Millisecond

// limiter spaces rounds.
type limiter struct {
	interval   time.Duration
	burst      int
	costFactor int
	// fullBurstAt is when a whole burst is allowed again: every round puts it off
	// by an interval, or by less if it was cheap.
	fullBurstAt time.Time
}

func (l *Loop) newLimiter() limiter {
	return limiter{interval: l.MinInterval, burst: max(l.Burst, 1), costFactor: l.CostFactor}
}

// nextStart notes a round that started then and cost so much, and returns when
// another one may start.
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

// uninterruptedRound does a round that goes on when ctx ends.
func (l *Loop) uninterruptedRound(ctx context.Context, want *service.Snapshot) Result {
	round, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	if l.Grace > 0 {
		defer context.AfterFunc(ctx, func() { time.AfterFunc(l.Grace, end) })()
	}
	return l.round(round, want)
}

func (l *Loop) round(ctx context.Context, want *service.Snapshot) Result {
	r := Result{Generation: want.Generation, Start: time.Now()}
	plan, err := l.Backend.Plan(ctx, want)
	if err != nil {
		r.Err = fmt.Errorf("plan: %w", err)
	} else {
		apply(ctx, plan, &r)
	}
	if b, ok := l.Backend.(SuspectFinder); ok && len(r.Drift) > 0 {
		r.Suspect = b.Suspect()
	}
	r.Took = time.Since(r.Start)
	return r
}

// apply applies plan and notes in r what came of it.
func apply(ctx context.Context, plan Plan, r *Result) {
	if w, ok := plan.(FullSyncer); ok {
		r.FullSync = w.FullSync()
	}
	r.Drift = plan.Drift()
	if !plan.Empty() {
		r.Changed = true
		if m, ok := plan.(Remover); ok {
			r.Removed = m.Removed()
		}
		r.Err = plan.Apply(ctx)
	}
	if b, ok := plan.(FamilyUnavailable); ok {
		r.Unavailable = b.Unavailable()
	}
	if n, ok := plan.(NotesReporter); ok {
		r.Notes = n.Notes()
	}
}

// sleep waits until a time, for a channel, for ctx or for another Pace, which it
// takes in and reports. woken means that it did not wait for the time.
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
		case <-kick: // asks for more
		case <-drift:
		default:
			return false, true, update
		}
	case p := <-l.timings:
		l.MinInterval, l.Resync, l.CostFactor, l.Retry = p.MinInterval, p.Resync, p.CostFactor, p.Retry
		if b, ok := l.Backend.(ResyncSetter); ok {
			b.SetResync(p.Resync)
		}
		return true, true, resync
	}
	return false, true, resync
}
