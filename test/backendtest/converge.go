// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package backendtest

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

// Converge runs rounds that fail at random, while other programs change the node and the
// process ends. Rounds without failures must then reach the goal: nothing is left to do,
// the node is as if it had been programmed at once, and it forwards as route.Decide says.
func Converge(t *testing.T, h Harness) {
	eachCase(t, h, func(r *run) {
		for range 5 {
			if r.want == nil || r.draw.DrawInt("new snapshot", 4) > 0 {
				r.next()
				r.want.Incomplete = r.draw.DrawBool("incomplete")
			}
			excused := r.node.Inject(r.draw)
			if r.draw.DrawBool("tamper") {
				r.node.Tamper(r.draw)
			}
			r.faultyRound(excused)
		}
		r.node.Heal()
		r.want = service.New(r.generation+1, r.want.Node, r.ports)
		r.reach()
		r.requireNothing("after clean rounds")
		r.requireGoal()
		for range 5 {
			r.node.Judge(r.t, r.want, r.cluster.Conn(r.ports))
		}
		r.requireSameAfterRestart()
		r.requireReadBack()
	})
}

// requireReadBack requires that what is read back differs from what is wanted if and only
// if a plan is not empty: at the goal, and after somebody changed the node.
func (r *run) requireReadBack() {
	if r.harness.ReadBack == nil {
		return
	}
	for _, when := range []string{"at the goal", "after a change by others"} {
		held, wanted, err := r.harness.ReadBack(r.ctx, r.node.Start(), r.want)
		if err != nil {
			r.t.Fatalf("%s: read back: %v", when, err)
		}
		r.backend = r.node.Start()
		if plan := r.plan(); plan.Empty() != (held.String() == wanted.String()) {
			r.t.Fatalf("%s: the plan is\n%s and the difference (-held +wanted)\n%s", when, plan.Changes(), cmp.Diff(held.String(), wanted.String()))
		}
		if names := r.namesOf(wanted); held.String() == wanted.String() && !slices.Equal(names, r.namesOf(held)) {
			r.t.Fatalf("%s: the same is held for %q and wanted for %q", when, r.namesOf(held), names)
		}
		r.node.Heal()
		r.node.Tamper(r.draw)
	}
}

// namesOf returns the Service ports that objects are for, which must be of the snapshot.
func (r *run) namesOf(objects reconcile.Objects) []service.PortName {
	var names []service.PortName
	for _, o := range objects {
		if o.Port == (service.PortName{}) {
			continue
		}
		if !slices.ContainsFunc(r.ports, func(p *service.Port) bool { return p.Name == o.Port }) {
			r.t.Fatalf("%s is no Service port:\n%s", o.Port, o.Text)
		}
		names = append(names, o.Port)
	}
	slices.SortFunc(names, service.PortName.Compare)
	return slices.Compact(names)
}

// faultyRound runs a round that may fail or end the process.
func (r *run) faultyRound(excused func(error) bool) {
	defer func() {
		crash := recover()
		if crash != nil && crash != error(ErrCrash) {
			panic(crash)
		}
		if crash != nil || r.draw.DrawInt("restart", 3) == 0 {
			r.backend = r.node.Start()
		}
	}()
	text := ""
	p, err := r.backend.Plan(r.ctx, r.want)
	if err == nil && !p.Empty() {
		text = p.Changes().String()
		err = p.Apply(r.ctx).Err
	}
	ok := err == nil || errors.Is(err, ErrInjected) || reconcile.Unsupported(err)
	if !ok && (excused == nil || !excused(err)) {
		r.t.Fatalf("a round failed: %v\n%s", err, text)
	}
}

// requireGoal requires that the node is as if it had been programmed at once.
func (r *run) requireGoal() {
	fresh := *r
	fresh.node = r.node.Fresh()
	fresh.backend = fresh.node.Start()
	fresh.reach()
	if diff := cmp.Diff(fresh.node.State(), r.node.State()); diff != "" {
		r.t.Fatalf("the node differs from one that was programmed at once (-at once +node):\n%s", diff)
	}
	r.node.Check(r.t, r.want)
}

// requireSameAfterRestart starts a new process, which must find nothing to do, or change
// only what a process holds itself.
func (r *run) requireSameAfterRestart() {
	before := r.node.State()
	r.backend = r.node.Start()
	if r.harness.Volatile {
		r.reach()
	}
	r.requireNothing("after a restart")
	if diff := cmp.Diff(before, r.node.State()); diff != "" {
		r.t.Fatalf("a restart changed the node (-before +after):\n%s", diff)
	}
}
