// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package backendtest

import (
	"context"
	"errors"
	"testing"

	"pgregory.net/rapid"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/test/generate"
)

var (
	// ErrInjected is the failure that nodes inject. A round may fail with it.
	ErrInjected = errors.New("injected")
	// ErrCrash is the panic of a node that ends its process in the middle of a round.
	ErrCrash = errors.New("the process dies")
)

// Harness is what the suites know of a backend.
type Harness struct {
	// New returns a node that nobody has programmed. It may draw what kind of node that
	// is.
	New func(generate.Cluster) Node
	// Cluster returns what snapshots are drawn from. Nil stands for generate.Cluster.
	Cluster func(generate.Cluster) Cluster
	// CleanRounds is how many rounds without a failure reach the goal. 0 stands for 1.
	CleanRounds int
	// Printed returns what a line of a plan says of a change as Node.Changes does, "" for
	// a line without a change there. Nil stands for the line itself.
	Printed func(line string) string
	// Volatile means that a process holds a part of the dataplane itself, so that the
	// next one has to program that part again.
	Volatile bool
	// ReadBack returns what a backend reads back, and what it would have for a snapshot, both
	// as text, see mode.System. Nil skips that.
	ReadBack func(context.Context, reconcile.Backend, *service.Snapshot) (held, wanted reconcile.Objects, err error)
}

// Cluster draws snapshots, and connections to what is in them.
type Cluster interface {
	Node() *service.Node
	Ports() []*service.Port
	Conn([]*service.Port) route.Conn
}

// Node is a simulated node. One process at a time programs it.
type Node interface {
	// Start ends the process, if there is one, and returns the backend of the next one.
	Start() reconcile.Backend
	// Fresh returns another node of the same kind that nobody has programmed.
	Fresh() Node

	// Inject draws the failures of the next round, and the time until then. It returns
	// which errors the round may have besides ErrInjected, nil for none.
	Inject(generate.Cluster) (excused func(error) bool)
	// Tamper changes the node as another program might.
	Tamper(generate.Cluster)
	// Heal is called before each round that has to succeed. It ends all failures, and lets
	// enough time pass for the backend to see what others changed.
	Heal()

	// State is what the node holds, as text. It leaves out what may depend on the order of
	// changes.
	State() string
	// Changes returns what was changed on the node since the call before, each change as
	// a plan prints it, in any order.
	Changes() []string
	// Judge compares what the node does with a connection with route.Decide.
	Judge(*rapid.T, *service.Snapshot, route.Conn)
	// Check checks what only this backend promises, when the goal is reached.
	Check(*rapid.T, *service.Snapshot)
}

// Run runs all suites.
func Run(t *testing.T, h Harness) {
	t.Run("converges", func(t *testing.T) { Converge(t, h) })
	t.Run("judge", func(t *testing.T) { Judge(t, h) })
	t.Run("rehearsal", func(t *testing.T) { Rehearse(t, h) })
}

// run is one case of a suite.
type run struct {
	t       *rapid.T
	ctx     context.Context
	draw    generate.Cluster
	cluster Cluster
	harness Harness
	node    Node
	backend reconcile.Backend

	generation uint64
	ports      []*service.Port
	want       *service.Snapshot
}

// eachCase runs a suite for both families, with as many cases as rapid makes.
func eachCase(t *testing.T, h Harness, do func(*run)) {
	for _, f := range service.Families {
		t.Run(f.String(), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				w := generate.Cluster{T: t, Family: f}
				r := &run{t: t, ctx: t.Context(), draw: w, cluster: w, harness: h, node: h.New(w)}
				if h.Cluster != nil {
					r.cluster = h.Cluster(w)
				}
				r.backend = r.node.Start()
				do(r)
			})
		})
	}
}

// next draws another snapshot.
func (r *run) next() {
	r.ports = r.cluster.Ports()
	r.generation++
	r.want = service.New(r.generation, r.cluster.Node(), r.ports)
}

// plan returns the plan for the snapshot.
func (r *run) plan() reconcile.Plan {
	p, err := r.backend.Plan(r.ctx, r.want)
	if err != nil {
		r.t.Fatalf("Plan: %v", err)
	}
	return p
}

// apply applies p, which must succeed except for what the backend never does.
func (r *run) apply(p reconcile.Plan) {
	if p.Empty() {
		return
	}
	text := p.Changes().String()
	if err := p.Apply(r.ctx).Err; err != nil && !reconcile.Unsupported(err) {
		r.t.Fatalf("Apply: %v\n%s", err, text)
	}
}

// reach runs as many clean rounds as the goal may take.
func (r *run) reach() {
	for range max(1, r.harness.CleanRounds) {
		r.node.Heal()
		r.apply(r.plan())
	}
}

// requireNothing requires that only what the backend never does is left to do.
func (r *run) requireNothing(when string) {
	p := r.plan()
	if p.Empty() {
		return
	}
	text := p.Changes().String()
	r.node.Changes()
	err := p.Apply(r.ctx).Err
	if !reconcile.Unsupported(err) {
		r.t.Fatalf("%s, still to do:\n%sApply: %v", when, text, err)
	}
	if done := r.node.Changes(); len(done) > 0 {
		r.t.Fatalf("%s, this was still changed: %q", when, done)
	}
}
