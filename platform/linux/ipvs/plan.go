// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strings"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

// plan is the change from the kernel state to a snapshot.
type plan struct {
	backend         *Backend
	rules           reconcile.Plan
	settings        []string // to be set
	setup           []op
	units           []unit
	deleteRoutes    []op // addresses that no Service has any more
	addRoutes       []op
	addrSetOps      []op               // after everything else
	next            *installed         // the kernel state after Apply
	delta           map[netip.Addr]int // added to next.addrRefs after Apply
	drainingDests   drainingDests      // after Apply
	knownToRules    map[key]bool       // virtual servers that the installed rules cover, in a comparison
	previousAddrs   map[netip.Addr]int // addrRefs before, if fullSync
	drainedServers  map[key]bool       // virtual servers whose last destination has drained
	recheck         recheckSet         // empty if fullSync
	drift           []string
	alteredSettings []string // settings that others changed
	removed         []*service.Port
	fullSync        bool // made from the kernel state, not from a difference
}

// unit is the change of one Port, or of none in particular.
type unit struct {
	port        *service.Port
	beforeRules []op
	afterRules  []op  // after the change of the rules
	err         error // why more cannot be done
}

// add appends u unless it is empty.
func (p *plan) add(u unit) {
	if len(u.beforeRules) > 0 || len(u.afterRules) > 0 || u.err != nil {
		p.units = append(p.units, u)
	}
}

// ops yields all ops of p in order, and the Port that each is for, nil for none in
// particular.
func (p *plan) ops() iter.Seq2[*service.Port, op] {
	return func(yield func(*service.Port, op) bool) {
		parts := []unit{{afterRules: p.setup}}
		for _, u := range p.units {
			parts = append(parts, unit{port: u.port, afterRules: u.beforeRules})
		}
		parts = append(parts, unit{afterRules: p.deleteRoutes})
		parts = append(parts, p.units...)
		parts = append(parts, unit{afterRules: p.addRoutes}, unit{afterRules: p.addrSetOps})
		for _, part := range parts {
			for _, o := range part.afterRules {
				if !yield(part.port, o) {
					return
				}
			}
		}
	}
}

// Empty implements reconcile.Plan.
func (p *plan) Empty() bool {
	routes := len(p.deleteRoutes) + len(p.addRoutes) + len(p.addrSetOps)
	return p.rules.Empty() && len(p.settings) == 0 && len(p.setup) == 0 && len(p.units) == 0 && routes == 0
}

// Outcome implements reconcile.Plan.
func (p *plan) Outcome() reconcile.Outcome {
	rules := p.rules.Outcome()
	return reconcile.Outcome{
		FullSync: p.fullSync, Removed: p.removed,
		Drift: slices.Concat(p.alteredSettings, p.drift, rules.Drift), Suspect: rules.Suspect,
		Degraded: rules.Degraded, Rules: rules.Rules,
	}
}

// String implements reconcile.Plan.
func (p *plan) String() string {
	var b strings.Builder
	for _, s := range p.settings {
		b.WriteString("+ setting " + s + "\n")
	}
	for of, o := range p.ops() {
		line := o.text()
		if of != nil {
			line = reconcile.LineFor(of.Name, line)
		}
		b.WriteString(line + "\n")
	}
	return b.String() + p.rules.String()
}

// Apply implements reconcile.Plan. Virtual servers and rules cannot change in one step.
// For each server schedule decides what changes before the rules and what after, so that
// connections in between are answered. An address has a route only while everything for
// it is in force.
func (p *plan) Apply(ctx context.Context) reconcile.Outcome {
	out := p.Outcome()
	out.Err = p.program(ctx, &out)
	return out
}

// program makes the changes of p, and sets in out the outcome of the rules.
func (p *plan) program(ctx context.Context, out *reconcile.Outcome) error {
	b := p.backend
	b.installed = nil // if more than single Ports fails, the next Plan reads the kernel state
	a := &applier{plan: p, ctx: ctx, undeleted: map[key]bool{}}
	if err := a.prepare(); err != nil {
		return fmt.Errorf("prepare IPVS for %s: %w", b.family, err)
	}
	a.ports(func(u *unit) []op { return u.beforeRules })
	a.routes(p.deleteRoutes)
	rules := a.rules(out)
	if !reconcile.OnlyPortErrors(rules) {
		// Without rules, packets to an address would reach any local listener.
		return errors.Join(append(a.errs, rules)...)
	}
	refused := refusedPorts(rules)
	a.ports(func(u *unit) []op {
		if u.port != nil && refused[u.port.Name] {
			return nil // not without its rules
		}
		return u.afterRules
	})
	a.routes(p.routesWithout(refused))
	a.routes(p.addrSetOps)
	for i := range p.units {
		if u := &p.units[i]; u.err != nil {
			a.errs = append(a.errs, u.portError(u.err))
		}
	}
	p.logDraining(ctx)
	b.setDraining(p.drainingDests)
	err := errors.Join(append(a.errs, rules)...)
	if p.next.failedPorts = p.findFailedPorts(a.errs); rules == nil && len(p.next.failedPorts) <= maxFailedPorts && reconcile.OnlyPortErrors(err) {
		p.recordInstalled()
	}
	return err
}

// recordInstalled records that the kernel state is p.next, except for failed Ports.
func (p *plan) recordInstalled() {
	for a, n := range p.delta {
		if p.next.addrRefs[a] += n; p.next.addrRefs[a] == 0 {
			delete(p.next.addrRefs, a)
		}
	}
	b := p.backend
	b.installed, b.prepared = p.next, true
	b.setDraining(p.drainingDests)
}

// applier is one run of Apply.
type applier struct {
	plan *plan
	ctx  context.Context
	errs []error
	// undeleted are the virtual servers that could not be deleted before the rules change.
	undeleted map[key]bool
}

// rules changes the rules, and sets in out the outcome.
func (a *applier) rules(out *reconcile.Outcome) error {
	plan, view, err := a.currentRules()
	if err == nil && !plan.Empty() {
		done := plan.Apply(a.ctx)
		err, out.Degraded, out.Rules = done.Err, done.Degraded, done.Rules
	}
	if reconcile.OnlyPortErrors(err) {
		a.plan.backend.rulesView = view
	}
	return err
}

// prepare applies what everything else depends on.
func (a *applier) prepare() error {
	b := a.plan.backend
	if len(a.plan.settings) > 0 {
		if err := b.driver.ApplySettings(a.ctx, b.currentScope()); err != nil {
			return err
		}
		b.prepared = true
	}
	return a.steps(a.plan.setup)
}

// routes executes ops about addresses.
func (a *applier) routes(ops []op) {
	if err := a.steps(ops); err != nil {
		a.errs = append(a.errs, fmt.Errorf("lead addresses of Services to the node: %w", err))
	}
}

// routesWithout returns p's routes except those for addresses that only refused Ports
// have.
func (p *plan) routesWithout(refused map[service.PortName]bool) []op {
	if len(refused) == 0 {
		return p.addRoutes
	}
	has := map[netip.Addr]int{}
	for port := range p.next.view.Ports(p.backend.family) {
		if !refused[port.Name] {
			countAddrs(has, port, p.next.view.Node, 1)
		}
	}
	var routes []op
	for _, o := range p.addRoutes {
		if has[o.route.addr] > 0 {
			routes = append(routes, o)
		}
	}
	return routes
}

// refusedPorts returns the Ports whose rules err is about.
func refusedPorts(err error) map[service.PortName]bool {
	refused := map[service.PortName]bool{}
	for _, e := range reconcile.PortErrors(err) {
		refused[e.Name] = true
	}
	return refused
}

// steps executes ops that do not belong to a Port.
func (a *applier) steps(ops []op) error {
	if len(ops) == 0 {
		return nil
	}
	return joinFailures(ops, a.plan.backend.driver.Commit(a.ctx, ops))
}

// joinFailures joins the failures of ops.
func joinFailures(ops []op, failed map[int]error) error {
	var errs []error
	for i := range ops {
		if err := failed[i]; isFailure(ops[i], err) {
			errs = append(errs, fmt.Errorf("%s: %w", ops[i].text(), err))
		}
	}
	return limitErrors(errs)
}

// ports executes the ops that pick returns for each unit, and records the first failure
// of each.
func (a *applier) ports(pick func(*unit) []op) {
	var ops []op
	var owner []int
	for i := range a.plan.units {
		for _, o := range pick(&a.plan.units[i]) {
			ops = append(ops, o)
			owner = append(owner, i)
		}
	}
	if len(ops) == 0 {
		return
	}
	failed := a.plan.backend.driver.Commit(a.ctx, ops)
	last := -1
	for i := range ops {
		if failed[i] == nil {
			a.plan.backend.recordOp(ops[i])
		}
		if errors.Is(failed[i], errNotInSet) { // a check of a single server would not detect this
			a.plan.backend.poller.requested.Store(true)
		}
		if ops[i].verb == delServer && isFailure(ops[i], failed[i]) {
			a.undeleted[ops[i].key] = true
		}
		if err := failed[i]; isFailure(ops[i], err) && owner[i] != last {
			last = owner[i]
			u := &a.plan.units[last]
			a.errs = append(a.errs, u.portError(fmt.Errorf("%s: %w", ops[i].text(), err)))
		}
	}
}

// isFailure reports whether err means that o was not done. A delete of an object that
// does not exist is no failure.
func isFailure(o op, err error) bool {
	deletes := o.verb == delServer || o.verb == delDest || o.verb == delRoute || o.verb == delAddr
	return err != nil && !(deletes && errors.Is(err, errMissing))
}

// maxErrors limits the number of reported failures that do not belong to a Port.
const maxErrors = 20

func limitErrors(errs []error) error {
	if n := len(errs); n > maxErrors {
		errs = append(errs[:maxErrors], fmt.Errorf("and %d more", n-maxErrors))
	}
	return errors.Join(errs...)
}
