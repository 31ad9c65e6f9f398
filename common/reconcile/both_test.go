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

// half is a Backend and its only plan.
type half struct {
	text              string
	planErr, applyErr error
	notes             Notes
	applied           int
}

func (h *half) Plan(context.Context, *service.Snapshot) (Plan, error) { return h, h.planErr }
func (h *half) Cleanup(context.Context) error                         { return nil }
func (h *half) String() string                                        { return h.text }
func (h *half) Empty() bool                                           { return h.text == "" }
func (h *half) Drift() []string                                       { return nil }
func (h *half) Notes() Notes                                          { return h.notes }
func (h *half) Apply(context.Context) error {
	h.applied++
	return h.applyErr
}

// What goes wrong with one of two Backends is said, and keeps the other from nothing.
func TestBothGoOn(t *testing.T) {
	broken := errors.New("broken")
	for name, tt := range map[string]struct {
		main, second half
		planned      bool
		applied      [2]int
		broken       bool
	}{
		"both":              {half{text: "a"}, half{text: "b"}, true, [2]int{1, 1}, false},
		"one only":          {half{}, half{text: "b"}, true, [2]int{0, 1}, false},
		"main unplanned":    {half{text: "a", planErr: broken}, half{text: "b"}, true, [2]int{0, 1}, true},
		"nothing to do":     {half{text: "a", planErr: broken}, half{}, false, [2]int{}, true},
		"second unplanned":  {half{text: "a"}, half{planErr: broken}, true, [2]int{1, 0}, true},
		"neither planned":   {half{planErr: broken}, half{planErr: broken}, false, [2]int{}, true},
		"main not applied":  {half{text: "a", applyErr: broken}, half{text: "b"}, true, [2]int{1, 1}, true},
		"other not applied": {half{text: "a"}, half{text: "b", applyErr: broken}, true, [2]int{1, 1}, true},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := Both(t.Context(), service.New(1, &service.Node{}, nil), &tt.main, &tt.second)
			if planned := err == nil; planned != tt.planned {
				t.Fatalf("planned: %v", err)
			}
			if err == nil {
				err = p.Apply(t.Context())
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

func TestBothNote(t *testing.T) {
	x, y := service.PortName{Name: "x"}, service.PortName{Name: "y"}
	main, second := half{notes: Notes{x: {{Text: "a"}}}}, half{notes: Notes{x: {{Text: "b"}}, y: {{Text: "c"}}}}
	p, err := Both(t.Context(), nil, &main, &second)
	if err != nil {
		t.Fatal(err)
	}
	want := Notes{x: {{Text: "a"}, {Text: "b"}}, y: {{Text: "c"}}}
	if diff := cmp.Diff(want, p.(Noter).Notes()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if len(main.notes) != 1 || len(second.notes) != 2 {
		t.Error("a plan's own notes changed")
	}
}
