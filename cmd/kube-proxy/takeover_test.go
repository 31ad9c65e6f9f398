// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/klog/v2/textlogger"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

// leftRules are remains that are as stubborn as the test wants them.
type leftRules struct {
	what    string
	removed int
	fail    []error // of the removals to come
	stays   bool    // somebody makes them again
	hidden  int     // how often they cannot be looked for once they were removed
}

func (r *leftRules) String() string { return "a place" }

func (r *leftRules) Find(context.Context) (string, error) {
	if r.removed > 0 && r.hidden > 0 {
		r.hidden--
		return "", errSystemTest
	}
	return r.what, nil
}

func (r *leftRules) Remove(context.Context) error {
	r.removed++
	if len(r.fail) > 0 {
		err := r.fail[0]
		r.fail = r.fail[1:]
		return err
	}
	if !r.stays {
		r.what = ""
	}
	return nil
}

// auditor is a Backend that finds a number of things missing, one fewer each
// time.
type auditor struct{ lacks int }

func (a *auditor) Cleanup(context.Context) error { return nil }

func (a *auditor) Plan(context.Context, *service.Snapshot) (reconcile.Plan, error) {
	if a.lacks > 0 {
		a.lacks--
		return lackingPlan{}, nil
	}
	return emptyPlan{}, nil
}

type (
	lackingPlan struct{ reconcile.Plan }
	emptyPlan   struct{ reconcile.Plan }
)

func (lackingPlan) Empty() bool    { return false }
func (lackingPlan) String() string { return "+ something\n" }
func (emptyPlan) Empty() bool      { return true }

// story is a takeover in a bubble, and what it says.
type story struct {
	*takeover
	shown  []string // conditions, one after the other
	done   int
	failed int
	errors *bytes.Buffer
}

// takingOver runs told beside a takeover of left.
func takingOver(t *testing.T, left *leftRules, audit *auditor, told func(*story)) {
	t.Helper()
	takingOverAll(t, []place{{remains: left}}, audit, told)
}

// takingOverAll runs told beside a takeover of places.
func takingOverAll(t *testing.T, places []place, audit *auditor, told func(*story)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &story{errors: &bytes.Buffer{}}
		s.takeover = &takeover{
			places:    places,
			audit:     func() (reconcile.Backend, error) { return audit, nil },
			log:       textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(s.errors))),
			condition: func(text string) { s.shown = append(s.shown, text) },
			done:      func() { s.done++ },
			failed:    func() { s.failed++ },
			good:      make(chan struct{}, 1),
			told:      map[string]string{},
			removed:   map[string]string{},
			retired:   map[string]*retirement{},
		}
		ctx, cancel := context.WithCancel(t.Context())
		s.look(ctx)
		ended := make(chan struct{})
		go func() {
			s.once(ctx)
			close(ended)
		}()
		synctest.Wait()
		told(s)
		cancel()
		<-ended
	})
}

// pass lets time pass, and what is then to be done be done.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// after lets time pass and then reports a round.
func (s *story) after(d time.Duration, err error) {
	time.Sleep(d)
	s.round(service.New(1, &service.Node{NodePorts: service.Everywhere()}, nil), err)
	synctest.Wait()
}

var (
	errPort  = &reconcile.PortError{Err: errors.New("refused")}
	errUnmet = errors.Join(&reconcile.PortError{Err: &reconcile.Unmet{Text: "no SCTP"}})
)

func TestTakeover(t *testing.T) {
	const found = "rules"
	for situation, tt := range map[string]struct {
		left    leftRules
		lacks   int
		told    func(*story)
		removed int
		failed  int
		done    bool
		shown   string // a word of some condition
	}{
		"nothing was left":              {left: leftRules{}, told: func(s *story) { s.after(0, nil) }},
		"a good round":                  {left: leftRules{what: found}, told: func(s *story) { s.after(0, nil) }, removed: 1, done: true, shown: "they go as soon as"},
		"no round yet":                  {left: leftRules{what: found}, told: func(*story) { pass(time.Hour) }, shown: "they go as soon as"},
		"rounds fail":                   {left: leftRules{what: found}, told: func(s *story) { s.after(0, errSystemTest); s.after(time.Hour, errSystemTest) }},
		"NodePorts are closed as yet":   {left: leftRules{what: found}, told: func(s *story) { s.round(closedFor(service.IPv4), nil); pass(time.Hour) }},
		"those of the other family":     {left: leftRules{what: found}, told: func(s *story) { s.round(closedFor(service.IPv6), nil); pass(0) }, removed: 1, done: true},
		"something cannot be read":      {left: leftRules{what: found}, told: func(s *story) { s.round(&service.Snapshot{Partial: true}, nil); pass(time.Hour) }},
		"not all is there at first":     {left: leftRules{what: found}, lacks: 2, told: func(s *story) { s.after(0, nil); pass(10 * time.Second) }, removed: 1, done: true, shown: "+ something"},
		"what is wanted is never there": {left: leftRules{what: found}, lacks: 1 << 30, told: func(s *story) { s.after(0, nil); pass(time.Minute) }, shown: "not all there"},
		"removing fails twice": {
			left: leftRules{what: found, fail: []error{errSystemTest, errSystemTest}},
			told: func(s *story) { s.after(0, nil); pass(10 * time.Second) }, removed: 3, failed: 2, done: true, shown: "out of order",
		},
		"removed but not seen to be": {
			left: leftRules{what: found, hidden: 2}, told: func(s *story) { s.after(0, nil); pass(10 * time.Second) },
			removed: 1, failed: 2, done: true, shown: "out of order",
		},
		"somebody makes it again": {
			left: leftRules{what: found, stays: true}, told: func(s *story) { s.after(0, nil); pass(10 * time.Minute) },
			removed: 15, failed: 15, shown: "somebody else makes it",
		},
	} {
		t.Run(situation, func(t *testing.T) {
			var s *story
			takingOver(t, &tt.left, &auditor{tt.lacks}, func(now *story) {
				s = now
				tt.told(s)
				if got := s.done > 0; got != tt.done || tt.left.removed != tt.removed {
					t.Errorf("removed %d times, done %t; want %d, %t", tt.left.removed, got, tt.removed, tt.done)
				}
				if s.failed != tt.failed {
					t.Errorf("%d failures counted, want %d", s.failed, tt.failed)
				}
				if now := len(s.shown) > 0 && s.shown[len(s.shown)-1] != ""; tt.left.what != "" && !now || tt.done && now {
					t.Errorf("conditions %q", s.shown)
				}
			})
			if !slices.ContainsFunc(s.shown, func(text string) bool { return strings.Contains(text, tt.shown) }) && tt.shown != "" {
				t.Errorf("conditions %q, want one with %q", s.shown, tt.shown)
			}
			if got := strings.Contains(s.errors.String(), "Removed what an earlier"); got != tt.done && tt.left.what == "" && tt.removed > 0 {
				t.Errorf("done %t, and the log says:\n%s", tt.done, s.errors)
			}
			if n := strings.Count(s.errors.String(), "still there; trying again"); n > 1 {
				t.Errorf("the same was told %d times:\n%s", n, s.errors)
			}
		})
	}
}

// closedFor returns a snapshot in which no address of f answers NodePorts, as the Node
// is not known yet.
func closedFor(f service.Family) *service.Snapshot {
	n := &service.Node{}
	n.NodePortsPending[f] = true
	var ports []*service.Port
	for _, f := range service.Families {
		ports = append(ports, shopPort(f, "web", 1, front(service.ClusterIP, []string{"10.96.0.1", "fd00:10:96::1"}[f], 80)))
	}
	return service.New(1, n, ports)
}

var errSystemTest = errors.New("the kernel is out of order")

// TestClear says what was removed, and why not.
func TestClear(t *testing.T) {
	for situation, tt := range map[string]struct {
		left      leftRules
		what, err string
	}{
		"nothing there":       {leftRules{}, "", ""},
		"something there":     {leftRules{what: "rules"}, "rules", ""},
		"cannot be removed":   {leftRules{what: "rules", fail: []error{errSystemTest}}, "", "the kernel is out of order"},
		"somebody else's too": {leftRules{what: "rules", stays: true}, "rules", "a place has rules again, which was removed: somebody else makes it"},
	} {
		t.Run(situation, func(t *testing.T) {
			what, err := clear(t.Context(), place{remains: &tt.left})
			text := ""
			if err != nil {
				text = err.Error()
			}
			if what != tt.what || text != tt.err {
				t.Errorf("clear = %q, %q; want %q, %q", what, text, tt.what, tt.err)
			}
		})
	}
}

// TestTakeoverInPart has rounds that program all but single ports.
func TestTakeoverInPart(t *testing.T) {
	for situation, tt := range map[string]struct {
		lacks int
		told  func(*story)
		gone  bool
	}{
		"ports are refused":      {told: func(s *story) { s.after(0, errPort); s.after(time.Second, errPort) }},
		"ports stay refused":     {told: func(s *story) { s.after(0, errPort); pass(takeoverPatience) }, gone: true},
		"the mode cannot do all": {told: func(s *story) { s.after(0, errUnmet) }, gone: true},
		"and the rest is not there": {
			lacks: 1 << 30, told: func(s *story) { s.after(0, errUnmet); pass(time.Hour) },
		},
		"ports are refused, then all": {
			told: func(s *story) { s.after(0, errPort); s.after(time.Second, errSystemTest); pass(time.Hour) },
		},
		"ports are refused, then all, then ports": {
			told: func(s *story) {
				s.after(0, errPort)
				s.after(50*time.Second, errSystemTest)
				s.after(time.Second, errPort)
				pass(50 * time.Second)
			},
		},
		"ports are refused, then something cannot be read": {
			told: func(s *story) { s.after(0, errPort); s.round(&service.Snapshot{Partial: true}, nil); pass(time.Hour) },
		},
	} {
		t.Run(situation, func(t *testing.T) {
			left := leftRules{what: "rules"}
			takingOver(t, &left, &auditor{tt.lacks}, func(s *story) {
				tt.told(s)
				if gone := left.what == ""; gone != tt.gone {
					t.Errorf("old rules are gone: %t, want %t", gone, tt.gone)
				}
			})
		})
	}
}
