// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package backendtest has the suites that each backend passes. A backend describes itself
// by a Harness. The suites draw clusters, failures and changes by others, and compare the
// rules of the backend with route.Decide, with its own plans, and with the rules of a new
// process.
package backendtest

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"kubeproxy/common/explain"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/common/track"
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
	silence    *generate.Silence // that chose their endpoints, nil if they are as drawn
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

// next draws another snapshot: other ports, ports of which some endpoints do not answer, or
// the same ones of which others do.
func (r *run) next() {
	switch how := r.draw.DrawInt("silence", 4); {
	case how < 2:
		r.ports, r.silence = r.cluster.Ports(), nil
	case how == 2 || r.silence == nil:
		r.silence = r.draw.Silence(r.cluster.Ports())
	}
	if r.silence != nil {
		r.ports = r.silence.Next()
	}
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

// Explain returns v as far as a Walk is compared with it. hairpin is as in Expect.
func Explain(v route.Verdict, hairpin func(service.Endpoint) bool) *explain.Explanation {
	x := &explain.Explanation{Action: v.Action.String()}
	for _, e := range v.Endpoints {
		client := "kept"
		if v.Masquerades(e) || hairpin(e) {
			client = "masqueraded"
		}
		x.Endpoints = append(x.Endpoints, explain.Endpoint{Listed: track.Listed{Address: e.Addr.String()}, Chosen: true, Client: client})
	}
	return x
}

// Judge compares connections with route.Decide: 20 to each of 100 clusters of each
// family. Each cluster is programmed over another one.
func Judge(t *testing.T, h Harness) {
	eachCase(t, h, func(r *run) {
		r.next()
		r.reach()
		r.next()
		r.reach()
		for range 20 {
			r.node.Judge(r.t, r.want, r.cluster.Conn(r.ports))
		}
	})
}

// Outcome is what a node does with a connection.
type Outcome struct {
	Action  route.Action
	Targets []netip.AddrPort        // translated destinations, sorted
	Masq    map[netip.AddrPort]bool // whether it is masqueraded on the way to each target
}

// Expect returns the outcome that v asks for. Connections to endpoints for which hairpin
// returns true are masqueraded, too.
func Expect(v route.Verdict, hairpin func(service.Endpoint) bool) Outcome {
	o := Outcome{Action: v.Action}
	if v.Action != route.Forward {
		return o
	}
	o.Masq = map[netip.AddrPort]bool{}
	for _, e := range v.Endpoints {
		o.Targets = append(o.Targets, e.Addr)
		o.Masq[e.Addr] = v.Masquerades(e) || hairpin(e)
	}
	return o
}

// Diff returns how got differs from want.
func Diff(want, got Outcome) string {
	return cmp.Diff(want, got, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }))
}

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

// Traced is a connection to a node. The backend follows it through its fake, and tests
// change what the fake holds. The backend sets Follow, Hairpin and State.
type Traced struct {
	T    *rapid.T
	Want *service.Snapshot
	Conn route.Conn
	// Follow is the backend's Trace of Conn.
	Follow func(context.Context) (*explain.Walk, error)
	// Hairpin is as in Expect.
	Hairpin func(service.Endpoint) bool
	// State returns what the fake holds.
	State func() string
}

// TraceTampering draws nodes of both families. start installs the rules for Want, and
// returns what tampers with the fake for Conn. It is called for two connections of each
// node.
func TraceTampering(t *testing.T, cluster func(generate.Cluster) Cluster, start func(w generate.Cluster, c *Traced) (tamper func())) {
	for _, f := range service.Families {
		t.Run(f.String(), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				w := generate.Cluster{T: t, Family: f}
				drawn := cluster(w)
				ports := drawn.Ports()
				c := &Traced{T: t, Want: service.New(1, drawn.Node(), ports)}
				tamper := start(w, c)
				for range 2 {
					c.Conn = drawn.Conn(ports)
					tamper()
				}
			})
		})
	}
}

// Look compares what Follow finds with what route decides.
func (c *Traced) Look() *explain.Explanation {
	w, err := c.Follow(context.Background())
	if err != nil {
		c.T.Fatal(err)
	}
	x := Explain(route.Decide(c.Want, c.Conn), c.Hairpin)
	x.Compare(w.Path())
	return x
}

// RequireAgreement requires that nothing differs yet.
func (c *Traced) RequireAgreement() {
	if x := c.Look(); x.Verdict != explain.Agree {
		c.T.Fatalf("%+v: %q before anything was changed\n%s", c.Conn, x.Differences, c.State())
	}
}

// RequireNamed requires that a difference contains text.
func (c *Traced) RequireNamed(text string) {
	x := c.Look()
	named := slices.ContainsFunc(x.Differences, func(s string) bool { return strings.Contains(s, text) })
	if x.Verdict != explain.Differ || !named {
		c.T.Errorf("%+v: want %q, found %s %q\n%s", c.Conn, text, x.Verdict, x.Differences, c.State())
	}
}
