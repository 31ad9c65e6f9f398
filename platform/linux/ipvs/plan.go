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

// plan is what leads from what the kernel holds to a snapshot.
type plan struct {
	backend         *Backend
	rules           reconcile.Plan
	settings        []string // to be made
	setup           []op
	units           []unit
	deleteRoutes    []op // addresses that nobody has any more
	addRoutes       []op
	addrSetOps      []op               // when all else is in force
	next            *installed         // what the kernel holds after Apply
	delta           map[netip.Addr]int // to add to next.addrs after Apply
	drainingDests   drainingDests      // after Apply
	knownToRules    map[key]bool       // virtual servers that the rules know already, of what is compared
	previousAddrs   map[netip.Addr]int // addresses that Services had, as next.addrs, if p is whole
	drainedServers  map[key]bool       // virtual servers whose last destination has drained
	recheck         recheckSet         // nothing, if p is whole
	drift           []string
	alteredSettings []string // settings that were as they should be
	removed         []*service.Port
	fullSync        bool // made from what the kernel holds, not from what changed
}

var (
	_ reconcile.Remover    = (*plan)(nil)
	_ reconcile.FullSyncer = (*plan)(nil)
)

// unit is the change of one Port, or of none in particular.
type unit struct {
	port        *service.Port
	beforeRules []op
	afterRules  []op  // when the rules beside are in force
	err         error // why more cannot be done
}

// add takes u, if it does something.
func (p *plan) add(u unit) {
	if len(u.beforeRules) > 0 || len(u.afterRules) > 0 || u.err != nil {
		p.units = append(p.units, u)
	}
}

// ops yields everything that p does itself, in order.
func (p *plan) ops() iter.Seq[op] {
	return func(yield func(op) bool) {
		parts := [][]op{p.setup}
		for _, u := range p.units {
			parts = append(parts, u.beforeRules)
		}
		parts = append(parts, p.deleteRoutes)
		for _, u := range p.units {
			parts = append(parts, u.afterRules)
		}
		parts = append(parts, p.addRoutes, p.addrSetOps)
		for _, part := range parts {
			for _, o := range part {
				if !yield(o) {
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

// Drift implements reconcile.Plan.
func (p *plan) Drift() []string { return slices.Concat(p.alteredSettings, p.drift, p.rules.Drift()) }

// Removed implements reconcile.Remover.
func (p *plan) Removed() []*service.Port { return p.removed }

// FullSync implements reconcile.FullSync.
func (p *plan) FullSync() bool { return p.fullSync }

// String implements reconcile.Plan.
func (p *plan) String() string {
	var b strings.Builder
	for _, s := range p.settings {
		b.WriteString("+ setting " + s + "\n")
	}
	for o := range p.ops() {
		b.WriteString(o.text() + "\n")
	}
	return b.String() + p.rules.String()
}

// Apply implements reconcile.Plan. Virtual servers cannot change together with
// the rules beside them, so what changes before and what after is chosen for
// each, see move, such that whatever comes in between is answered. An address
// leads here only while all is in force for it.
func (p *plan) Apply(ctx context.Context) error {
	b := p.backend
	b.installed = nil // if more than single Ports fails, the next Plan asks the kernel
	a := &applier{plan: p, ctx: ctx}
	if err := a.prepare(); err != nil {
		return fmt.Errorf("prepare IPVS for %s: %w", b.family, err)
	}
	a.ports(func(u *unit) []op { return u.beforeRules })
	a.routes(p.deleteRoutes)
	var rules error
	if !p.rules.Empty() {
		rules = p.rules.Apply(ctx)
	}
	if !isPartial(rules) {
		// Without the rules, an address would lead to whatever listens here.
		return errors.Join(append(a.errs, rules)...)
	}
	refused := refusedPorts(rules)
	a.ports(func(u *unit) []op {
		if u.port != nil && refused[u.port.Name] {
			return nil // not without the rules for it
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
	if p.next.failedPorts = p.findFailedPorts(a.errs); rules == nil && len(p.next.failedPorts) <= maxFailedPorts && isPartial(err) {
		p.recordInstalled()
	}
	return err
}

// recordInstalled notes that all is as p wants it, but for what is in doubt.
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

// isPartial reports that err is about single Ports, if there is one.
func isPartial(err error) bool {
	switch e := err.(type) {
	case nil, *reconcile.PortError:
		return true
	case interface{ Unwrap() []error }:
		for _, err := range e.Unwrap() {
			if !isPartial(err) {
				return false
			}
		}
		return true
	}
	return false
}

// applier is one run of Apply.
type applier struct {
	plan *plan
	ctx  context.Context
	errs []error
}

// prepare does what everything else relies on.
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

// routes does ops about addresses.
func (a *applier) routes(ops []op) {
	if err := a.steps(ops); err != nil {
		a.errs = append(a.errs, fmt.Errorf("lead addresses of Services to the node: %w", err))
	}
}

// routesWithout returns p's routes but for addresses that only refused Ports have.
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

// steps does ops that are no Port's.
func (a *applier) steps(ops []op) error {
	if len(ops) == 0 {
		return nil
	}
	return joinFailures(ops, a.plan.backend.driver.Commit(a.ctx, ops))
}

// joinFailures joins what went wrong with ops.
func joinFailures(ops []op, failed map[int]error) error {
	var errs []error
	for i := range ops {
		if err := failed[i]; isFailure(ops[i], err) {
			errs = append(errs, fmt.Errorf("%s: %w", ops[i].text(), err))
		}
	}
	return limitErrors(errs)
}

// ports does the ops that pick finds in each unit, and names the first failure
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
		if errors.Is(failed[i], errNotInSet) { // who asks for one does not see that
			a.plan.backend.poller.requested.Store(true)
		}
		if err := failed[i]; isFailure(ops[i], err) && owner[i] != last {
			last = owner[i]
			u := &a.plan.units[last]
			a.errs = append(a.errs, u.portError(fmt.Errorf("%s: %w", ops[i].text(), err)))
		}
	}
}

// isFailure reports that err keeps o from having been done. What should go may
// have gone by itself.
func isFailure(o op, err error) bool {
	deletes := o.verb == delServer || o.verb == delDest || o.verb == delRoute || o.verb == delAddr
	return err != nil && !(deletes && errors.Is(err, errMissing))
}

// maxErrors bounds how many failures are told of what is no Port's.
const maxErrors = 20

func limitErrors(errs []error) error {
	if n := len(errs); n > maxErrors {
		errs = append(errs[:maxErrors], fmt.Errorf("and %d more", n-maxErrors))
	}
	return errors.Join(errs...)
}
