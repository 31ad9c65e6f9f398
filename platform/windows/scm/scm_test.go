// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package scm

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"kubeproxy/test/kit"
)

// fake is a service control manager with one service, which follows a script: each Query
// removes one state, and the last one stays.
type fake struct {
	script    []State
	errs      map[string]error // by call
	errCounts map[string]int   // how many times; no limit if missing
	calls     []string
	exitCode  uint32
}

func (f *fake) call(name string) error {
	if n := len(f.calls); n == 0 || f.calls[n-1] != name {
		f.calls = append(f.calls, name)
	}
	if left, counted := f.errCounts[name]; counted {
		if left == 0 {
			return nil
		}
		f.errCounts[name]--
	}
	return f.errs[name]
}

func (f *fake) Create(Spec) error    { return f.call("create") }
func (f *fake) Configure(Spec) error { return f.call("complete") }
func (f *fake) Delete(string) error  { return f.call("delete") }
func (f *fake) Start(string) error   { return f.call("start") }
func (f *fake) Stop(string) error    { return f.call("stop") }
func (f *fake) state() (state State) {
	if state = f.script[0]; len(f.script) > 1 {
		f.script = f.script[1:]
	}
	return state
}

func (f *fake) Query(name string) (Status, error) {
	if err := f.call("query"); err != nil {
		return Status{}, err
	}
	return Status{Name: name, State: f.state(), ExitCode: f.exitCode}, nil
}

func failing(call string, code syscall.Errno) map[string]error {
	return map[string]error{call: fmt.Errorf("wrapped: %w", code)}
}

func TestManager(t *testing.T) {
	start := func(m *Manager) error { return m.Start(context.Background(), "x") }
	stop := func(m *Manager) error { return m.Stop(context.Background(), "x") }
	install := func(m *Manager) error { return m.Install(Spec{Name: "x"}) }
	uninstall := func(m *Manager) error { return m.Uninstall(context.Background(), "x") }
	status := func(m *Manager) error { _, err := m.Status("x"); return err }
	for name, tt := range map[string]struct {
		fake fake
		do   func(*Manager) error
		kind error  // nil for no error
		text string // of the error
		want string // calls
	}{
		"install":                 {fake{}, install, nil, "", "create complete"},
		"install twice":           {fake{errs: failing("create", 1073)}, install, ErrInstalled, "install service x: is installed already: uninstall it first", "create"},
		"install while it goes":   {fake{errs: failing("create", 1072)}, install, ErrPending, "close the Services console", "create"},
		"install without rights":  {fake{errs: failing("create", 5)}, install, ErrAccessDenied, "as an administrator", "create"},
		"install, half":           {fake{errs: failing("complete", 120)}, install, nil, "", "create complete"},
		"start":                   {fake{script: []State{Starting, Running}}, start, nil, "", "start query"},
		"start twice":             {fake{errs: failing("start", 1056)}, start, ErrRunning, "is running already", "start"},
		"start what is not there": {fake{errs: failing("start", 1060)}, start, ErrNotInstalled, "kube-proxy service install", "start"},
		"start, busy first":       {fake{script: []State{Running}, errs: failing("start", 1055), errCounts: map[string]int{"start": 3}}, start, nil, "", "start query"},
		"start, always busy":      {fake{errs: failing("start", 1055)}, start, ErrPending, "try again", "start"},
		"start without hns":       {fake{errs: failing("start", 1075)}, start, syscall.Errno(1075), "Install-WindowsFeature Containers", "start"},
		"start, it ends":          {fake{script: []State{Starting, Stopped}, exitCode: 7}, start, ErrEnded, "with exit code 7", "start query"},
		"start, it ends at once":  {fake{script: []State{Stopped}, errs: failing("start", 1053), exitCode: 7}, start, ErrEnded, "with exit code 7", "start query"},
		"start, it never answers": {fake{script: []State{Stopped}, errs: failing("start", 1053), exitCode: 1053}, start, syscall.Errno(1053), "did not answer the service manager", "start query"},
		"start, it answers late":  {fake{script: []State{Starting, Running}, errs: failing("start", 1053)}, start, nil, "", "start query"},
		"start, it takes long":    {fake{script: []State{Starting}}, start, ErrPending, "is still in progress after 1m0s: it is starting", "start query"},
		"stop":                    {fake{script: []State{Running, Stopping, Stopped}}, stop, nil, "", "query stop query"},
		"stop, it was quick":      {fake{script: []State{Running, Stopped}, errs: failing("stop", 1062)}, stop, nil, "", "query stop query"},
		"stop while it starts":    {fake{script: []State{Starting, Running, Stopped}, errs: failing("stop", 1061), errCounts: map[string]int{"stop": 1}}, stop, nil, "", "query stop query stop query"},
		"stop twice":              {fake{script: []State{Stopped}}, stop, ErrNotRunning, "is not running", "query"},
		"stop what others stop":   {fake{script: []State{Stopping, Stopping, Stopped}}, stop, nil, "", "query"},
		"stop, it takes long":     {fake{script: []State{Running, Stopping}}, stop, ErrPending, "is still in progress after 1m0s: it is stopping", "query stop query"},
		"stop without rights":     {fake{script: []State{Running}, errs: failing("stop", 5)}, stop, ErrAccessDenied, "stop service x: is refused", "query stop"},
		"uninstall":               {fake{script: []State{Stopped}}, uninstall, nil, "", "query delete"},
		"uninstall what runs":     {fake{script: []State{Running, Stopped}}, uninstall, nil, "", "query stop query delete"},
		"uninstall, does not end": {fake{script: []State{Stopping}}, uninstall, ErrPending, "uninstall: stop service x", "query"},
		"uninstall twice":         {fake{errs: failing("query", 1060)}, uninstall, ErrNotInstalled, "is not installed", "query"},
		"status of nothing":       {fake{errs: failing("query", 1060)}, status, ErrNotInstalled, "query service x: is not installed", "query"},
		"unknown number":          {fake{errs: failing("query", 4711)}, status, syscall.Errno(4711), "query service x: wrapped", "query"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				err := tt.do(&Manager{Driver: &tt.fake, Timeout: time.Minute, Log: func(string) {}})
				kit.Check(t, (tt.kind == nil) == (err == nil) && (tt.kind == nil || errors.Is(err, tt.kind) && strings.Contains(err.Error(), tt.text)),
					"error %v, want %v with %q", err, tt.kind, tt.text)
				got := strings.Join(tt.fake.calls, " ")
				kit.Check(t, got == tt.want, "calls %q, want %q", got, tt.want)
			})
		})
	}
}

// TestProgress checks that a user sees progress, and what Configure could not set.
func TestProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var logged []string
		m := &Manager{Driver: &fake{script: []State{Starting}, errs: failing("complete", 120)}, Timeout: 11 * time.Second, Log: func(s string) { logged = append(logged, s) }}
		err := m.Install(Spec{Name: "x"})
		kit.Check(t, err == nil, "%v", err)
		_ = m.Start(t.Context(), "x") // exceeds the timeout
		want := []string{
			"the service manager refuses some properties, and the service works without them: wrapped: " + syscall.Errno(120).Error(),
			"waiting for service x to start, for 5s so far",
			"waiting for service x to start, for 10s so far",
		}
		kit.Same(t, "reported (-want +got)", want, logged)
	})
}

// TestSupervise has no event at a full second, when a report may be due.
func TestSupervise(t *testing.T) {
	failure := errors.New("no")
	for name, tt := range map[string]struct {
		begin, end time.Duration // duration of the start and, after a stop, of the end
		fail       bool          // fails instead of starting
		stop       time.Duration
		want       string
	}{
		"quick":          {0, time.Millisecond, false, 5500 * time.Millisecond, "starting 0, running 0, stopping 0"},
		"slow to start":  {2500 * time.Millisecond, time.Millisecond, false, 5500 * time.Millisecond, "starting 0, starting 1, starting 2, running 0, stopping 0"},
		"slow to stop":   {0, 2400 * time.Millisecond, false, 5500 * time.Millisecond, "starting 0, running 0, stopping 0, stopping 1, stopping 2"},
		"stopped early":  {1500 * time.Millisecond, 400 * time.Millisecond, false, time.Second / 2, "starting 0, stopping 0, stopping 1"},
		"does not start": {time.Second / 2, 0, true, time.Hour, "starting 0"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), tt.stop)
				defer cancel()
				var got []string
				err := Supervise(ctx, func(ctx context.Context, started func()) error {
					time.Sleep(tt.begin)
					if tt.fail {
						return failure
					}
					started()
					started() // a second call has no effect
					<-ctx.Done()
					time.Sleep(tt.end)
					return nil
				}, func(r Report) { got = append(got, fmt.Sprintf("%s %d", r.State, r.CheckPoint)) })
				kit.Check(t, errors.Is(err, failure) == tt.fail && (tt.fail || err == nil), "error %v", err)
				kit.Same(t, "reports (-want +got)", tt.want, strings.Join(got, ", "))
			})
		})
	}
}
