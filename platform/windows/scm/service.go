// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package scm installs a program as a Windows service, controls the service, and runs the
// program under the service control manager (SCM). A Spec describes the service. The
// results are states and errors that name the remedy. The caller provides the work of the
// service. Only the driver calls Windows. All other files interpret its answers, on any
// system.
package scm

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"
)

// State is the state of a service, in printable form.
type State string

// The states. Services of this package cannot be paused.
const (
	Stopped  State = "stopped"
	Starting State = "starting"
	Running  State = "running"
	Stopping State = "stopping"
)

// Status is the state and configuration of an installed service.
type Status struct {
	Name  string `json:"name"`
	State State  `json:"state"`
	// PID is 0 if there is no process.
	PID uint32 `json:"pid,omitempty"`
	// ExitCode is the exit code of the last run, 0 if there was none.
	ExitCode uint32 `json:"exitCode"`
	// StartType and the fields below are empty if Windows does not return them.
	StartType string   `json:"startType,omitempty"`
	Command   string   `json:"command,omitempty"`
	Account   string   `json:"account,omitempty"`
	DependsOn []string `json:"dependsOn,omitempty"`
}

// Spec is a service to install. Windows starts it at boot, as LocalSystem.
type Spec struct {
	Name, DisplayName, Description string
	Executable                     string // the absolute path
	Args                           []string
	// DependsOn names the services that Windows starts before this one.
	DependsOn []string
}

// Driver is the service control manager. Its errors are or wrap syscall.Errno.
type Driver interface {
	Create(Spec) error
	// Configure sets optional properties: restarts after failures, the event source.
	Configure(Spec) error
	// Delete also removes the event source.
	Delete(name string) error
	// Start and Stop return before the service has started or stopped.
	Start(name string) error
	Stop(name string) error
	Query(name string) (Status, error)
}

// The classes of errors that callers distinguish.
var (
	ErrInstalled       = errors.New("is installed already")
	ErrNotInstalled    = errors.New("is not installed")
	ErrRunning         = errors.New("is running already")
	ErrNotRunning      = errors.New("is not running")
	ErrPending         = errors.New("is still in progress")
	ErrAccessDenied    = errors.New("is refused")
	ErrEnded           = errors.New("ended while it was starting")
	ErrOtherProgram    = errors.New("is none of this program")
	ErrNotStartedBySCM = errors.New("was not started by the service manager")
	// ErrRestart, returned by Work, ends the service. The SCM then restarts it.
	ErrRestart = errors.New("asks to be started again")
)

// The Windows error codes that this package handles, see
// https://learn.microsoft.com/windows/win32/debug/system-error-codes.
const (
	codeAccessDenied    = syscall.Errno(5)
	codeRequestTimeout  = syscall.Errno(1053)
	codeDatabaseLocked  = syscall.Errno(1055)
	codeRunning         = syscall.Errno(1056)
	codeNotInstalled    = syscall.Errno(1060)
	codeCannotAccept    = syscall.Errno(1061)
	codeNotRunning      = syscall.Errno(1062)
	codeNotStartedBySCM = syscall.Errno(1063)
	codeMarkedForDelete = syscall.Errno(1072)
	codeInstalled       = syscall.Errno(1073)
)

// explanation is the meaning of an error code and its remedy.
type explanation struct {
	kind   error // one of the errors above, or nil
	remedy string
}

var explanations = map[syscall.Errno]explanation{
	codeAccessDenied:    {ErrAccessDenied, "do this as an administrator, in a console that was started with \"Run as administrator\""},
	codeDatabaseLocked:  {ErrPending, "the service manager is busy with other services; try again"},
	codeRunning:         {ErrRunning, "to have it read its settings again, stop it first"},
	codeNotInstalled:    {ErrNotInstalled, "kube-proxy service install does that; --name if it has another name"},
	codeCannotAccept:    {ErrPending, "it is starting or stopping; try again"},
	codeNotRunning:      {ErrNotRunning, "kube-proxy service start starts it"},
	codeNotStartedBySCM: {ErrNotStartedBySCM, "start it with kube-proxy service start, or leave --windows-service and windowsRunAsService out"},
	codeMarkedForDelete: {ErrPending, "it is uninstalled, and disappears when no program uses it: close the Services console and others that show it"},
	codeInstalled:       {ErrInstalled, "uninstall it first, or choose another name with --name"},
	syscall.Errno(1051): {nil, "other services that run need it: stop those first"},
	codeRequestTimeout:  {nil, "it did not answer the service manager in time; its log and the event log may say why"},
	syscall.Errno(1058): {nil, "it is disabled: sc.exe config NAME start= auto enables it"},
	syscall.Errno(1068): {nil, "a service that it depends on does not start: look at hns, the Host Network Service"},
	syscall.Errno(1069): {nil, "its account cannot log on: want LocalSystem, as it was installed"},
	syscall.Errno(1075): {nil, "a service that it depends on is missing: hns comes with the Windows feature Containers, Install-WindowsFeature Containers"},
	syscall.Errno(1078): {ErrInstalled, "another service is shown under this name: choose another one with --name"},
	syscall.Errno(1115): {nil, "the system is shutting down"},
}

// explain returns an error with the failed command, the service, the reason and the remedy.
func explain(doing, name string, err error) error {
	if err == nil {
		return nil
	}
	code, known := errors.AsType[syscall.Errno](err)
	a, explained := explanations[code]
	switch {
	case !known || !explained:
		return fmt.Errorf("%s service %s: %w", doing, name, err)
	case a.kind == nil:
		return fmt.Errorf("%s service %s: %w; %s", doing, name, err, a.remedy)
	}
	return fmt.Errorf("%s service %s: %w: %s", doing, name, a.kind, a.remedy)
}

func hasCode(err error, code syscall.Errno) bool {
	got, ok := errors.AsType[syscall.Errno](err)
	return ok && got == code
}

// Manager controls services and waits until its commands take effect.
type Manager struct {
	Driver Driver
	// Timeout bounds how long a service may take to start or to stop.
	Timeout time.Duration
	// IsOurs reports whether a service with this command line runs this program. Other
	// services are neither started nor stopped nor removed. If nil, all count as ours.
	IsOurs func(command string) bool
	// Log receives progress and minor problems. It must not be nil.
	Log func(string)
}

// The intervals of a Manager.
const (
	pollInterval     = 100 * time.Millisecond
	progressInterval = 5 * time.Second
)

// Install installs a service. On error it changed nothing.
func (m *Manager) Install(s Spec) error {
	if err := m.Driver.Create(s); err != nil {
		return m.createError(s.Name, err)
	}
	if err := m.Driver.Configure(s); err != nil {
		m.Log(fmt.Sprintf("the service manager refuses some properties, and the service works without them: %v", err))
	}
	return nil
}

// Uninstall stops a running service and removes it.
func (m *Manager) Uninstall(ctx context.Context, name string) error {
	if err := m.Stop(ctx, name); err != nil && !errors.Is(err, ErrNotRunning) {
		return fmt.Errorf("uninstall: %w", err)
	}
	return explain("uninstall", name, m.Driver.Delete(name))
}

// Start starts a service and returns when it runs.
func (m *Manager) Start(ctx context.Context, name string) error {
	const doing = "start"
	if other := m.foreign(name); other != nil {
		return foreignError(doing, *other)
	}
	w := m.newWait(name, "to start")
	err := m.Driver.Start(name)
	for hasCode(err, codeDatabaseLocked) && w.more(ctx) {
		err = m.Driver.Start(name)
	}
	timeoutErr := err
	if err != nil && !hasCode(err, codeRequestTimeout) {
		return explain(doing, name, err)
	}
	for {
		status, err := m.Driver.Query(name)
		switch {
		case err != nil:
			return explain(doing, name, err)
		case status.State == Running:
			return nil
		// The SCM says codeRequestTimeout also of an early end, whose exit code tells more.
		case status.State == Stopped && timeoutErr != nil && (status.ExitCode == 0 || status.ExitCode == uint32(codeRequestTimeout)):
			return explain(doing, name, timeoutErr)
		case status.State == Stopped:
			return fmt.Errorf("%s service %s: %w, with exit code %d: its log and the event log say why", doing, name, ErrEnded, status.ExitCode)
		case !w.more(ctx):
			return fmt.Errorf("%s service %s: %w after %s: it is %s; kube-proxy service status shows whether it succeeds", doing, name, ErrPending, m.Timeout, status.State)
		}
	}
}

// Stop stops a service and returns when it has stopped, also if another process stops it.
func (m *Manager) Stop(ctx context.Context, name string) error {
	const doing = "stop"
	w := m.newWait(name, "to stop")
	status, err := m.Driver.Query(name)
	for asked := false; ; status, err = m.Driver.Query(name) {
		switch {
		case err != nil:
			return explain(doing, name, err)
		case m.isForeign(status):
			return foreignError(doing, status)
		case status.State == Stopped && !asked:
			return explain(doing, name, codeNotRunning)
		case status.State == Stopped:
			return nil
		case status.State == Stopping:
			asked = true
		case !asked:
			err := m.Driver.Stop(name)
			// A starting service accepts no commands.
			if asked = !hasCode(err, codeCannotAccept); asked && err != nil && !hasCode(err, codeNotRunning) {
				return explain(doing, name, err)
			}
		}
		if !w.more(ctx) {
			return fmt.Errorf("%s service %s: %w after %s: it is %s; kube-proxy service status shows whether it succeeds", doing, name, ErrPending, m.Timeout, status.State)
		}
	}
}

// Status returns the state of a service.
func (m *Manager) Status(name string) (Status, error) {
	status, err := m.Driver.Query(name)
	return status, explain("query", name, err)
}

// createError explains why a service with that name cannot be created.
func (m *Manager) createError(name string, err error) error {
	if other := m.foreign(name); other != nil && hasCode(err, codeInstalled) {
		return fmt.Errorf("install service %s: %w, and runs another program, %s: choose another name with --name, or stop and remove that one with sc.exe", name, ErrInstalled, other.Command)
	}
	return explain("install", name, err)
}

// foreign returns the service of that name if it certainly runs another program, else nil.
func (m *Manager) foreign(name string) *Status {
	if m.IsOurs == nil {
		return nil
	}
	s, err := m.Driver.Query(name)
	if err != nil || !m.isForeign(s) {
		return nil
	}
	return &s
}

func foreignError(doing string, s Status) error {
	return fmt.Errorf("%s service %s: %w, but runs %s: sc.exe is for those", doing, s.Name, ErrOtherProgram, s.Command)
}

// isForeign reports whether s certainly runs another program.
func (m *Manager) isForeign(s Status) bool {
	return m.IsOurs != nil && s.Command != "" && !m.IsOurs(s.Command)
}

// wait is the wait for one state change.
type wait struct {
	manager *Manager
	what    string
	started time.Time
	lastLog time.Time
}

func (m *Manager) newWait(name, what string) *wait {
	now := time.Now()
	return &wait{m, fmt.Sprintf("waiting for service %s %s", name, what), now, now}
}

// more pauses briefly and reports whether to continue waiting.
func (w *wait) more(ctx context.Context) bool {
	if time.Since(w.started) >= w.manager.Timeout {
		return false
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(pollInterval):
	}
	if time.Since(w.lastLog) >= progressInterval {
		w.lastLog = time.Now()
		w.manager.Log(fmt.Sprintf("%s, for %s so far", w.what, time.Since(w.started).Round(time.Second)))
	}
	return true
}

// Report is a status report of a service to the SCM.
type Report struct {
	State State
	// CheckPoint increases while the service starts or stops: it is not stuck.
	CheckPoint uint32
	// WaitHint is the maximum time until the next report.
	WaitHint time.Duration
}

// The times of a service that starts or stops.
const (
	checkPointInterval = time.Second
	waitHint           = 10 * checkPointInterval
)

// Work is what a service does until ctx ends. It calls started when it has started. If it
// waits for anything after that, the SCM does not need to know.
type Work func(ctx context.Context, started func()) error

// Supervise runs work and reports its state, Stopping from the end of ctx until work returns.
func Supervise(ctx context.Context, work Work, report func(Report)) error {
	startedCh := make(chan struct{})
	ended := make(chan error, 1)
	var once sync.Once
	go func() { ended <- work(ctx, func() { once.Do(func() { close(startedCh) }) }) }()
	now := Report{Starting, 0, waitHint}
	tick := time.NewTicker(checkPointInterval)
	defer tick.Stop()
	last := Report{}
	for started, stop := startedCh, ctx.Done(); ; {
		if now != last {
			report(now)
			last = now
		}
		select {
		case err := <-ended:
			return err
		case <-started:
			started = nil
			if now.State == Starting {
				now = Report{State: Running}
			}
		case <-stop:
			stop = nil
			now = Report{Stopping, 0, waitHint}
		case <-tick.C:
			if now.State != Running {
				now.CheckPoint++
			}
		}
	}
}
