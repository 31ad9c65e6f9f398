// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"kubeproxy/common/service"
)

// written returns the rules after a round that wrote n of them.
func written(n int) *Rules { return &Rules{Held: held, Written: map[string]int{"nat": n}} }

// A round that does not get as far as the rules has written none, and they are what they
// were.
func TestRulesWithoutPlan(t *testing.T) {
	run(t, nil, func(b *harness) {
		b.planErr = errRefused
		b.after(time.Minute)
		if diff := cmp.Diff([]*Rules{written(2), written(0)}, []*Rules{b.results[0].Rules, b.results[1].Rules}); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
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
				if len(b.results) != 1 || len(b.rounds) != 1 {
					t.Fatalf("%d results of %d rounds, want one", len(b.results), len(b.rounds))
				}
				got := b.results[0]
				if !errors.Is(got.Err, tt.err) || (got.Err == nil) != (tt.err == nil) {
					t.Errorf("Err = %v, want %v", got.Err, tt.err)
				}
				if got.Snapshot != b.latest {
					t.Errorf("the snapshot is %v", got.Snapshot)
				}
				tt.want.Start, got.Snapshot, got.Err = b.begin, nil, nil
				if diff := cmp.Diff(tt.want, got); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
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
		if diff := cmp.Diff([]uint64{1, 7, 7, 8}, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
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
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	if want := "service port shop/a (tcp, IPv6): refused"; a.Error() != want || !errors.Is(a, errRefused) {
		t.Errorf("error = %q, want %q around its cause", a, want)
	}
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
		t.Run(name, func(t *testing.T) {
			if got := Unsupported(tt.err); got != tt.want {
				t.Errorf("Unsupported(%v) = %v, want %v", tt.err, got, tt.want)
			}
		})
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
