// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package scm

import (
	"context"
	"errors"
	"fmt"
	"time"
)

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
		// The SCM also returns codeRequestTimeout if the process ended before it
		// connected. Then its exit code is more useful.
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
