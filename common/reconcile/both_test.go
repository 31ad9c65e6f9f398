// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubeproxy/common/service"
)

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
			if planned := err == nil; planned != tt.planned {
				t.Fatalf("planned: %v", err)
			}
			if err == nil {
				err = p.Apply(t.Context()).Err
			}
			if errors.Is(err, broken) != tt.broken {
				t.Errorf("error %v", err)
			}
			if got := [2]int{tt.main.applied, tt.second.applied}; got != tt.applied {
				t.Errorf("applied %v, want %v", got, tt.applied)
			}
		})
	}
}

func TestBothNotes(t *testing.T) {
	x, y := service.PortName{Name: "x"}, service.PortName{Name: "y"}
	main, second := partialBackend{notes: Notes{x: {{Text: "a"}}}}, partialBackend{notes: Notes{x: {{Text: "b"}}, y: {{Text: "c"}}}}
	p, err := Both(&main, &second).Plan(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	want := Notes{x: {{Text: "a"}, {Text: "b"}}, y: {{Text: "c"}}}
	if diff := cmp.Diff(want, p.Outcome().Notes); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if len(main.notes) != 1 || len(second.notes) != 2 {
		t.Error("a plan's own notes changed")
	}
}

func TestBothDegraded(t *testing.T) {
	for want, tt := range map[string][2]string{"": {}, "a": {"a", ""}, "b": {"", "b"}, "a; b": {"a", "b"}} {
		p, err := Both(&partialBackend{degraded: tt[0]}, &partialBackend{degraded: tt[1]}).Plan(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := p.Outcome().Degraded; got != want {
			t.Errorf("%q and %q: %q, want %q", tt[0], tt[1], got, want)
		}
	}
}

// TestBothEnds checks that the errors of both are returned.
func TestBothEnds(t *testing.T) {
	x, y := errors.New("x"), errors.New("y")
	b := Both(&partialBackend{endErr: x}, &partialBackend{endErr: y})
	for what, err := range map[string]error{"cleanup": b.Cleanup(t.Context()), "close": b.Close()} {
		if !errors.Is(err, x) || !errors.Is(err, y) {
			t.Errorf("%s: %v, want the errors of both", what, err)
		}
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
	if !errors.Is(err, broken) || !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want the errors of both", err)
	}
}
