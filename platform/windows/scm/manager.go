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
	// Patience is how long a service may take to start or to stop.
	Patience time.Duration
	// Ours tells from its command line whether a service is one of ours. Others
	// are neither stopped nor removed. Without it, all are.
	Ours func(command string) bool
	// Tell is told of progress, and of what does not matter much.
	Tell func(string)
}

// The times of a Manager.
const (
	glance = 100 * time.Millisecond
	murmur = 5 * time.Second
)

// Install installs a service, or changes nothing.
func (m *Manager) Install(s Spec) error {
	if err := m.Driver.Create(s); err != nil {
		return m.occupied(s.Name, err)
	}
	if err := m.Driver.Complete(s); err != nil {
		m.Tell(fmt.Sprintf("the service manager does not take everything, and the service works without: %v", err))
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
	w := m.waiting(name, "to start")
	err := m.Driver.Start(name)
	for answered(err, codeLocked) && w.more(ctx) {
		err = m.Driver.Start(name)
	}
	late := err
	if err != nil && !answered(err, codeLate) {
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
		case status.State == Stopped && late != nil && (status.ExitCode == 0 || status.ExitCode == uint32(codeLate)):
			return explain(doing, name, late)
		case status.State == Stopped:
			return fmt.Errorf("%s service %s: %w, with exit code %d: its log and the event log tell why", doing, name, ErrEnded, status.ExitCode)
		case !w.more(ctx):
			return fmt.Errorf("%s service %s: %w after %s: it is %s; kube-proxy service status tells how it goes on", doing, name, ErrPending, m.Patience, status.State)
		}
	}
}

// Stop returns when the service has ended, also where somebody else stops it.
func (m *Manager) Stop(ctx context.Context, name string) error {
	const doing = "stop"
	w := m.waiting(name, "to stop")
	status, err := m.Driver.Query(name)
	for asked := false; ; status, err = m.Driver.Query(name) {
		switch {
		case err != nil:
			return explain(doing, name, err)
		case m.foreign(status):
			return fmt.Errorf("%s service %s: %w, but runs %s: sc.exe is for those", doing, name, ErrForeign, status.Command)
		case status.State == Stopped && !asked:
			return explain(doing, name, codeNotRunning)
		case status.State == Stopped:
			return nil
		case status.State == Stopping:
			asked = true
		case !asked:
			err := m.Driver.Stop(name)
			// It takes no orders while it starts.
			if asked = !answered(err, codeCannotAccept); asked && err != nil && !answered(err, codeNotRunning) {
				return explain(doing, name, err)
			}
		}
		if !w.more(ctx) {
			return fmt.Errorf("%s service %s: %w after %s: it is %s; kube-proxy service status tells how it goes on", doing, name, ErrPending, m.Patience, status.State)
		}
	}
}

// Status returns what a service is doing.
func (m *Manager) Status(name string) (Status, error) {
	status, err := m.Driver.Query(name)
	return status, explain("query", name, err)
}

// occupied explains why a service of that name cannot be made.
func (m *Manager) occupied(name string, err error) error {
	if answered(err, codeInstalled) && m.Ours != nil {
		if there, failed := m.Driver.Query(name); failed == nil && m.foreign(there) {
			return fmt.Errorf("install service %s: %w, and runs another program, %s: choose another name with --name, or stop and remove that one with sc.exe", name, ErrInstalled, there.Command)
		}
	}
	return explain("install", name, err)
}

// foreign reports that s is certainly none of ours.
func (m *Manager) foreign(s Status) bool {
	return m.Ours != nil && s.Command != "" && !m.Ours(s.Command)
}

// wait is about one thing that takes its time.
type wait struct {
	manager *Manager
	what    string
	begun   time.Time
	told    time.Time
}

func (m *Manager) waiting(name, what string) *wait {
	now := time.Now()
	return &wait{m, fmt.Sprintf("waiting for service %s %s", name, what), now, now}
}

// more rests for a moment, and reports whether to go on waiting.
func (w *wait) more(ctx context.Context) bool {
	if time.Since(w.begun) >= w.manager.Patience {
		return false
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(glance):
	}
	if time.Since(w.told) >= murmur {
		w.told = time.Now()
		w.manager.Tell(fmt.Sprintf("%s, for %s so far", w.what, time.Since(w.begun).Round(time.Second)))
	}
	return true
}
