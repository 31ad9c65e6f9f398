// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package backendtest

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"kubeproxy/common/reconcile"
)

// Rehearse follows changes of a cluster without failures. Planning must change nothing.
// What a plan prints must be what applying it changes. After each round the node must be
// as if it had been programmed at once, and a new process must find nothing to do.
func Rehearse(t *testing.T, h Harness) {
	eachCase(t, h, func(r *run) {
		for range 6 {
			r.next()
			for range max(1, h.CleanRounds) {
				r.node.Heal()
				r.rehearsedRound()
			}
			r.requireNothing("after a clean round")
			r.requireGoal()
			if r.draw.DrawBool("restart") {
				r.requireSameAfterRestart()
			}
		}
	})
}

// rehearsedRound plans twice and applies the second plan.
func (r *run) rehearsedRound() {
	before := r.node.State()
	r.node.Changes()
	first := r.printed(r.plan())
	p := r.plan()
	printed := r.printed(p)
	if diff := diffLines(first, printed); diff != "" {
		r.t.Fatalf("a second plan differs (-first +second):\n%s", diff)
	}
	if diff := cmp.Diff(before, r.node.State()); diff != "" {
		r.t.Fatalf("a plan changed the node (-before +after):\n%s", diff)
	}
	if done := r.node.Changes(); len(done) > 0 {
		r.t.Fatalf("a plan changed the node: %q", done)
	}
	if drift := p.Outcome().Drift; len(drift) > 0 {
		r.t.Fatalf("drift that nobody made: %q", drift)
	}
	r.apply(p)
	if diff := diffLines(printed, r.node.Changes()); diff != "" {
		r.t.Fatalf("changes (-printed +made):\n%s", diff)
	}
}

// diffLines compares changes in any order.
func diffLines(want, got []string) string {
	return cmp.Diff(want, got, cmpopts.SortSlices(strings.Compare), cmpopts.EquateEmpty())
}

// printed returns what a plan says of changes, without whom they are for.
func (r *run) printed(p reconcile.Plan) []string {
	var all []string
	for _, c := range p.Changes() {
		line := c.Text
		if r.harness.Printed != nil {
			line = r.harness.Printed(line)
		}
		if line != "" {
			all = append(all, line)
		}
	}
	return all
}
