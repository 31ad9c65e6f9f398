// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"kubeproxy/common/service"
)

// Loop runs one Backend in rounds of Plan and Apply. Set the exported fields before Run.
// SetTiming changes some of them later.
type Loop struct {
	Backend Backend
	// Latest returns the snapshot to program, nil until every source has synced.
	Latest func() *service.Snapshot
	// Report is called after each round, from the Loop's goroutine.
	Report func(Result)

	// MinInterval is the least average time between the starts of rounds. After a quiet time, Burst
	// rounds, 0 counting as 1, may follow one another after burstGap, in which changes gather.
	MinInterval time.Duration
	Burst       int
	// CostFactor, if set, lets cheap rounds follow sooner: a round is charged CostFactor times its
	// duration, MinInterval at most. With 50, rounds take at most 2 % of the time.
	CostFactor int
	Resync     time.Duration // longest pause between rounds
	// Grace is how long a round may go on after Run's context, before its own ends, 0 for ever.
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

// DataplaneChanged is like Kick, for others' changes. Drift delays rounds if they recur.
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

// resyncPeriod is the time to the next resync, shorter in a dispute, to notice its end.
func (l *Loop) resyncPeriod(r *Result) time.Duration {
	if r.Contested() {
		return min(l.Resync, quietPeriod)
	}
	return l.Resync
}

// enter returns the snapshot to program, nil without one or if this process may not.
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

// record makes r the latest result. If r did not get to the rules, they are as they were.
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

// trigger is why a round is due: to check the dataplane, or maybe for a new snapshot alone.
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
	// fullBurstAt is when a whole burst is allowed again. Rounds delay it by what they cost.
	fullBurstAt time.Time
}

func (l *Loop) newLimiter() limiter {
	return limiter{interval: l.MinInterval, burst: max(l.Burst, 1), costFactor: l.CostFactor}
}

// nextStart charges a round that began at start and took cost, and returns when to start next.
func (l *limiter) nextStart(start time.Time, cost time.Duration) time.Time {
	if l.fullBurstAt.Before(start) {
		l.fullBurstAt = start
	}
	charge := l.interval
	if l.costFactor > 0 {
		charge = min(charge, time.Duration(l.costFactor)*cost)
	}
	l.fullBurstAt = l.fullBurstAt.Add(charge)
	earliest := l.fullBurstAt.Add(-time.Duration(l.burst-1) * l.interval)
	if gap := start.Add(min(burstGap, l.interval)); earliest.Before(gap) {
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

// Outcome is all that a Backend reports about a round.
type Outcome struct {
	// Err joins what failed, nil only if the dataplane matches. A PortError names its port.
	Err error
	// FullSync means that the whole dataplane was compared, not only what changed.
	FullSync bool
	// Drift describes, one line each, foreign changes, which Apply repairs. It is empty
	// in a first round, where nothing counts as altered. Suspect names the process that
	// altered the dataplane last. It is empty if that is unknown.
	Drift   []string
	Suspect string
	// Removed are frontends that an earlier process left and that the plan removes, as
	// Ports without endpoints. No snapshot of this process ever contained them.
	Removed []*service.Port
	// Notes describe where the dataplane differs from what Services specify.
	Notes Notes
	// Unavailable is why no port is programmed, as this node lacks the family, empty if they are.
	Unavailable string
	// Degraded describes the optional feature that the node does not have, if any.
	Degraded string
	// Rules counts the rules of a dataplane that is written as text, nil for others.
	Rules *Rules
}

// Limits lists what the dataplane does otherwise than the Services of want ask, a line each: what the errors of their
// ports say, and then the notes.
func (o *Outcome) Limits(want *service.Snapshot, f service.Family) (unsupported, notes []string) {
	for _, e := range PortErrors(o.Err) {
		for text := range strings.SplitSeq(e.Err.Error(), "\n") { // joined errors
			unsupported = append(unsupported, (&PortError{e.Family, e.Name, errors.New(text)}).Error())
		}
	}
	if o.Unavailable != "" && want.Len(f) > 0 {
		notes = append(notes, fmt.Sprintf("nothing is programmed for %s: %s", f, o.Unavailable))
	}
	for _, n := range slices.SortedFunc(maps.Keys(o.Notes), service.PortName.Compare) {
		for _, note := range o.Notes[n] {
			notes = append(notes, (&PortError{f, n, errors.New(note.Text)}).Error())
		}
	}
	return unsupported, notes
}

// Notes are about ports in force. They must not be modified after they were returned.
type Notes map[service.PortName][]Note

// Note is a difference that an operator should know of.
type Note struct {
	Text string
	// Transient means that it depends on endpoints, and so changes many times a day: no Event is about it.
	Transient bool
}

// Rules counts the rules of a dataplane.
type Rules struct {
	// Refused means that some were refused, even if only for some ports.
	Refused bool
	// Held is the number of our rules, by table. It is nil while that is unknown.
	Held map[string]int
	// Written is the number of rules that the round wrote, by table.
	Written map[string]int
}

// unwritten returns r for a round that wrote nothing.
func (r *Rules) unwritten() *Rules {
	if r == nil {
		return nil
	}
	none := make(map[string]int, len(r.Written))
	for table := range r.Written {
		none[table] = 0
	}
	return &Rules{Held: r.Held, Written: none}
}

// Result is a round and its Outcome. It is the only source for logs, health and metrics.
type Result struct {
	Outcome
	Snapshot   *service.Snapshot // that the round was for
	Generation uint64            // of Snapshot
	Start      time.Time
	Took       time.Duration
	Changed    bool // the plan was not empty
	// DriftRounds is how many rounds found foreign changes, without a quiet minute between.
	DriftRounds int
}

// Done reports whether the dataplane matches the snapshot as far as it ever will.
func (r *Result) Done() bool { return r.Err == nil || Unsupported(r.Err) }

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

// Add adds a change. Those after MaxDrift are only counted: who flushes rules changes all.
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
