// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package reconcile keeps a dataplane equal to the latest snapshot. A Loop takes
// snapshots and a Backend, and produces one Result per round. It owns time: batching,
// retries and resyncs. The Backend decides what to change. Loop.Report decides what
// becomes of a Result.
package reconcile

import (
	"context"
	"errors"
	"fmt"
	"time"

	"kubeproxy/common/service"
)

// Backend programs one dataplane, such as nftables for IPv4 or HNS. Its methods are
// called from one goroutine at a time.
type Backend interface {
	// Plan compares want with the installed state and returns the changes that are still
	// needed. It changes nothing.
	Plan(ctx context.Context, want *service.Snapshot) (Plan, error)

	// Cleanup removes everything that any Backend of this kind installed, and nothing
	// else. That includes leftovers of earlier processes. Nothing to remove is success.
	Cleanup(ctx context.Context) error
}

// Watcher is a Backend that detects changes of its dataplane by other processes.
type Watcher interface {
	Backend
	// Watch calls touched after each change that the Backend did not make itself, until
	// ctx ends. touched returns at once.
	Watch(ctx context.Context, touched func()) error
}

// ResyncSetter is a Backend that needs the longest pause between rounds.
type ResyncSetter interface {
	Backend
	// SetResync is called between two rounds, whenever that pause changes.
	SetResync(time.Duration)
}

// Plan is an ordered list of changes to one dataplane. It is good for one Apply.
type Plan interface {
	fmt.Stringer // one change a line

	// Empty reports whether the dataplane already matches.
	Empty() bool

	// Drift describes, one line each, foreign changes that Apply will repair. It is empty
	// in a first round, where nothing counts as altered.
	Drift() []string

	// Apply makes the changes. After a failed change it continues where that is safe, and
	// it joins the errors. A PortError names the port concerned. Nil means that the
	// dataplane matches.
	Apply(ctx context.Context) error
}

// Remover is a Plan that removes leftovers of an earlier process, which no snapshot of
// this process ever contained.
type Remover interface {
	Plan
	// Removed returns the frontends to be removed, as Ports without endpoints.
	Removed() []*service.Port
}

// FullSyncer is a Plan that may have compared the whole dataplane, not only what changed.
type FullSyncer interface {
	Plan
	// FullSync reports whether it did.
	FullSync() bool
}

// NotesReporter is a Plan that lists where its dataplane differs from what Services
// specify.
type NotesReporter interface {
	Plan
	// Notes is called after Apply, or instead of it for an empty plan.
	Notes() Notes
}

// FamilyUnavailable is a Plan that may have no effect because this node lacks an IP
// family.
type FamilyUnavailable interface {
	Plan
	// Unavailable returns why no port of the family is programmed. It is empty if they
	// are programmed.
	Unavailable() string
}

// Notes are about ports that are in force. They must not be modified after they were
// returned.
type Notes map[service.PortName][]Note

// Note is a difference that an operator should know of.
type Note struct {
	Text string
	// Transient means that it comes and goes with endpoints, many times a day.
	Transient bool
}

// PortError is a failure that concerns one Service port only.
type PortError struct {
	Family service.Family
	Name   service.PortName
	Err    error
}

func (e *PortError) Error() string {
	return fmt.Sprintf("service port %s (%s, %s): %v", e.Name, e.Name.Protocol, e.Family, e.Err)
}

// Unwrap returns the cause.
func (e *PortError) Unwrap() error { return e.Err }

// PortErrors lists the PortErrors in err's tree, in order.
func PortErrors(err error) []*PortError {
	var failed []*PortError
	var walk func(error)
	walk = func(err error) {
		switch e := err.(type) {
		case nil:
		case *PortError:
			failed = append(failed, e)
		case interface{ Unwrap() []error }:
			for _, err := range e.Unwrap() {
				walk(err)
			}
		default:
			walk(errors.Unwrap(err))
		}
	}
	walk(err)
	return failed
}

// Result is the outcome of one round. It is the only source for logs, health and metrics.
type Result struct {
	Generation uint64 // of the snapshot that the round was for
	Start      time.Time
	Took       time.Duration
	Changed    bool     // the plan was not empty
	FullSync   bool     // see FullSyncer
	Drift      []string // foreign changes, see Plan
	// DriftRounds is how many rounds found foreign changes, without a quiet minute in
	// between. Suspect names the process that made them, see SuspectFinder.
	DriftRounds int
	Suspect     string
	Removed     []*service.Port // see Remover
	Notes       Notes           // see NotesReporter
	Unavailable string          // see FamilyUnavailable
	Err         error           // nil only if the dataplane now matches the snapshot
}

// Done reports whether nothing is left to do: the dataplane matches the snapshot, except
// for what it will never implement.
func (r *Result) Done() bool { return r.Err == nil || Unsupported(r.Err) }
