// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package scm

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/windows/svc"
	"golang.org/x/sys/windows/svc/eventlog"
)

// Run runs work as the service that this process was started as, and returns the error of
// work. If the process was not started by the SCM, it returns ErrNotStartedBySCM at once.
// name is used in errors only.
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

// The exit codes of a service. The SCM restarts a service that exits with another code
// than 0.
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

// recordEnd writes to the event log how the service ended. It ignores errors, because a
// log failure must not make the service fail.
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
