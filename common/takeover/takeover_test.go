// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/klog/v2/textlogger"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

// fakeLeftovers are leftovers whose removal fails as the test configures.
type fakeLeftovers struct {
	what       string
	removed    int
	fail       []error // of the removals to come
	recreated  bool    // another program adds them again
	unreadable int     // how often Find fails after a removal
}

func (f *fakeLeftovers) String() string { return "a place" }

func (f *fakeLeftovers) Find(context.Context) (string, error) {
	if f.removed > 0 && f.unreadable > 0 {
		f.unreadable--
		return "", errSystemTest
	}
	return f.what, nil
}

func (f *fakeLeftovers) Remove(context.Context) error {
	f.removed++
	if len(f.fail) > 0 {
		err := f.fail[0]
		f.fail = f.fail[1:]
		return err
	}
	if !f.recreated {
		f.what = ""
	}
	return nil
}

// fakeAuditor is a Backend that finds a number of things missing, one fewer each time.
type fakeAuditor struct {
	reconcile.Base
	missing int
}

func (a *fakeAuditor) Cleanup(context.Context) error { return nil }

func (a *fakeAuditor) Plan(context.Context, *service.Snapshot) (reconcile.Plan, error) {
	if a.missing > 0 {
		a.missing--
		return nonEmptyPlan{}, nil
	}
	return emptyPlan{}, nil
}

type (
	nonEmptyPlan struct{ reconcile.Plan }
	emptyPlan    struct{ reconcile.Plan }
)

func (nonEmptyPlan) Empty() bool { return false }
func (nonEmptyPlan) Changes() reconcile.Changes {
	return reconcile.Changes{{Text: "+ something"}}
}
func (emptyPlan) Empty() bool { return true }

// takeoverTest is a takeover in a synctest bubble, with what it reports.
type takeoverTest struct {
	*Takeover
	conditions []string // conditions, in order
	foreign    []string // what reappeared and when, in minutes
	done       int
	failed     int
	logText    *bytes.Buffer
}

// runTakeover runs do beside a takeover of left.
func runTakeover(t *testing.T, left *fakeLeftovers, audit *fakeAuditor, do func(*takeoverTest)) {
	t.Helper()
	runTakeovers(t, []Target{{Leftovers: left}}, audit, do)
}

// runTakeovers runs do beside a takeover of targets.
func runTakeovers(t *testing.T, targets []Target, audit *fakeAuditor, do func(*takeoverTest)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s, began := &takeoverTest{logText: &bytes.Buffer{}}, time.Now()
		s.Takeover = New(Options{
			Targets:   targets,
			Audit:     func() (reconcile.Backend, error) { return audit, nil },
			Log:       textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(s.logText))),
			Condition: func(text string) { s.conditions = append(s.conditions, text) },
			ReportForeignRules: func(what string) {
				s.foreign = append(s.foreign, fmt.Sprintf("%.0f %s", time.Since(began).Minutes(), what))
			},
			OnRemoved:    func() { s.done++ },
			CountFailure: func() { s.failed++ },
		})
		ctx, cancel := context.WithCancel(t.Context())
		s.Discover(ctx)
		ended := make(chan struct{})
		go func() {
			s.runOnce(ctx)
			close(ended)
		}()
		synctest.Wait()
		do(s)
		cancel()
		<-ended
	})
}

// advance advances the clock, and waits until pending work is done.
func advance(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// good reports a good round for want.
func (t *takeoverTest) good(want *service.Snapshot) {
	t.RecordRound(reconcile.Result{Snapshot: want})
}

// after advances the clock and then reports a round.
func (t *takeoverTest) after(d time.Duration, err error) {
	time.Sleep(d)
	t.RecordRound(reconcile.Result{Snapshot: service.New(1, &service.Node{NodePorts: service.AnyAddress()}, nil), Outcome: reconcile.Outcome{Err: err}})
	synctest.Wait()
}

var (
	errPortTest        = &reconcile.PortError{Err: errors.New("refused")}
	errUnsupportedTest = errors.Join(&reconcile.PortError{Err: &reconcile.UnsupportedError{Text: "no SCTP"}})
)

func TestTakeover(t *testing.T) {
	const found = "rules"
	for situation, tt := range map[string]struct {
		left      fakeLeftovers
		missing   int
		do        func(*takeoverTest)
		removed   int
		failed    int
		done      bool
		condition string // part of a condition
	}{
		"nothing was left":              {left: fakeLeftovers{}, do: func(s *takeoverTest) { s.after(0, nil) }},
		"a good round":                  {left: fakeLeftovers{what: found}, do: func(s *takeoverTest) { s.after(0, nil) }, removed: 1, done: true, condition: "they are removed as soon as"},
		"no round yet":                  {left: fakeLeftovers{what: found}, do: func(*takeoverTest) { advance(time.Hour) }, condition: "they are removed as soon as"},
		"rounds fail":                   {left: fakeLeftovers{what: found}, do: func(s *takeoverTest) { s.after(0, errSystemTest); s.after(time.Hour, errSystemTest) }},
		"NodePorts are closed as yet":   {left: fakeLeftovers{what: found}, do: func(s *takeoverTest) { s.good(closedFor(service.IPv4)); advance(time.Hour) }},
		"those of the other family":     {left: fakeLeftovers{what: found}, do: func(s *takeoverTest) { s.good(closedFor(service.IPv6)); advance(0) }, removed: 1, done: true},
		"something cannot be read":      {left: fakeLeftovers{what: found}, do: func(s *takeoverTest) { s.good(&service.Snapshot{Incomplete: true}); advance(time.Hour) }},
		"not all is there at first":     {left: fakeLeftovers{what: found}, missing: 2, do: func(s *takeoverTest) { s.after(0, nil); advance(10 * time.Second) }, removed: 1, done: true, condition: "+ something"},
		"what is wanted is never there": {left: fakeLeftovers{what: found}, missing: 1 << 30, do: func(s *takeoverTest) { s.after(0, nil); advance(time.Minute) }, condition: "not all rules are in force"},
		"removing fails twice": {
			left: fakeLeftovers{what: found, fail: []error{errSystemTest, errSystemTest}},
			do:   func(s *takeoverTest) { s.after(0, nil); advance(10 * time.Second) }, removed: 3, failed: 2, done: true, condition: "out of order",
		},
		"removed but not seen to be": {
			left: fakeLeftovers{what: found, unreadable: 2}, do: func(s *takeoverTest) { s.after(0, nil); advance(10 * time.Second) },
			removed: 1, failed: 2, done: true, condition: "out of order",
		},
		"another process has the node before all is there": {
			left: fakeLeftovers{what: found}, missing: 1, do: func(s *takeoverTest) { s.after(0, nil); s.Standby(); advance(time.Minute) },
			condition: "+ something",
		},
		"and gives it back": {
			left: fakeLeftovers{what: found}, missing: 1,
			do:      func(s *takeoverTest) { s.after(0, nil); s.Standby(); advance(time.Minute); s.after(0, nil) },
			removed: 1, done: true,
		},
		"another process has the node before removing succeeds": {
			left:    fakeLeftovers{what: found, fail: []error{errSystemTest}},
			do:      func(s *takeoverTest) { s.after(0, nil); s.Standby(); advance(time.Minute) },
			removed: 1, failed: 1, condition: "out of order",
		},
		"and gives that back": {
			left:    fakeLeftovers{what: found, fail: []error{errSystemTest}},
			do:      func(s *takeoverTest) { s.after(0, nil); s.Standby(); advance(time.Minute); s.after(0, nil) },
			removed: 2, failed: 1, done: true,
		},
		"somebody makes it again": {
			left: fakeLeftovers{what: found, recreated: true}, do: func(s *takeoverTest) { s.after(0, nil); advance(10 * time.Minute) },
			removed: 15, failed: 15, condition: "another program makes it",
		},
	} {
		t.Run(situation, func(t *testing.T) {
			var s *takeoverTest
			runTakeover(t, &tt.left, &fakeAuditor{missing: tt.missing}, func(now *takeoverTest) {
				s = now
				tt.do(s)
				if got := s.done > 0; got != tt.done || tt.left.removed != tt.removed {
					t.Errorf("removed %d times, done %t; want %d, %t", tt.left.removed, got, tt.removed, tt.done)
				}
				if s.failed != tt.failed {
					t.Errorf("%d failures counted, want %d", s.failed, tt.failed)
				}
				if now := len(s.conditions) > 0 && s.conditions[len(s.conditions)-1] != ""; tt.left.what != "" && !now || tt.done && now {
					t.Errorf("conditions %q", s.conditions)
				}
			})
			if !slices.ContainsFunc(s.conditions, func(text string) bool { return strings.Contains(text, tt.condition) }) && tt.condition != "" {
				t.Errorf("conditions %q, want one with %q", s.conditions, tt.condition)
			}
			if got := strings.Contains(s.logText.String(), "Removed what an earlier"); got != tt.done && tt.left.what == "" && tt.removed > 0 {
				t.Errorf("done %t, and the log says:\n%s", tt.done, s.logText)
			}
			if n := strings.Count(s.logText.String(), "still there; trying again"); n > 1 {
				t.Errorf("the same was reported %d times:\n%s", n, s.logText)
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
		ports = append(ports, &service.Port{Name: service.PortName{Namespace: "shop", Name: "web", Port: "http", Protocol: service.TCP}, Family: f})
	}
	return service.New(1, n, ports)
}

var errSystemTest = errors.New("the kernel is out of order")

// TestClear checks the log of removals and of failures to remove.
func TestClear(t *testing.T) {
	for situation, tt := range map[string]struct {
		left      fakeLeftovers
		what, err string
	}{
		"nothing there":       {fakeLeftovers{}, "", ""},
		"something there":     {fakeLeftovers{what: "rules"}, "rules", ""},
		"cannot be removed":   {fakeLeftovers{what: "rules", fail: []error{errSystemTest}}, "", "the kernel is out of order"},
		"somebody else's too": {fakeLeftovers{what: "rules", recreated: true}, "rules", "a place has rules again, which was removed: another program makes it"},
	} {
		t.Run(situation, func(t *testing.T) {
			what, err := removeLeftovers(t.Context(), Target{Leftovers: &tt.left})
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

// TestTakeoverInPart reports rounds that program all but single ports.
func TestTakeoverInPart(t *testing.T) {
	for situation, tt := range map[string]struct {
		missing int
		do      func(*takeoverTest)
		gone    bool
	}{
		"ports are refused": {do: func(s *takeoverTest) { s.after(0, errPortTest); s.after(time.Second, errPortTest) }},
		// There is no snapshot that is in force, so there is nothing to compare with.
		"ports stay refused":     {missing: 1 << 30, do: func(s *takeoverTest) { s.after(0, errPortTest); advance(portTimeout) }, gone: true},
		"the mode cannot do all": {do: func(s *takeoverTest) { s.after(0, errUnsupportedTest) }, gone: true},
		"and the rest is not there": {
			missing: 1 << 30, do: func(s *takeoverTest) { s.after(0, errUnsupportedTest); advance(time.Hour) },
		},
		"ports are refused, then all": {
			do: func(s *takeoverTest) {
				s.after(0, errPortTest)
				s.after(time.Second, errSystemTest)
				advance(time.Hour)
			},
		},
		"ports are refused, then all, then ports": {
			do: func(s *takeoverTest) {
				s.after(0, errPortTest)
				s.after(50*time.Second, errSystemTest)
				s.after(time.Second, errPortTest)
				advance(50 * time.Second)
			},
		},
		"ports are refused, then all, then ports for long": {
			do: func(s *takeoverTest) {
				s.after(0, errPortTest)
				s.after(50*time.Second, errSystemTest)
				s.after(time.Second, errPortTest)
				advance(portTimeout)
			},
			gone: true,
		},
		"ports are refused, then something cannot be read": {
			do: func(s *takeoverTest) {
				s.after(0, errPortTest)
				s.good(&service.Snapshot{Incomplete: true})
				advance(time.Hour)
			},
		},
	} {
		t.Run(situation, func(t *testing.T) {
			left := fakeLeftovers{what: "rules"}
			runTakeover(t, &left, &fakeAuditor{missing: tt.missing}, func(s *takeoverTest) {
				tt.do(s)
				if gone := left.what == ""; gone != tt.gone {
					t.Errorf("old rules are gone: %t, want %t", gone, tt.gone)
				}
			})
		})
	}
}
