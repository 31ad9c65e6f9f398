// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package scm

import (
	"context"
	"errors"
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/svc"
	"golang.org/x/sys/windows/svc/eventlog"
	"golang.org/x/sys/windows/svc/mgr"
)

// System implements Driver with the service control manager of this machine.
type System struct{}

// Create implements Driver.
func (System) Create(s Spec) error {
	m, err := mgr.Connect()
	if err != nil {
		return err
	}
	defer m.Disconnect()
	created, err := m.CreateService(s.Name, s.Executable, mgr.Config{
		DisplayName: s.DisplayName, Description: s.Description,
		StartType: mgr.StartAutomatic, ErrorControl: mgr.ErrorNormal, Dependencies: s.DependsOn,
	}, s.Args...)
	if err != nil {
		return err
	}
	return created.Close()
}

// restartDelays are the pauses before the restarts of a failed service. After resetPeriod
// seconds without a failure, the first pause applies again.
var restartDelays = []time.Duration{time.Second, 10 * time.Second, time.Minute}

const resetPeriod = 3600

// Configure implements Driver.
func (System) Configure(s Spec) error {
	return withService(s.Name, windows.SERVICE_ALL_ACCESS, func(x *mgr.Service) error {
		var restarts []mgr.RecoveryAction
		for _, p := range restartDelays {
			restarts = append(restarts, mgr.RecoveryAction{Type: mgr.ServiceRestart, Delay: p})
		}
		return errors.Join(
			annotate("restarts after failures", x.SetRecoveryActions(restarts, resetPeriod)),
			annotate("restarts after an end with an exit code", x.SetRecoveryActionsOnNonCrashFailures(true)),
			annotate("a source of events", eventlog.InstallAsEventCreate(s.Name, eventlog.Error|eventlog.Warning|eventlog.Info)),
		)
	})
}

func annotate(what string, err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// Delete implements Driver.
func (System) Delete(name string) error {
	err := withService(name, windows.DELETE, (*mgr.Service).Delete)
	if err == nil {
		_ = eventlog.Remove(name) // the event source may be missing
	}
	return err
}

// Start implements Driver.
func (System) Start(name string) error {
	return withService(name, windows.SERVICE_START, func(x *mgr.Service) error { return x.Start() })
}

// Stop implements Driver.
func (System) Stop(name string) error {
	return withService(name, windows.SERVICE_STOP, func(x *mgr.Service) error {
		_, err := x.Control(svc.Stop)
		return err
	})
}

// Query implements Driver.
func (System) Query(name string) (Status, error) {
	status := Status{Name: name}
	err := withService(name, windows.SERVICE_QUERY_STATUS|windows.SERVICE_QUERY_CONFIG, func(x *mgr.Service) error {
		now, err := x.Query()
		if err != nil {
			return err
		}
		status.State, status.PID = stateOf(now.State), now.ProcessId
		status.ExitCode = now.Win32ExitCode
		if status.ExitCode == uint32(windows.ERROR_SERVICE_SPECIFIC_ERROR) {
			status.ExitCode = now.ServiceSpecificExitCode
		}
		if status.ExitCode == uint32(windows.ERROR_SERVICE_NEVER_STARTED) {
			status.ExitCode = 0
		}
		status.describe(x.Handle)
		return nil
	})
	return status, err
}

func stateOf(s svc.State) State {
	switch s {
	case svc.Stopped:
		return Stopped
	case svc.StartPending:
		return Starting
	case svc.StopPending:
		return Stopping
	}
	return Running
}

// describe adds the configuration of the service, as far as it can be read.
func (s *Status) describe(h windows.Handle) {
	buffer := make([]byte, 8<<10) // the maximum size of a configuration, see QueryServiceConfigW
	c := (*windows.QUERY_SERVICE_CONFIG)(unsafe.Pointer(&buffer[0]))
	var needed uint32
	if windows.QueryServiceConfig(h, c, uint32(len(buffer)), &needed) != nil {
		return
	}
	s.Command, s.Account = windows.UTF16PtrToString(c.BinaryPathName), windows.UTF16PtrToString(c.ServiceStartName)
	s.StartType = map[uint32]string{mgr.StartAutomatic: "automatic", mgr.StartManual: "manual", mgr.StartDisabled: "disabled"}[c.StartType]
	for p := unsafe.Pointer(c.Dependencies); p != nil; {
		name := windows.UTF16PtrToString((*uint16)(p))
		if name == "" {
			return
		}
		s.DependsOn = append(s.DependsOn, name)
		u, _ := windows.UTF16FromString(name)
		p = unsafe.Add(p, 2*len(u))
	}
}

// withService opens a service with the given access only, because every user may query.
func withService(name string, access uint32, do func(*mgr.Service) error) error {
	manager, err := windows.OpenSCManager(nil, nil, windows.SC_MANAGER_CONNECT)
	if err != nil {
		return err
	}
	defer windows.CloseServiceHandle(manager)
	p, err := windows.UTF16PtrFromString(name)
	if err != nil {
		return err
	}
	h, err := windows.OpenService(manager, p, access)
	if err != nil {
		return err
	}
	defer windows.CloseServiceHandle(h)
	return do(&mgr.Service{Name: name, Handle: h})
}

// Run runs work as the service that the SCM started, and returns its error, or at once
// ErrNotStartedBySCM. name is used in errors only.
func Run(ctx context.Context, name string, work Work) error {
	h := &handler{ctx: ctx, work: work}
	if err := svc.Run(name, h); err != nil {
		return explain("run", name, err)
	}
	return h.err
}

type handler struct {
	ctx  context.Context
	work Work
	err  error
}

// The exit codes of a service. The SCM restarts a service after any but 0.
const (
	exitFailed  = 1
	exitRestart = 2
)

// Execute implements svc.Handler.
func (h *handler) Execute(args []string, requests <-chan svc.ChangeRequest, to chan<- svc.Status) (specific bool, code uint32) {
	ctx, stop := context.WithCancel(h.ctx)
	defer stop()
	go func() {
		for r := range requests {
			// The SCM itself answers svc.Interrogate with the last reported status.
			if r.Cmd == svc.Stop || r.Cmd == svc.Shutdown || r.Cmd == svc.PreShutdown {
				stop()
			}
		}
	}()
	events := openEvents(args)
	defer events.close()
	h.err = Supervise(ctx, h.work, func(r Report) {
		status := svc.Status{State: svc.StartPending, CheckPoint: r.CheckPoint, WaitHint: uint32(r.WaitHint / time.Millisecond)}
		switch r.State {
		case Running:
			status.State = svc.Running
			status.Accepts = svc.AcceptStop | svc.AcceptShutdown | svc.AcceptPreShutdown
		case Stopping:
			status.State = svc.StopPending
		}
		to <- status
	})
	events.recordEnd(h.err)
	switch {
	case h.err == nil:
		return false, 0
	case errors.Is(h.err, ErrRestart):
		return true, exitRestart
	}
	return true, exitFailed
}

// events is the event log. log is nil if it cannot be opened.
type events struct{ log *eventlog.Log }

func openEvents(args []string) events {
	if len(args) == 0 { // the first argument is the service's name
		return events{}
	}
	log, err := eventlog.Open(args[0])
	if err != nil {
		return events{}
	}
	return events{log}
}

// The event IDs, for filters in an event viewer.
const (
	eventStopped = 1
	eventRestart = 2
	eventFailed  = 3
)

// recordEnd writes to the event log how the service ended, if it can.
func (e events) recordEnd(err error) {
	switch {
	case e.log == nil:
	case err == nil:
		_ = e.log.Info(eventStopped, "The service stopped; what it programmed stays in force.")
	case errors.Is(err, ErrRestart):
		_ = e.log.Info(eventRestart, err.Error())
	default:
		_ = e.log.Error(eventFailed, err.Error())
	}
}

func (e events) close() {
	if e.log != nil {
		_ = e.log.Close()
	}
}

// SystemDriver returns the service control manager of this system.
func SystemDriver() (Driver, error) { return System{}, nil }

func runService(ctx context.Context, name string, work Work) error { return Run(ctx, name, work) }
