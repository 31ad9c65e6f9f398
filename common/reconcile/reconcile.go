// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package reconcile keeps a dataplane equal to the latest snapshot. It owns
// time: batching, retries and resyncs. What to change is the Backend's
// business, what to tell whom is Report's.
package reconcile

import (
	"context"
	"errors"
	"fmt"
	"time"

	"kubeproxy/common/service"
)

// Backend programs one dataplane, such as nftables for IPv4 or HNS. Its
// methods are called from one goroutine at a time.
type Backend interface {
	// Plan compares want with what is installed and returns the changes that
	// are still needed. It changes nothing.
	Plan(ctx context.Context, want *service.Snapshot) (Plan, error)

	// Cleanup removes everything that any Backend of this kind installed,
	// including what an earlier process left behind, and nothing else.
	// Nothing to remove is success.
	Cleanup(ctx context.Context) error
}

// Watcher is a Backend that notices when others touch its dataplane.
type Watcher interface {
	Backend
	// Watch calls touched, which returns at once, after each change that the
	// Backend did not make itself, until ctx ends.
	Watch(ctx context.Context, touched func()) error
}

// ResyncSetter is a Backend that wants to know the longest pause between rounds.
type ResyncSetter interface {
	Backend
	// SetResync is called between two rounds, whenever that changes.
	SetResync(time.Duration)
}

// Plan is an ordered list of changes to one dataplane. It is good for one
// Apply.
type Plan interface {
	fmt.Stringer // one change a line

	// Empty reports that the dataplane already matches.
	Empty() bool

	// Drift describes, a line each, what others had altered and Apply will
	// repair. It is empty in a first round, where nothing counts as altered.
	Drift() []string

	// Apply makes the changes. It goes on past a failed change where that is
	// safe and joins what went wrong; a PortError names the port concerned.
	// Nil means that the dataplane matches.
	Apply(ctx context.Context) error
}

// Remover is a Plan that removes what no snapshot of this process ever held,
// left by an earlier one.
type Remover interface {
	Plan
	// Removed returns the frontends that go, as Ports without endpoints.
	Removed() []*service.Port
}

// FullSyncer is a Plan that may have compared all there is, not only what changed.
type FullSyncer interface {
	Plan
	// FullSync reports that it has.
	FullSync() bool
}

// NotesReporter is a Plan that knows what its dataplane does otherwise than Services ask
// for.
type NotesReporter interface {
	Plan
	// Notes is asked after Apply, or instead of it for an empty plan.
	Notes() Notes
}

// FamilyUnavailable is a Plan that may be for nothing, as a family cannot be had on this
// node.
type FamilyUnavailable interface {
	Plan
	// Unavailable says why no port of the family is programmed, nothing if they are.
	Unavailable() string
}

// Notes are about ports that are in force. Nobody changes one that was told.
type Notes map[service.PortName][]Note

// Note is about a difference that an operator should know of.
type Note struct {
	Text string
	// Transient means that it comes and goes with endpoints, all day.
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

// Result tells how one round went. It is the only source for logs, health
// and metrics.
type Result struct {
	Generation uint64 // of the snapshot that the round was for
	Start      time.Time
	Took       time.Duration
	Changed    bool     // the plan was not empty
	FullSync   bool     // see Whole
	Drift      []string // what others had altered, see Plan
	// DriftRounds is how many rounds found what others had altered, without a quiet
	// minute in between. Suspect is who did, see Suspecter.
	DriftRounds int
	Suspect     string
	Removed     []*service.Port // see Remover
	Notes       Notes           // see Noter
	Unavailable string          // see Bounded
	Err         error           // nil only if the dataplane now matches the snapshot
}

// Done reports that nothing is left to do: the dataplane matches the snapshot
// but for what it will never do.
func (r *Result) Done() bool { return r.Err == nil || Unsupported(r.Err) }
