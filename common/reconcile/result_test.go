// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"kubeproxy/common/service"
	"kubeproxy/test/kit"
)

// written returns the rules after a round that wrote n of them.
func written(n int) *Rules { return &Rules{Held: held, Written: map[string]int{"nat": n}} }

// A round that does not get as far as the rules has written none, and they are what they
// were.
func TestRulesWithoutPlan(t *testing.T) {
	run(t, nil, func(b *harness) {
		b.planErr = errRefused
		b.after(time.Minute)
		kit.Same(t, "(-want +got)", []*Rules{written(2), written(0)}, []*Rules{b.results[0].Rules, b.results[1].Rules})
	})
}

// Report gets a Result for every round, with the values of its plan.
func TestResults(t *testing.T) {
	for name, tt := range map[string]struct {
		set  func(*harness)
		want Result
		err  error
	}{
		"changed": {
			func(b *harness) { b.applyTime = time.Second },
			Result{Generation: 1, Took: time.Second, Changed: true, Outcome: Outcome{Removed: []*service.Port{{}}, Rules: written(2)}}, nil,
		},
		"nothing to do": {func(b *harness) { b.empty = true }, Result{Generation: 1, Outcome: Outcome{Rules: written(0)}}, nil},
		"drift": {
			func(b *harness) { b.drift = []string{"missing: chain x"} },
			Result{Generation: 1, Changed: true, DriftRounds: 1, Outcome: Outcome{Drift: []string{"missing: chain x"}, Removed: []*service.Port{{}}, Rules: written(2)}}, nil,
		},
		"refused": {
			func(b *harness) { b.applies = []error{errRefused} },
			Result{Generation: 1, Changed: true, Outcome: Outcome{Removed: []*service.Port{{}}, Rules: &Rules{Refused: true, Held: held, Written: map[string]int{"nat": 2}}}}, errRefused,
		},
		"no plan": {func(b *harness) { b.planErr = errRefused }, Result{Generation: 1}, errRefused},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, tt.set, func(b *harness) {
				b.pass(tt.want.Took)
				b.cancel()
				b.done <- <-b.done
				kit.Need(t, len(b.results) == 1 && len(b.rounds) == 1,
					"%d results of %d rounds, want one", len(b.results), len(b.rounds))
				got := b.results[0]
				kit.Check(t, errors.Is(got.Err, tt.err) && (got.Err == nil) == (tt.err == nil),
					"Err = %v, want %v", got.Err, tt.err)
				kit.Check(t, got.Snapshot == b.latest, "the snapshot is %v", got.Snapshot)
				tt.want.Start, got.Snapshot, got.Err = b.begin, nil, nil
				kit.Same(t, "(-want +got)", tt.want, got)
			})
		})
	}
}

// Each Result carries the generation that its round was for.
func TestResultsNameTheirGeneration(t *testing.T) {
	run(t, func(b *harness) { b.applies = []error{nil, errRefused} }, func(b *harness) {
		b.latest = service.New(7, &service.Node{NodePorts: service.AnyAddress()}, nil)
		b.after(time.Minute)
		b.pass(3 * time.Second)
		b.latest = service.New(8, &service.Node{NodePorts: service.AnyAddress()}, nil)
		b.after(time.Minute)
		var got []uint64
		for _, r := range b.results {
			got = append(got, r.Generation)
		}
		// The retry two seconds after the refusal is for 7 again.
		kit.Same(t, "(-want +got)", []uint64{1, 7, 7, 8}, got)
	})
}

func TestPortErrors(t *testing.T) {
	fail := func(name string, err error) error {
		return &PortError{Family: service.IPv6, Name: service.PortName{Namespace: "shop", Name: name, Protocol: service.TCP}, Err: err}
	}
	a, b := fail("a", errRefused), fail("b", errRefused)
	for name, tt := range map[string]struct {
		err  error
		want []string
	}{
		"nil":                 {nil, nil},
		"no port's":           {errRefused, nil},
		"one":                 {a, []string{"a"}},
		"wrapped":             {fmt.Errorf("apply: %w", a), []string{"a"}},
		"joined, in order":    {errors.Join(b, errRefused, a), []string{"b", "a"}},
		"two in one format":   {fmt.Errorf("%w and %w", a, b), []string{"a", "b"}},
		"joined within":       {fmt.Errorf("x: %w", errors.Join(a, fmt.Errorf("y: %w", errors.Join(b)))), []string{"a", "b"}},
		"one within a port's": {fail("a", b), []string{"a"}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, e := range PortErrors(tt.err) {
				got = append(got, e.Name.Name)
			}
			kit.Same(t, "(-want +got)", tt.want, got)
		})
	}
	want := "service port shop/a (tcp, IPv6): refused"
	kit.Check(t, a.Error() == want && errors.Is(a, errRefused), "error = %q, want %q around its cause", a, want)
}

func TestUnsupported(t *testing.T) {
	never := &PortError{Err: errors.Join(fmt.Errorf("no SCTP: %w", errors.ErrUnsupported), errors.ErrUnsupported)}
	perhaps := &PortError{Err: errors.Join(errors.ErrUnsupported, errors.New("busy"))}
	for name, tt := range map[string]struct {
		err  error
		want bool
	}{
		"nothing":        {nil, false},
		"never":          {errors.Join(never, never), true},
		"one perhaps":    {errors.Join(never, perhaps), false},
		"something else": {errors.New("busy"), false},
	} {
		t.Run(name, func(t *testing.T) { kit.Equal(t, Unsupported(tt.err), tt.want, "Unsupported(%v)", tt.err) })
	}
}

// Unsupported errors cause no retry before the next resync, and do not slow down the
// retries of other errors.
func TestUnsupportedIsNotRetried(t *testing.T) {
	never := &PortError{Err: errors.ErrUnsupported}
	run(t, func(b *harness) { b.applies = []error{never, errors.Join(never, errRefused), never} }, func(b *harness) {
		b.pass(30 * time.Second)
		b.at(0)
		b.after(0)
		b.pass(30 * time.Second)
		b.at(0, 30*time.Second, 32*time.Second)
	})
}

// Errors about single ports only are partial success, however they are nested.
func TestOnlyPortErrors(t *testing.T) {
	port := &PortError{Err: errRefused}
	for name, tt := range map[string]struct {
		err  error
		want bool
	}{
		"nothing":                           {nil, true},
		"no port's":                         {errRefused, false},
		"a port's":                          {port, true},
		"two":                               {errors.Join(port, port), true},
		"a port's in words":                 {fmt.Errorf("apply: %w", port), true}, // where definitions differed
		"two in words":                      {fmt.Errorf("apply: %w", errors.Join(port, port)), true},
		"two in one format":                 {fmt.Errorf("%w and %w", port, port), true},
		"a port's and another":              {errors.Join(port, errRefused), false},
		"a port's and another, in a format": {fmt.Errorf("%w and %w", port, errRefused), false},
		"deeper":                            {errors.Join(port, fmt.Errorf("x: %w", errors.Join(port, errRefused))), false},
		"deeper, all of ports":              {errors.Join(port, fmt.Errorf("x: %w", errors.Join(port))), true},
		"what never will":                   {&PortError{Err: &UnsupportedError{Text: "never"}}, true},
		"several within a port's":           {&PortError{Err: errors.Join(errRefused, errRefused)}, true},
		"a list of none":                    {noErrors{}, false},
	} {
		kit.Equal(t, OnlyPortErrors(tt.err), tt.want, "%s", name)
	}
}

// noErrors is an error that joins none.
type noErrors struct{}

func (noErrors) Error() string   { return "" }
func (noErrors) Unwrap() []error { return nil }

func TestInForce(t *testing.T) {
	never, now := &UnsupportedError{Text: "never"}, &DegradedError{errRefused}
	for name, tt := range map[string]struct {
		err                  error
		inForce, unsupported bool
	}{
		"never":           {&PortError{Err: never}, true, true},
		"for now":         {&PortError{Err: now}, true, false},
		"both":            {&PortError{Err: errors.Join(never, now)}, true, false},
		"worse":           {&PortError{Err: errors.Join(never, now, errRefused)}, false, false},
		"another is":      {errors.Join(&PortError{Err: now}, &PortError{Err: errRefused}), false, false},
		"nothing at all":  {nil, false, false},
		"what never will": {&DegradedError{never}, true, true},
		"both in words":   {&PortError{Err: fmt.Errorf("x: %w", errors.Join(never, now))}, true, false},
	} {
		if InForce(tt.err) != tt.inForce || Unsupported(tt.err) != tt.unsupported {
			t.Errorf("%s: in force %t, unsupported %t; want %t, %t", name, InForce(tt.err), Unsupported(tt.err), tt.inForce, tt.unsupported)
		}
	}
}

// partialBackend is a Backend and its only plan.
type partialBackend struct {
	Base
	text              string
	planErr, applyErr error
	endErr            error // of Cleanup and Close
	notes             Notes
	degraded          string
	applied           int
}

func (p *partialBackend) Plan(context.Context, *service.Snapshot) (Plan, error) {
	if p.planErr != nil {
		return nil, p.planErr
	}
	return p, nil
}
func (p *partialBackend) Cleanup(context.Context) error { return p.endErr }
func (p *partialBackend) Close() error                  { return p.endErr }
func (p *partialBackend) Changes() Changes              { return Changes{{Text: p.text}} }
func (p *partialBackend) Empty() bool                   { return p.text == "" }
func (p *partialBackend) Outcome() Outcome              { return Outcome{Notes: p.notes, Degraded: p.degraded} }
func (p *partialBackend) Apply(context.Context) Outcome {
	p.applied++
	return Outcome{Err: p.applyErr, Notes: p.notes}
}

// Both reports the failure of one Backend and still plans for the other.
func TestBothGoesOn(t *testing.T) {
	broken := errors.New("broken")
	for name, tt := range map[string]struct {
		main, second partialBackend
		planned      bool
		applied      [2]int
		broken       bool
	}{
		"both":              {partialBackend{text: "a"}, partialBackend{text: "b"}, true, [2]int{1, 1}, false},
		"one only":          {partialBackend{}, partialBackend{text: "b"}, true, [2]int{0, 1}, false},
		"main unplanned":    {partialBackend{text: "a", planErr: broken}, partialBackend{text: "b"}, true, [2]int{0, 1}, true},
		"nothing to do":     {partialBackend{text: "a", planErr: broken}, partialBackend{}, false, [2]int{}, true},
		"second unplanned":  {partialBackend{text: "a"}, partialBackend{planErr: broken}, true, [2]int{1, 0}, true},
		"neither planned":   {partialBackend{planErr: broken}, partialBackend{planErr: broken}, false, [2]int{}, true},
		"main not applied":  {partialBackend{text: "a", applyErr: broken}, partialBackend{text: "b"}, true, [2]int{1, 1}, true},
		"other not applied": {partialBackend{text: "a"}, partialBackend{text: "b", applyErr: broken}, true, [2]int{1, 1}, true},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := Both(&tt.main, &tt.second).Plan(t.Context(), service.New(1, &service.Node{}, nil))
			planned := err == nil
			kit.Need(t, planned == tt.planned, "planned: %v", err)
			if err == nil {
				err = p.Apply(t.Context()).Err
			}
			kit.Check(t, errors.Is(err, broken) == tt.broken, "error %v", err)
			got := [2]int{tt.main.applied, tt.second.applied}
			kit.Check(t, got == tt.applied, "applied %v, want %v", got, tt.applied)
		})
	}
}

func TestBothNotes(t *testing.T) {
	x, y := service.PortName{Name: "x"}, service.PortName{Name: "y"}
	main, second := partialBackend{notes: Notes{x: {{Text: "a"}}}}, partialBackend{notes: Notes{x: {{Text: "b"}}, y: {{Text: "c"}}}}
	p, err := Both(&main, &second).Plan(t.Context(), nil)
	kit.Must(t, err)
	want := Notes{x: {{Text: "a"}, {Text: "b"}}, y: {{Text: "c"}}}
	kit.Same(t, "(-want +got)", want, p.Outcome().Notes)
	kit.Check(t, len(main.notes) == 1 && len(second.notes) == 2, "a plan's own notes changed")
}

func TestBothDegraded(t *testing.T) {
	for want, tt := range map[string][2]string{"": {}, "a": {"a", ""}, "b": {"", "b"}, "a; b": {"a", "b"}} {
		p, err := Both(&partialBackend{degraded: tt[0]}, &partialBackend{degraded: tt[1]}).Plan(t.Context(), nil)
		kit.Must(t, err)
		kit.Equal(t, p.Outcome().Degraded, want, "%q and %q", tt[0], tt[1])
	}
}

// TestBothEnds checks that the errors of both are returned.
func TestBothEnds(t *testing.T) {
	x, y := errors.New("x"), errors.New("y")
	b := Both(&partialBackend{endErr: x}, &partialBackend{endErr: y})
	for what, err := range map[string]error{"cleanup": b.Cleanup(t.Context()), "close": b.Close()} {
		kit.Check(t, errors.Is(err, x) && errors.Is(err, y), "%s: %v, want the errors of both", what, err)
	}
}

// TestWatchAll checks that watches go on until one of them ends, and that the others end then.
func TestWatchAll(t *testing.T) {
	broken, began := errors.New("broken"), make(chan struct{})
	lasting := func(ctx context.Context, touched func()) error {
		touched()
		<-ctx.Done()
		return ctx.Err()
	}
	failing := func(context.Context, func()) error {
		<-began
		return broken
	}
	err := WatchAll(t.Context(), func() { close(began) }, lasting, failing)
	kit.Check(t, errors.Is(err, broken) && errors.Is(err, context.Canceled), "%v, want the errors of both", err)
}

// signalAfter sleeps for d, then calls SnapshotChanged, with another snapshot if changed.
func (h *harness) signalAfter(d time.Duration, changed bool) {
	h.pass(d)
	if changed {
		h.latest = h.latest.With(h.latest.Generation+1, h.latest.Node, nil)
	}
	h.SnapshotChanged()
	h.pass(0)
}

func TestSnapshotChanged(t *testing.T) {
	const sec = time.Second
	for name, tt := range map[string]struct {
		set   func(*harness)
		story func(*harness)
		want  []time.Duration
	}{
		"of something": {nil, func(b *harness) { b.signalAfter(10*sec, true) }, []time.Duration{0, 10 * sec}},
		"of nothing":   {nil, func(b *harness) { b.signalAfter(10*sec, false) }, []time.Duration{0}},
		"of nothing, and a kick": {nil, func(b *harness) {
			b.pass(500 * ms)
			b.SnapshotChanged()
			b.Kick()
			b.pass(10 * sec)
		}, []time.Duration{0, sec}},
		"of nothing, while something failed": {
			func(b *harness) { b.applies = []error{errRefused, errRefused} },
			func(b *harness) { b.signalAfter(1500*ms, false); b.pass(sec) },
			[]time.Duration{0, 1500 * ms},
		},
		"of the first snapshot": {
			func(b *harness) { b.latest = nil },
			func(b *harness) {
				b.pass(sec)
				b.latest = service.New(1, &service.Node{NodePorts: service.AnyAddress()}, nil)
				b.signalAfter(0, false)
				b.pass(time.Hour)
			},
			[]time.Duration{sec, sec + time.Hour},
		},
		"come during a round and are in it": {
			func(b *harness) { b.applyTime = 3 * sec },
			func(b *harness) { b.signalAfter(2*sec, false); b.pass(time.Minute) },
			[]time.Duration{0},
		},
		"do not put the look at what others did off": {nil, func(b *harness) {
			b.signalAfter(40*time.Minute, true)
			b.signalAfter(10*time.Minute, false)
			b.pass(70 * time.Minute)
		}, []time.Duration{0, 40 * time.Minute, time.Hour, 2 * time.Hour}},
	} {
		t.Run(name, func(t *testing.T) { run(t, tt.set, func(b *harness) { tt.story(b); b.at(tt.want...) }) })
	}
}

// A round with FullSync postpones the next resync, whatever triggered the round.
func TestFullSyncPostponesResync(t *testing.T) {
	run(t, func(b *harness) { b.fullSync = true }, func(b *harness) {
		b.signalAfter(40*time.Minute, true)
		b.pass(61 * time.Minute)
		b.at(0, 40*time.Minute, 100*time.Minute)
	})
}

// An unchanged snapshot is reported as the latest result, with the present time.
func TestUnchangedSnapshotIsReported(t *testing.T) {
	run(t, func(b *harness) {
		b.drift = []string{"x"}
		b.applies = []error{&PortError{Err: &UnsupportedError{Text: "never"}}}
	}, func(b *harness) {
		b.signalAfter(10*time.Second, false)
		kit.Need(t, len(b.results) == 2, "%d results, want 2", len(b.results))
		r := b.results[1]
		if at := r.Start.Sub(b.begin); at != 10*time.Second || r.Took != 0 || r.Changed || len(r.Drift)+len(r.Removed)+r.Rules.Written["nat"] > 0 || r.Generation != 1 || !Unsupported(r.Err) {
			t.Errorf("after %s: %+v", at, r)
		}
	})
}
