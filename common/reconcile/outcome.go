// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"kubeproxy/common/service"
)

// Outcome is all that a Backend reports about a round.
type Outcome struct {
	// Err joins what failed. It is nil only if the dataplane now matches the snapshot. A
	// PortError names the port concerned.
	Err error
	// FullSync means that the whole dataplane was compared, not only what changed.
	FullSync bool
	// Drift describes, one line each, foreign changes, which Apply repairs. It is empty
	// in a first round, where nothing counts as altered. Suspect names the process that
	// altered the dataplane last. It is empty if that is unknown.
	Drift   []string
	Suspect string
	// Removed are frontends that an earlier process left and that the plan removes, as
	// Ports without endpoints. No snapshot of this process ever contained them.
	Removed []*service.Port
	// Notes describe where the dataplane differs from what Services specify.
	Notes Notes
	// Unavailable is why no port of the family is programmed, because this node lacks the
	// family. It is empty if they are programmed.
	Unavailable string
	// Degraded describes the optional feature that the node does not have. It is empty if
	// there is none.
	Degraded string
	// Rules counts the rules of a dataplane that is written as text, nil for others.
	Rules *Rules
}

// Limits lists what the dataplane does otherwise than the Services of want ask, a line each: what the errors of their
// ports say, and then the notes.
func (o *Outcome) Limits(want *service.Snapshot, f service.Family) (unsupported, notes []string) {
	for _, e := range PortErrors(o.Err) {
		for text := range strings.SplitSeq(e.Err.Error(), "\n") { // joined errors
			unsupported = append(unsupported, (&PortError{e.Family, e.Name, errors.New(text)}).Error())
		}
	}
	if o.Unavailable != "" && want.Len(f) > 0 {
		notes = append(notes, fmt.Sprintf("nothing is programmed for %s: %s", f, o.Unavailable))
	}
	for _, n := range slices.SortedFunc(maps.Keys(o.Notes), service.PortName.Compare) {
		for _, note := range o.Notes[n] {
			notes = append(notes, (&PortError{f, n, errors.New(note.Text)}).Error())
		}
	}
	return unsupported, notes
}

// Notes are about ports that are in force. They must not be modified after they were
// returned.
type Notes map[service.PortName][]Note

// Note is a difference that an operator should know of.
type Note struct {
	Text string
	// Transient means that it depends on endpoints, and so changes many times a day: no Event is about it.
	Transient bool
}

// Rules counts the rules of a dataplane.
type Rules struct {
	// Refused means that some were refused, even if only for some ports.
	Refused bool
	// Held is the number of our rules, by table. It is nil while that is unknown.
	Held map[string]int
	// Written is the number of rules that the round wrote, by table.
	Written map[string]int
}

// unwritten returns r for a round that wrote nothing.
func (r *Rules) unwritten() *Rules {
	if r == nil {
		return nil
	}
	none := make(map[string]int, len(r.Written))
	for table := range r.Written {
		none[table] = 0
	}
	return &Rules{Held: r.Held, Written: none}
}

// Result is a round and its Outcome. It is the only source for logs, health and metrics.
type Result struct {
	Outcome
	Snapshot   *service.Snapshot // that the round was for
	Generation uint64            // of Snapshot
	Start      time.Time
	Took       time.Duration
	Changed    bool // the plan was not empty
	// DriftRounds is how many rounds found foreign changes, without a quiet minute in
	// between.
	DriftRounds int
}

// Done reports whether nothing is left to do: the dataplane matches the snapshot, except
// for what it will never implement.
func (r *Result) Done() bool { return r.Err == nil || Unsupported(r.Err) }
