// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"kubeproxy/common/errtree"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/test/kit"
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

func (nonEmptyPlan) Empty() bool                { return false }
func (nonEmptyPlan) Changes() reconcile.Changes { return reconcile.Changes{{Text: "+ something"}} }
func (emptyPlan) Empty() bool                   { return true }

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
func (t *takeoverTest) good(want *service.Snapshot) { t.RecordRound(reconcile.Result{Snapshot: want}) }

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
				kit.Check(t, s.failed == tt.failed, "%d failures counted, want %d", s.failed, tt.failed)
				if now := len(s.conditions) > 0 && s.conditions[len(s.conditions)-1] != ""; tt.left.what != "" && !now || tt.done && now {
					t.Errorf("conditions %q", s.conditions)
				}
			})
			kit.Check(t, slices.ContainsFunc(s.conditions, func(text string) bool { return strings.Contains(text, tt.condition) }) || tt.condition == "",
				"conditions %q, want one with %q", s.conditions, tt.condition)
			got := strings.Contains(s.logText.String(), "Removed what an earlier")
			kit.Check(t, got == tt.done || tt.left.what != "" || tt.removed <= 0, "done %t, and the log says:\n%s", tt.done, s.logText)
			n := strings.Count(s.logText.String(), "still there; trying again")
			kit.Check(t, n <= 1, "the same was reported %d times:\n%s", n, s.logText)
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
			kit.Check(t, what == tt.what && text == tt.err, "clear = %q, %q; want %q, %q", what, text, tt.what, tt.err)
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
				kit.Equal(t, left.what == "", tt.gone, "old rules are gone")
			})
		})
	}
}

func TestOnlyForbidden(t *testing.T) {
	other := errors.New("other")
	tests := map[string]struct {
		err  error
		want bool
	}{
		"nothing":       {nil, false},
		"not permitted": {fmt.Errorf("look: %w: as root", syscall.EPERM), true},
		"unread":        {unreadError{&fs.PathError{Op: "open", Path: "x", Err: syscall.EACCES}}, true},
		"several":       {fmt.Errorf("look: %w", errors.Join(syscall.EPERM, syscall.EACCES)), true},
		"another":       {fmt.Errorf("look: %w", other), false},
		"mixed":         {errors.Join(syscall.EPERM, other), false},
	}
	for name, tt := range tests {
		kit.Equal(t, errtree.Only(tt.err, fs.ErrPermission), tt.want, "%s", name)
	}
}

// TestCleanup empties targets of each kind, and checks what is logged and returned.
func TestCleanup(t *testing.T) {
	for situation, tt := range map[string]struct {
		target    Target
		left      fakeLeftovers
		removed   int
		log, text string // of the only line, and of the error
	}{
		"nothing there":  {log: "Nothing to clean up"},
		"rules":          {left: fakeLeftovers{what: "rules"}, removed: 1, log: `"Cleaned up" place="a place" removed="rules"`},
		"of kube-proxy":  {target: Target{Upstream: true}, left: fakeLeftovers{what: "rules"}},
		"skipped":        {target: Target{IPVS: true}, left: fakeLeftovers{what: "rules"}, log: "Left alone, as the test asks for"},
		"removal fails":  {left: fakeLeftovers{what: "rules", fail: []error{errSystemTest}}, removed: 1, text: "clean up a place: the kernel is out of order"},
		"no privileges":  {left: fakeLeftovers{what: "rules", fail: []error{syscall.EPERM}}, removed: 1, log: "Not allowed to clean up", text: "clean up a place: permission denied: ask root"},
		"unchecked":      {left: fakeLeftovers{what: "rules", fail: []error{&UncheckedError{Err: errSystemTest}}}, removed: 1, log: "Warning: not checked, for want of rights"},
		"suspected":      {left: fakeLeftovers{what: "rules", fail: []error{&UncheckedError{Err: errSystemTest, Suspected: true}}}, removed: 1, text: "clean up a place: the kernel is out of order"},
		"somebody makes": {left: fakeLeftovers{what: "rules", recreated: true}, removed: 1, text: "clean up a place: a place has rules again"},
	} {
		t.Run(situation, func(t *testing.T) {
			logger, log := kit.NewLog(2)
			ctx := klog.NewContext(t.Context(), logger)
			tt.target.Leftovers = &tt.left
			skip := func(p Target) string {
				if p.IPVS {
					return "the test"
				}
				return ""
			}
			text := ""
			if err := Cleanup(ctx, []Target{tt.target}, CleanupOptions{Skip: skip, Privileges: "ask root"}); err != nil {
				text = err.Error()
			}
			kit.Check(t, strings.HasPrefix(text, tt.text) && (tt.text != "" || text == "") && tt.left.removed == tt.removed,
				"removed %d times, error %q; want %d, %q", tt.left.removed, text, tt.removed, tt.text)
			kit.Check(t, strings.Contains(log.String(), tt.log) && (tt.log != "" || log.Len() <= 0), "log %q, want %q", log.String(), tt.log)
		})
	}
}

// drainingLeftovers are leftovers that connections need for a while.
type drainingLeftovers struct {
	fakeLeftovers
	until time.Time
	since []time.Time // the arguments of Drain
	fail  error       // of the next call
}

func (d *drainingLeftovers) Drain(_ context.Context, since time.Time) (string, error) {
	d.since = append(d.since, since)
	if err := d.fail; err != nil {
		d.fail = nil
		return "", err
	}
	if time.Now().Before(d.until) {
		return "one connection", nil
	}
	d.what = ""
	return "", nil
}

// TestDraining checks that what connections need stays until they end, that a condition
// shows it, and that a round is requested at the start and at the end of the drain.
func TestDraining(t *testing.T) {
	for _, tt := range []struct {
		name     string
		fail     error
		duration time.Duration
		done     int
	}{{"none", nil, 0, 1}, {"for a while", nil, time.Minute, 2}, {"it fails at first", errSystemTest, time.Minute, 2}} {
		t.Run(tt.name, func(t *testing.T) {
			n := &drainingLeftovers{fakeLeftovers: fakeLeftovers{what: "virtual servers"}, fail: tt.fail}
			runTakeovers(t, []Target{{Leftovers: n}}, &fakeAuditor{}, func(s *takeoverTest) {
				began := time.Now()
				n.until = began.Add(tt.duration)
				s.after(0, nil)
				advance(2 * time.Minute)
				kit.Check(t, s.done == tt.done && n.what == "" && len(s.targets) == 0,
					"done %d times, left %q in %d places; want %d times", s.done, n.what, len(s.targets), tt.done)
				if conditions := strings.Join(s.conditions, "\n"); tt.duration > 0 != strings.Contains(conditions, "stays until its connections end: one connection") || s.conditions[len(s.conditions)-1] != "" {
					t.Errorf("conditions %q", s.conditions)
				}
				if text := s.logText.String(); strings.Count(text, "takes no new connections from now on") != tt.done-1 || strings.Count(text, "Removed what") != 1 {
					t.Errorf("log:\n%s", text)
				}
				if last := n.since[len(n.since)-1]; tt.duration > 0 && (!n.since[0].IsZero() || last.IsZero() || last.Sub(began) > 2*time.Second) {
					t.Errorf("it was reported that it began at %v", n.since)
				}
			})
		})
	}
}

// unreadableLeftovers is an empty place whose first reads fail.
type unreadableLeftovers struct{ times int }

func (u *unreadableLeftovers) String() string { return "another place" }

func (u *unreadableLeftovers) Find(context.Context) (string, error) {
	if u.times--; u.times >= 0 {
		return "", errUnreadableTest
	}
	return "", nil
}

func (u *unreadableLeftovers) Remove(context.Context) error { return nil }

var errUnreadableTest = errors.New("it is dark")

// TestUnreadIsNotLeft checks that an unreadable place is not reported as occupied, nor an
// occupied one as unreadable, and that each is logged once.
func TestUnreadIsNotLeft(t *testing.T) {
	const (
		dark  = "it is unknown whether an earlier service proxy left rules in another place: it is dark"
		there = "an earlier service proxy left rules in a place: "
	)
	stuck := &fakeLeftovers{what: "rules", fail: []error{errSystemTest, errSystemTest, errSystemTest}}
	runTakeovers(t, []Target{{Leftovers: stuck}, {Leftovers: &unreadableLeftovers{times: 3}}}, &fakeAuditor{}, func(s *takeoverTest) {
		s.after(0, nil)
		advance(10 * time.Second)
		want := []string{
			there + "they are removed as soon as the new rules are in force; " + dark,
			there + "the kernel is out of order; " + dark,
			there + "the kernel is out of order; " + dark,
			there + "the kernel is out of order",
			"",
		}
		kit.Check(t, slices.Equal(s.conditions, want),
			"conditions\n%s\nwant\n%s", strings.Join(s.conditions, "\n"), strings.Join(want, "\n"))
		for _, once := range []string{UnreadText, stillText} {
			n := strings.Count(s.logText.String(), once)
			kit.Check(t, n == 1, "%q was logged %d times:\n%s", once, n, s.logText)
		}
	})
}

// lineFunc is called with each line that is logged.
type lineFunc func(line string)

func (l lineFunc) Write(line []byte) (int, error) {
	l(string(line))
	return len(line), nil
}

// TestErrorIsReportedBeforeItIsLogged checks that a log line about old rules follows the
// condition in the health report.
func TestErrorIsReportedBeforeItIsLogged(t *testing.T) {
	var condition string
	logged := 0
	line := func(line string) {
		logged++
		kit.Check(t, strings.Contains(condition, "no right"), "%q is said, and %q shown", line, condition)
	}
	x := New(Options{
		Targets:   []Target{{Leftovers: &fakeLeftovers{}, err: errors.New("no right")}},
		Condition: func(text string) { condition = text },
		Log:       textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(lineFunc(line)))),
	})
	if x.report("", nil); logged != 1 {
		t.Errorf("said %d times", logged)
	}
}

// TestErrorsNameTheirPlace logs an error about all places, and one with the place that it is of.
func TestErrorsNameTheirPlace(t *testing.T) {
	var text bytes.Buffer
	s := New(Options{Log: textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&text))), Condition: func(string) {}})
	s.targets = []Target{{Leftovers: &fakeLeftovers{}, err: errSystemTest}, {Leftovers: &unreadableLeftovers{}, err: unreadError{errUnreadableTest}}}
	s.report("", errors.New("nothing can be planned"))
	for _, want := range []string{
		stillText + `" err="nothing can be planned"` + "\n",
		stillText + `" err="the kernel is out of order" place="a place"` + "\n", UnreadText + `" err="it is dark" place="another place"` + "\n",
	} {
		kit.Check(t, strings.Count(text.String(), want) == 1, "want %q once in\n%s", want, text.String())
	}
}

// sharedLeftovers are leftovers that a test changes while a takeover runs.
type sharedLeftovers struct {
	mu   sync.Mutex
	fake fakeLeftovers
}

func (l *sharedLeftovers) String() string { return l.fake.String() }

func (l *sharedLeftovers) Find(ctx context.Context) (string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fake.Find(ctx)
}

func (l *sharedLeftovers) Remove(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fake.Remove(ctx)
}

// set says what is there.
func (l *sharedLeftovers) set(what string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fake.what = what
}

// state returns what is there, and how often it was removed.
func (l *sharedLeftovers) state() (what string, removed int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fake.what, l.fake.removed
}

// runReappearing runs do beside a takeover that goes on, and returns what reappeared and
// when, in minutes.
func runReappearing(t *testing.T, left *sharedLeftovers, do func(*takeoverTest)) []string {
	t.Helper()
	var seen []string
	runTakeovers(t, []Target{{Leftovers: left}}, &fakeAuditor{}, func(s *takeoverTest) {
		s.after(0, nil)
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan struct{})
		go func() {
			s.Run(ctx)
			close(ended)
		}()
		do(s)
		cancel()
		<-ended
		seen = s.foreign
	})
	return seen
}

// TestRulesReappear has another program add rules again and again. They are removed at
// growing intervals, and reported until nobody adds them.
func TestRulesReappear(t *testing.T) {
	left := &sharedLeftovers{}
	got := runReappearing(t, left, func(*takeoverTest) {
		advance(90 * time.Second)
		for range 48 {
			left.set("rules")
			advance(time.Minute)
		}
		what, removed := left.state()
		kit.Check(t, removed == 6 && what == "rules", "removed %d times, want 6, and %q is there", removed, what)
		advance(16 * time.Minute)
		left.set("")
		advance(17 * time.Minute)
	})
	want := []string{"1 ", "2 a place: rules", "4 a place: rules", "8 a place: rules", "16 a place: rules", "32 a place: rules", "48 a place: rules", "64 a place: rules", "80 ", "81 ", "82 "}
	kit.Same(t, "(-want +got)", want, got)
}

// TestLeftByAnotherHolder checks that rules of a process that had the node for a while
// are not reported as foreign.
func TestLeftByAnotherHolder(t *testing.T) {
	left := &sharedLeftovers{}
	got := runReappearing(t, left, func(s *takeoverTest) {
		advance(time.Second)
		s.Standby()
		left.set("rules")
		advance(time.Second)
		_, removed := left.state()
		kit.Check(t, removed <= 0, "removed while another process had the node")
		s.after(0, nil)
		advance(time.Second)
		if _, removed := left.state(); removed != 1 {
			t.Errorf("removed %d times, want once", removed)
		}
	})
	kit.Check(t, len(got) == 0, "reported as foreign: %q", got)
}
