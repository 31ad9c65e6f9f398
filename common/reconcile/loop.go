// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"context"
	"fmt"
	"time"

	"kubeproxy/common/service"
)

// Loop runs one Backend. Set the exported fields before Run; SetPace changes
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
	// Effort, if it is not 0, lets cheap rounds follow one another sooner: a
	// round is charged with Effort times as long as it took, if that is less
	// than MinInterval. With 50, rounds take 2 % of the time at most.
	Effort int
	Resync time.Duration // longest pause between rounds
	// Grace is how long a round may still take when Run is to end, before its
	// context ends, too. Zero is for as long as it takes.
	Grace time.Duration
	Retry Backoff // pauses after failed rounds
	// Drift is the pause after rounds in a row that found what others had
	// altered, before what others do causes another round. DriftEffort, if it is
	// more, is how many times as long as the round took. See Result.Disputes.
	Drift       Backoff
	DriftEffort int
	// Enter, if set, reports that the dataplane may be touched until leave is
	// called. While it may not, Standby is called in place of rounds.
	Enter   func(context.Context) (leave func(), ok bool)
	Standby func(want *service.Snapshot)

	kick  chan struct{}
	news  chan struct{}
	drift chan struct{}
	paces chan Pace // at most one, for Run to take in
}

// Pace is what of a Loop can change while it runs, see Loop.
type Pace struct {
	MinInterval, Resync time.Duration
	Effort              int
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
	return &Loop{Backend: b, kick: make(chan struct{}, 1), news: make(chan struct{}, 1), drift: make(chan struct{}, 1), paces: make(chan Pace, 1)}
}

// Kick asks for a round soon. It never blocks, and kicks coalesce.
func (l *Loop) Kick() { nudge(l.kick) }

// News is like Kick, where Latest may have something else to program. If it has
// not, and all is done, there is no round: most news are of what has no part in
// forwarding yet, and to look at a dataplane may take long. Report then has the
// latest Result once more, as of now.
func (l *Loop) News() { nudge(l.news) }

// Touched is like Kick, where others changed the dataplane. While they do so again
// and again, rounds are put off as Drift says.
func (l *Loop) Touched() { nudge(l.drift) }

func nudge(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// SetPace spaces rounds otherwise from now on, beginning with one at once. It
// never blocks, and the latest Pace counts. It is for one goroutine at a time.
func (l *Loop) SetPace(p Pace) {
	select {
	case <-l.paces:
	default:
	}
	l.paces <- p
}

// Run does rounds until ctx ends, which is not an error. A round that has
// begun is finished first, if need be within Grace. A Kick cuts the pause after
// a failed round short, as do News: what changed may be what was wrong.
func (l *Loop) Run(ctx context.Context) error {
	failures := 0
	p := l.pace()
	var last latest
	for why := looking; ctx.Err() == nil; {
		pause, start := l.Resync, time.Now()
		next, calm := start, start
		if want, leave := l.enter(ctx, &last); want != nil {
			if why == hearing && failures == 0 && want == last.want {
				last.again(start)
			} else {
				last.want, last.result = want, l.finish(ctx, want)
				last.dispute()
			}
			r := last.result
			if why == looking || r.Whole || last.looked.IsZero() {
				last.looked = start
			}
			l.Report(r)
			next = p.next(start, time.Since(start))
			calm = start.Add(l.truce(&r))
			failures++
			if r.Done() {
				failures = 0
				pause = l.untilLook(&r) - start.Sub(last.looked)
			} else {
				pause = min(pause, l.Retry.After(failures))
			}
			leave()
		}
		var paced bool
		if paced, why = l.rest(ctx, next, calm, start.Add(pause)); paced {
			p = l.pace() // what the old pace has used up does not count
		}
	}
	return nil
}

// untilLook is how long after a look at the dataplane the next one is due. The end of
// a dispute is to be noticed.
func (l *Loop) untilLook(r *Result) time.Duration {
	if r.Contested() {
		return min(l.Resync, quiet)
	}
	return l.Resync
}

// enter returns what to program, nil if nothing is to be or may be.
func (l *Loop) enter(ctx context.Context, last *latest) (want *service.Snapshot, leave func()) {
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
	*last = latest{}
	if ctx.Err() == nil && l.Standby != nil {
		l.Standby(want)
	}
	return nil, leave
}

// rest waits until another round is due: none before next, none before calm
// because of what others do, and one at the end at the latest.
func (l *Loop) rest(ctx context.Context, next, calm, end time.Time) (paced bool, why reason) {
	for _, stage := range []struct {
		until             time.Time
		kick, news, drift <-chan struct{}
	}{
		{until: next},
		{until: calm, kick: l.kick, news: l.news},
		{until: end, kick: l.kick, news: l.news, drift: l.drift},
	} {
		woken := false
		paced, woken, why = l.sleep(ctx, stage.until, stage.kick, stage.news, stage.drift)
		if paced || woken {
			return paced, why
		}
	}
	return false, looking
}

// latest is the latest round of a Loop.
type latest struct {
	want   *service.Snapshot
	result Result
	// looked is when a round last began that may have found what others did:
	// what changes all the time must not put such rounds off.
	looked time.Time
	// disputes and drifted count rounds with Drift and say when the latest was.
	disputes int
	drifted  time.Time
}

// again has the result count for start, too, when there is nothing else to do.
func (l *latest) again(start time.Time) {
	r := &l.result
	r.Start, r.Took = start, time.Since(start)
	r.Changed, r.Whole, r.Drift, r.Removed = false, false, nil, nil
}

// reason is why a round is due: somebody should look at the dataplane, or there
// may be something else to program.
type reason bool

const (
	looking reason = false
	hearing reason = true
)

// burstGap is the least time between the starts of two rounds of a burst,
// long enough for what comes together and too short for people to notice.
const burstGap = 10 * time.Millisecond

// pace spaces rounds.
type pace struct {
	interval time.Duration
	burst    int
	effort   int
	// full is when a whole burst is allowed again: every round puts it off
	// by an interval, or by less if it was cheap.
	full time.Time
}

func (l *Loop) pace() pace {
	return pace{interval: l.MinInterval, burst: max(l.Burst, 1), effort: l.Effort}
}

// next notes a round that started then and cost so much, and returns when
// another one may start.
func (p *pace) next(start time.Time, cost time.Duration) time.Time {
	if p.full.Before(start) {
		p.full = start
	}
	charge := p.interval
	if p.effort > 0 {
		charge = min(charge, time.Duration(p.effort)*cost)
	}
	p.full = p.full.Add(charge)
	earliest := p.full.Add(-time.Duration(p.burst-1) * p.interval)
	if gap := start.Add(min(burstGap, p.interval)); earliest.Before(gap) {
		return gap
	}
	return earliest
}

// finish does a round that goes on when ctx ends.
func (l *Loop) finish(ctx context.Context, want *service.Snapshot) Result {
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
	if b, ok := l.Backend.(Suspecter); ok && len(r.Drift) > 0 {
		r.Suspect = b.Suspect()
	}
	r.Took = time.Since(r.Start)
	return r
}

// apply applies plan and notes in r what came of it.
func apply(ctx context.Context, plan Plan, r *Result) {
	if w, ok := plan.(Whole); ok {
		r.Whole = w.Whole()
	}
	r.Drift = plan.Drift()
	if !plan.Empty() {
		r.Changed = true
		if m, ok := plan.(Remover); ok {
			r.Removed = m.Removed()
		}
		r.Err = plan.Apply(ctx)
	}
	if b, ok := plan.(Bounded); ok {
		r.Without = b.Without()
	}
	if n, ok := plan.(Noter); ok {
		r.Notes = n.Notes()
	}
}

// sleep waits until a time, for a channel, for ctx or for another Pace, which it
// takes in and reports. woken means that it did not wait for the time.
func (l *Loop) sleep(ctx context.Context, until time.Time, kick, news, drift <-chan struct{}) (paced, woken bool, why reason) {
	t := time.NewTimer(max(time.Until(until), 0))
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
		return false, false, looking
	case <-kick:
	case <-drift:
	case <-news:
		select {
		case <-kick: // asks for more
		case <-drift:
		default:
			return false, true, hearing
		}
	case p := <-l.paces:
		l.MinInterval, l.Resync, l.Effort, l.Retry = p.MinInterval, p.Resync, p.Effort, p.Retry
		if b, ok := l.Backend.(Paced); ok {
			b.SetResync(p.Resync)
		}
		return true, true, looking
	}
	return false, true, looking
}
