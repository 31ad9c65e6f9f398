// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package scm

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Manager steers services and waits for what it began.
type Manager struct {
	Driver Driver
	// Timeout is how long a service may take to start or to stop.
	Timeout time.Duration
	// IsOurs tells from its command line whether a service is one of ours. Others
	// are neither stopped nor removed. Without it, all are.
	IsOurs func(command string) bool
	// Log is told of progress, and of what does not matter much.
	Log func(string)
}

// The times of a Manager.
const (
	pollInterval     = 100 * time.Millisecond
	progressInterval = 5 * time.Second
)

// Install installs a service, or changes nothing.
func (m *Manager) Install(s Spec) error {
	if err := m.Driver.Create(s); err != nil {
		return m.createError(s.Name, err)
	}
	if err := m.Driver.Configure(s); err != nil {
		m.Log(fmt.Sprintf("the service manager does not take everything, and the service works without: %v", err))
	}
	return nil
}

// Uninstall stops a service that runs, and removes it.
func (m *Manager) Uninstall(ctx context.Context, name string) error {
	if err := m.Stop(ctx, name); err != nil && !errors.Is(err, ErrNotRunning) {
		return fmt.Errorf("uninstall: %w", err)
	}
	return explain("uninstall", name, m.Driver.Delete(name))
}

// Start returns when the service runs.
func (m *Manager) Start(ctx context.Context, name string) error {
	const doing = "start"
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
		// The manager also calls it late if the process has ended before
		// it was asked, and then its exit code says more.
		case status.State == Stopped && timeoutErr != nil && (status.ExitCode == 0 || status.ExitCode == uint32(codeRequestTimeout)):
			return explain(doing, name, timeoutErr)
		case status.State == Stopped:
			return fmt.Errorf("%s service %s: %w, with exit code %d: its log and the event log tell why", doing, name, ErrEnded, status.ExitCode)
		case !w.more(ctx):
			return fmt.Errorf("%s service %s: %w after %s: it is %s; kube-proxy service status tells how it goes on", doing, name, ErrPending, m.Timeout, status.State)
		}
	}
}

// Stop returns when the service has ended, also where somebody else stops it.
func (m *Manager) Stop(ctx context.Context, name string) error {
	const doing = "stop"
	w := m.newWait(name, "to stop")
	status, err := m.Driver.Query(name)
	for asked := false; ; status, err = m.Driver.Query(name) {
		switch {
		case err != nil:
			return explain(doing, name, err)
		case m.isForeign(status):
			return fmt.Errorf("%s service %s: %w, but runs %s: sc.exe is for those", doing, name, ErrOtherProgram, status.Command)
		case status.State == Stopped && !asked:
			return explain(doing, name, codeNotRunning)
		case status.State == Stopped:
			return nil
		case status.State == Stopping:
			asked = true
		case !asked:
			err := m.Driver.Stop(name)
			// It takes no orders while it starts.
			if asked = !hasCode(err, codeCannotAccept); asked && err != nil && !hasCode(err, codeNotRunning) {
				return explain(doing, name, err)
			}
		}
		if !w.more(ctx) {
			return fmt.Errorf("%s service %s: %w after %s: it is %s; kube-proxy service status tells how it goes on", doing, name, ErrPending, m.Timeout, status.State)
		}
	}
}

// Status returns what a service is doing.
func (m *Manager) Status(name string) (Status, error) {
	status, err := m.Driver.Query(name)
	return status, explain("query", name, err)
}

// createError explains why a service of that name cannot be made.
func (m *Manager) createError(name string, err error) error {
	if hasCode(err, codeInstalled) && m.IsOurs != nil {
		if existing, failed := m.Driver.Query(name); failed == nil && m.isForeign(existing) {
			return fmt.Errorf("install service %s: %w, and runs another program, %s: choose another name with --name, or stop and remove that one with sc.exe", name, ErrInstalled, existing.Command)
		}
	}
	return explain("install", name, err)
}

// isForeign reports that s is certainly none of ours.
func (m *Manager) isForeign(s Status) bool {
	return m.IsOurs != nil && s.Command != "" && !m.IsOurs(s.Command)
}

// wait is about one thing that takes its time.
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

// more rests for a moment, and reports whether to go on waiting.
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
