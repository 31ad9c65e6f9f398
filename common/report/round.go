// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

// Round is a round of one backend.
type Round struct {
	Mode   string
	Family service.Family
	reconcile.Result
}

// InForce reports whether the rules are in force, except for single ports.
func (r Round) InForce() bool { return reconcile.OnlyPortErrors(r.Err) }

// partly reports whether at least some of the rules are in force.
func (r Round) partly() bool { return r.Err == nil || len(reconcile.PortErrors(r.Err)) > 0 }

// Reporter reports rounds on one subject. Backends call it from their own goroutines.
type Reporter interface{ Report(Round) }

// Func is a Reporter.
type Func func(Round)

// Report implements Reporter.
func (f Func) Report(r Round) { f(r) }

// Step is a place in a Sequence.
type Step struct {
	Name string
	// For selects rounds, nil for all.
	For func(Round) bool
	Reporter
}

// Sequence is a Reporter that passes each round to its steps in their order.
type Sequence []Step

// Report implements Reporter.
func (s Sequence) Report(r Round) {
	for _, step := range s {
		if step.For == nil || step.For(r) {
			step.Reporter.Report(r)
		}
	}
}
