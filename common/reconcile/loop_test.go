// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"kubeproxy/common/service"
	"kubeproxy/test/kit"
)

var errRefused = errors.New("refused")

// harness is a Loop with a scripted Backend, within a synctest bubble. Times count from
// the bubble's start.
type harness struct {
	Base
	*Loop
	*testing.T
	mu        sync.Mutex // for stories that read or change fields while timers run
	begin     time.Time
	latest    *service.Snapshot
	planErr   error
	applies   []error         // results of Apply in the coming rounds; nil after the last one
	applyTime time.Duration   // duration of Apply
	empty     bool            // plans are empty
	fullSync  bool            // they compared everything
	drift     []string        // that plans found
	rounds    []time.Duration // when Plan was called
	applied   int
	forgets   int // calls of Forget
	results   []Result
	cancel    context.CancelFunc
	done      chan error
}

// run runs story in a bubble next to a Loop, and stops the Loop after it.
func run(t *testing.T, set func(*harness), story func(*harness)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &harness{T: t, begin: time.Now(), latest: service.New(1, &service.Node{NodePorts: service.AnyAddress()}, nil), done: make(chan error, 1)}
		b.Loop = NewLoop(b)
		b.MinInterval, b.Resync = time.Second, time.Hour
		b.Retry = Backoff{First: 2 * time.Second, Max: 10 * time.Second}
		b.Latest = func() *service.Snapshot { return b.latest }
		b.Report = func(r Result) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.results = append(b.results, r)
		}
		if set != nil {
			set(b)
		}
		ctx, cancel := context.WithCancel(t.Context())
		b.cancel = cancel
		go func() { b.done <- b.Loop.Run(ctx) }()
		synctest.Wait()
		story(b)
		cancel()
		err := <-b.done
		kit.Check(t, err == nil, "Run = %v, want nil", err)
	})
}

func (h *harness) Plan(context.Context, *service.Snapshot) (Plan, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.rounds = append(h.rounds, time.Since(h.begin))
	return fakePlan{h}, h.planErr
}

func (h *harness) Cleanup(context.Context) error { return nil }
func (h *harness) Forget()                       { h.forgets++ }

type fakePlan struct{ *harness }

func (p fakePlan) Changes() Changes { return nil }
func (p fakePlan) Empty() bool      { return p.empty }
func (p fakePlan) Outcome() Outcome {
	p.mu.Lock()
	defer p.mu.Unlock()
	o := Outcome{FullSync: p.fullSync, Drift: p.drift, Rules: &Rules{Held: held, Written: map[string]int{"nat": 0}}}
	if !p.empty {
		o.Removed = []*service.Port{{}}
	}
	return o
}

// held is what a fakePlan says that its tables hold.
var held = map[string]int{"nat": 3}

func (p fakePlan) Apply(ctx context.Context) Outcome {
	o := p.Outcome()
	o.Err = p.apply(ctx)
	o.Rules.Refused, o.Rules.Written = o.Err != nil, map[string]int{"nat": 2}
	return o
}

func (p fakePlan) apply(ctx context.Context) error {
	select {
	case <-time.After(p.applyTime):
	case <-ctx.Done():
	}
	p.applied++
	if err := ctx.Err(); err != nil {
		return err
	}
	if len(p.applies) == 0 {
		return nil
	}
	err := p.applies[0]
	p.applies = p.applies[1:]
	return err
}

// count returns how many rounds there have been so far.
func (h *harness) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.rounds)
}

// last returns the newest Result.
func (h *harness) last() Result {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.results[len(h.results)-1]
}

// setDrift sets the drift that plans find.
func (h *harness) setDrift(d []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.drift = d
}

// pass sleeps for d and lets the Loop finish what is due by then.
func (h *harness) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// after sleeps for d, then kicks.
func (h *harness) after(d time.Duration) {
	h.pass(d)
	h.Kick()
	synctest.Wait()
}

// at checks that the rounds so far began at these times.
func (h *harness) at(want ...time.Duration) {
	h.Helper()
	if diff := cmp.Diff(want, h.rounds); diff != "" {
		h.Errorf("rounds (-want +got):\n%s", diff)
	}
}

const ms = time.Millisecond

func TestRounds(t *testing.T) {
	for name, tt := range map[string]struct {
		set   func(*harness)
		story func(*harness)
		want  []time.Duration
	}{
		"one at the start": {nil, func(b *harness) { b.pass(time.Minute) }, []time.Duration{0}},
		"a kick after a quiet time is answered at once": {
			nil, func(b *harness) { b.after(10 * time.Second) }, []time.Duration{0, 10 * time.Second},
		},
		"kicks coalesce": {nil, func(b *harness) {
			for range 5 {
				b.after(100 * ms)
			}
			b.pass(10 * time.Second)
		}, []time.Duration{0, time.Second}},
		"a kick during a round asks for another": {
			func(b *harness) { b.applyTime = 3 * time.Second },
			func(b *harness) { b.after(2 * time.Second); b.pass(time.Minute) },
			[]time.Duration{0, 3 * time.Second},
		},
		"resync": {
			nil, func(b *harness) { b.pass(2*time.Hour + time.Second) },
			[]time.Duration{0, time.Hour, 2 * time.Hour},
		},
		"a round puts the resync off": {nil, func(b *harness) {
			b.after(30 * time.Minute)
			b.pass(time.Hour + time.Second)
		}, []time.Duration{0, 30 * time.Minute, 90 * time.Minute}},
		"nothing to program yet": {
			func(b *harness) { b.latest = nil },
			func(b *harness) {
				b.after(time.Second)
				b.after(time.Second)
				b.latest = service.New(1, &service.Node{NodePorts: service.AnyAddress()}, nil)
				b.after(time.Second)
			},
			[]time.Duration{3 * time.Second},
		},
		"no least interval": {
			func(b *harness) { b.MinInterval = 0 },
			func(b *harness) { b.after(ms); b.after(ms) },
			[]time.Duration{0, ms, 2 * ms},
		},
	} {
		t.Run(name, func(t *testing.T) { run(t, tt.set, func(b *harness) { tt.story(b); b.at(tt.want...) }) })
	}
}

// window is a time in which a kick comes every 5 ms, from its start until before its end.
type window struct{ from, to time.Duration }

// After a quiet time Burst rounds may follow at once; then MinInterval limits the
// average.
func TestBurst(t *testing.T) {
	const sec, gap = time.Second, burstGap
	for name, tt := range map[string]struct {
		interval time.Duration
		burst    int
		kicks    []window
		want     []time.Duration
	}{
		"none":       {sec, 0, []window{{5 * ms, 3 * sec}}, []time.Duration{0, sec, 2 * sec, 3 * sec}},
		"of one":     {sec, 1, []window{{5 * ms, 3 * sec}}, []time.Duration{0, sec, 2 * sec, 3 * sec}},
		"of three":   {sec, 3, []window{{5 * ms, 3 * sec}}, []time.Duration{0, gap, 2 * gap, sec, 2 * sec, 3 * sec}},
		"full again": {sec, 3, []window{{5 * ms, 1 * sec}, {4 * sec, 5 * sec}}, []time.Duration{0, gap, 2 * gap, sec, 4 * sec, 4*sec + gap, 4*sec + 2*gap, 5 * sec}},
		"half full":  {sec, 3, []window{{5 * ms, 2 * sec}, {4 * sec, 6 * sec}}, []time.Duration{0, gap, 2 * gap, sec, 2 * sec, 4 * sec, 4*sec + gap, 5 * sec, 6 * sec}},
		"a gap between two": {
			sec, 3, []window{{200 * ms, 201 * ms}, {206 * ms, 207 * ms}}, []time.Duration{0, 200 * ms, 210 * ms},
		},
		"an interval below the gap": {7 * ms, 3, []window{{5 * ms, 20 * ms}}, []time.Duration{0, 7 * ms, 14 * ms, 21 * ms}},
	} {
		t.Run(name, func(t *testing.T) {
			set := func(b *harness) { b.MinInterval, b.Burst = tt.interval, tt.burst }
			run(t, set, func(b *harness) {
				for _, w := range tt.kicks {
					b.pass(w.from - time.Since(b.begin))
					for time.Since(b.begin) < w.to {
						b.after(0)
						b.pass(5 * ms)
					}
				}
				b.pass(10 * sec)
				b.at(tt.want...)
			})
		})
	}
}

// Under permanent change, cheaper rounds run more often, and at least once in
// MinInterval.
func TestCostFactor(t *testing.T) {
	const long = 10 * time.Minute
	for name, tt := range map[string]struct {
		effort int
		cost   time.Duration
		want   int // without the first burst
	}{
		"none":      {0, 2 * ms, 600},
		"cheap":     {50, 2 * ms, 6000},
		"expensive": {50, 100 * ms, 600},
		"for free":  {50, 0, 60000},
	} {
		t.Run(name, func(t *testing.T) {
			p := limiter{interval: time.Second, burst: 10, costFactor: tt.effort}
			begin, n := time.Now(), 0
			for at := begin; at.Before(begin.Add(long)); at = p.nextStart(at, tt.cost) {
				n++
			}
			burst := 9 * int(max(time.Second/max(time.Duration(tt.effort)*tt.cost, burstGap), 1))
			kit.Check(t, n >= tt.want && n <= tt.want+burst, "%d rounds in %s, want %d and at most %d more", n, long, tt.want, burst)
		})
	}
}

func TestRetries(t *testing.T) {
	bad := errRefused
	for name, tt := range map[string]struct {
		applies []error
		story   func(*harness)
		want    []time.Duration
	}{
		"pauses double up to the longest": {
			[]error{bad, bad, bad, bad, bad}, func(b *harness) { b.pass(33 * time.Second) },
			[]time.Duration{0, 2 * time.Second, 6 * time.Second, 14 * time.Second, 24 * time.Second},
		},
		"a success ends the series": {
			[]error{bad, bad, nil, bad}, func(b *harness) { b.after(20 * time.Second); b.pass(10 * time.Second) },
			[]time.Duration{0, 2 * time.Second, 6 * time.Second, 20 * time.Second, 22 * time.Second},
		},
		"a kick cuts a pause short": {
			[]error{bad, bad, bad}, func(b *harness) { b.pass(2 * time.Second); b.after(1500 * ms); b.pass(time.Second) },
			[]time.Duration{0, 2 * time.Second, 3500 * ms},
		},
		"but not the least interval": {
			[]error{bad}, func(b *harness) { b.after(100 * ms); b.pass(10 * time.Second) },
			[]time.Duration{0, time.Second},
		},
	} {
		t.Run(name, func(t *testing.T) {
			set := func(b *harness) { b.applies = tt.applies }
			run(t, set, func(b *harness) { tt.story(b); b.at(tt.want...) })
		})
	}
}

// The pause after a failure is never longer than Resync.
func TestResyncBoundsRetries(t *testing.T) {
	set := func(b *harness) { b.Resync, b.applies = 3*time.Second, []error{errRefused, errRefused, errRefused} }
	run(t, set, func(b *harness) {
		b.pass(9 * time.Second)
		b.at(0, 2*time.Second, 5*time.Second, 8*time.Second)
	})
}

func TestCancelFinishesTheRound(t *testing.T) {
	set := func(b *harness) { b.applyTime = 5 * time.Second }
	run(t, set, func(b *harness) {
		b.pass(time.Second)
		b.cancel()
		synctest.Wait()
		kit.Check(t, len(b.done) == 0, "Run ended within a round")
		b.pass(5 * time.Second)
		kit.Check(t, b.applied == 1 && len(b.results) == 1 && b.results[0].Err == nil,
			"%d applied, results %v; want a whole round", b.applied, b.results)
	})
}

// A round's context ends Grace after Run's context, not earlier.
func TestGrace(t *testing.T) {
	for grace, want := range map[time.Duration]time.Duration{0: time.Hour, 10 * time.Second: 15 * time.Second, 2 * time.Hour: time.Hour} {
		run(t, func(b *harness) { b.Grace, b.applyTime = grace, time.Hour }, func(b *harness) {
			time.Sleep(5 * time.Second)
			b.cancel()
			b.done <- <-b.done
			took := time.Since(b.begin)
			kit.Check(t, took == want, "grace %s: the end after %s, want %s", grace, took, want)
		})
	}
}

func TestCancelEndsThePause(t *testing.T) {
	run(t, nil, func(b *harness) {
		b.cancel()
		<-b.done
		since := time.Since(b.begin)
		kit.Check(t, since == 0, "Run went on for %s", since)
		b.done <- nil
		b.at(0)
	})
}

func TestBackoff(t *testing.T) {
	b := Backoff{First: 3 * time.Second, Max: 10 * time.Second}
	var got []time.Duration
	for n := range 5 {
		got = append(got, b.After(n+1))
	}
	want := []time.Duration{3 * time.Second, 6 * time.Second, 10 * time.Second, 10 * time.Second, 10 * time.Second}
	kit.Same(t, "(-want +got)", want, got)
	d := (Backoff{First: time.Minute, Max: time.Second}).After(1)
	kit.Check(t, d == time.Second, "first pause = %s, want the longest, %s", d, time.Second)
	kit.Equal(t, b.After(1<<30), b.Max, "after very many failures")
}

// A new Timing applies at once, even during a long pause of the old one.
func TestSetTiming(t *testing.T) {
	brisk := Timing{MinInterval: time.Second, Resync: 20 * time.Second, Retry: Backoff{First: time.Second, Max: 2 * time.Second}}
	for name, tt := range map[string]struct {
		set   func(*harness)
		story func(*harness)
		want  []time.Duration
	}{
		"sooner resyncs": {nil, func(b *harness) {
			b.pass(5 * time.Second)
			b.SetTiming(brisk)
			b.pass(50 * time.Second)
		}, []time.Duration{0, 5 * time.Second, 25 * time.Second, 45 * time.Second}},
		"out of a long least interval": {func(b *harness) { b.MinInterval = time.Hour }, func(b *harness) {
			b.after(time.Second)
			b.SetTiming(brisk)
			b.after(500 * ms)
			b.pass(10 * time.Second)
		}, []time.Duration{0, time.Second, 2 * time.Second}},
		"out of a long pause after a failure": {func(b *harness) {
			b.Retry = Backoff{First: time.Hour, Max: time.Hour}
			b.applies = []error{errRefused, errRefused, errRefused}
		}, func(b *harness) {
			b.pass(10 * time.Second)
			b.SetTiming(brisk)
			b.pass(4 * time.Second)
		}, []time.Duration{0, 10 * time.Second, 12 * time.Second, 14 * time.Second}},
		"the latest of two": {nil, func(b *harness) {
			b.applyTime = time.Second
			b.Kick()
			b.pass(1500 * ms)
			b.SetTiming(Timing{MinInterval: time.Hour, Resync: time.Hour})
			b.SetTiming(brisk)
			b.pass(22 * time.Second)
		}, []time.Duration{0, time.Second, 2 * time.Second, 22 * time.Second}},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, tt.set, func(b *harness) {
				tt.story(b)
				b.at(tt.want...)
			})
		})
	}
}

// resyncBackend records calls of SetResync.
type resyncBackend struct {
	Backend
	resyncs []time.Duration
}

func (r *resyncBackend) SetResync(d time.Duration) { r.resyncs = append(r.resyncs, d) }

// The Backend gets the longest pause.
func TestSetResync(t *testing.T) {
	p := &resyncBackend{}
	run(t, func(b *harness) {
		p.Backend = b.Backend
		b.Backend = p
	}, func(b *harness) {
		b.pass(time.Second)
		b.SetTiming(Timing{Resync: 20 * time.Second})
		b.pass(time.Second)
		kit.Check(t, len(p.resyncs) == 1 && p.resyncs[0] == 20*time.Second, "the backend heard of %s", p.resyncs)
	})
}

// Rules are altered after every repair. The first few times the Loop repairs them at
// once, then once in Drift.Max. Changes of Services are still programmed. A quiet minute
// ends the dispute.
func TestRepeatedDrift(t *testing.T) {
	run(t, func(b *harness) {
		b.MinInterval = 0
		b.Drift = Backoff{First: 100 * ms, Max: time.Second}
		b.drift = []string{"missing: chain x"}
	}, func(b *harness) {
		alter := func(d time.Duration) {
			for end := time.Now().Add(d); time.Now().Before(end); {
				b.DataplaneChanged()
				b.pass(10 * ms)
			}
		}
		for i := range contestedRounds/2 - 1 { // the first round found drift, too
			n := b.count()
			b.DataplaneChanged()
			b.pass(ms)
			kit.Check(t, b.count() == n+1, "change %d was not repaired at once", i+1)
		}
		alter(5 * time.Second)
		r := b.last()
		kit.Check(t, r.Contested(), "after %d rounds that found drift it is no dispute", r.DriftRounds)
		n := b.count()
		alter(20 * time.Second)
		got := b.count() - n
		kit.Check(t, got >= 19 && got <= 21, "%d rounds in 20 s in which others alter rules all the time, want 20", got)
		n = b.count()
		b.latest = service.New(2, &service.Node{}, nil)
		b.SnapshotChanged()
		b.pass(ms)
		if got := b.count() - n; got != 1 {
			t.Errorf("%d rounds for a change of Services, want 1 at once", got)
		}
		n = b.count()
		b.Kick()
		b.pass(ms)
		if got := b.count() - n; got != 1 {
			t.Errorf("%d rounds after a kick, want 1 at once", got)
		}
		b.setDrift(nil)
		b.pass(2 * time.Minute)
		if r := b.last(); r.DriftRounds != 0 {
			t.Errorf("after two quiet minutes the dispute counts %d rounds", r.DriftRounds)
		}
	})
}

// Long rounds repair drift less often.
func TestRepeatedDriftOfLongRounds(t *testing.T) {
	run(t, func(b *harness) {
		b.MinInterval, b.applyTime = 0, 200*ms
		b.Drift, b.DriftCostFactor = Backoff{First: 100 * ms, Max: time.Second}, 20
		b.drift = []string{"missing: chain x"}
	}, func(b *harness) {
		for range 4000 {
			b.DataplaneChanged()
			b.pass(10 * ms)
		}
		n := b.count()
		kit.Check(t, n <= 15, "%d rounds of 200 ms in 40 s", n)
	})
}

// While another process programs the dataplane, the Loop does not touch it, and the Backend
// forgets it. Afterwards it reads it again.
func TestStandby(t *testing.T) {
	mine, standbys := false, 0
	run(t, func(b *harness) {
		b.Enter = func(context.Context) (func(), bool) { return func() {}, mine }
		b.Standby = func(*service.Snapshot) { standbys++ }
	}, func(b *harness) {
		b.SnapshotChanged()
		b.pass(10 * time.Second)
		kit.Check(t, b.count() == 0 && standbys != 0, "%d rounds, reported standing by %d times", b.count(), standbys)
		for i := range 3 {
			kit.Check(t, b.forgets == i, "forgot %d times what it had programmed, want %d", b.forgets, i)
			mine = true
			b.Kick()
			b.pass(time.Second)
			kit.Check(t, b.count() == i+1, "%d rounds once it may, want %d", b.count(), i+1)
			mine = false
			b.Kick()
			b.pass(time.Second)
		}
	})
}

// TestDriftReport checks that what is beyond the limit is counted and not put in words.
func TestDriftReport(t *testing.T) {
	for n, want := range map[int]int{0: 0, MaxDrift: MaxDrift, MaxDrift + 7: MaxDrift + 1} {
		var r DriftReport
		words := 0
		for range n {
			r.Add(func() string {
				words++
				return "altered: a chain"
			})
		}
		lines := r.Lines()
		kit.Check(t, len(lines) == want && words == min(n, MaxDrift),
			"%d changes: %d lines, %d put in words; want %d lines", n, len(lines), words, want)
		if n > MaxDrift && lines[MaxDrift] != "and 7 more" {
			t.Errorf("%d changes: the last line is %q", n, lines[MaxDrift])
		}
	}
}
