// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

// plan is a list of units. Each unit can fail on its own.
type plan struct {
	backend      *Backend
	units        []unit
	next         *installed // what the table holds after Apply
	sharedDelta  shared     // to add to next.shared after Apply
	staleClients []layout   // Ports whose clients maps may refer to a removed endpoint
	drift        []string
	incompatible []string // why the table is replaced
	removed      []*service.Port
	fullSync     bool // computed from the table, not from the changed Ports
}

// unit is a change that takes effect as a whole: the change of one Port, or ops that
// belong to no Port.
type unit struct {
	from, to     layout
	ops          []op           // if not nil, the steps; to then only names the Port
	shared       []sharedChange // if not nil, the steps
	prerequisite bool           // the other units depend on this one
	joined       bool           // it shares a transaction with the unit before it, see joinMoves
}

func (u unit) steps(o Options) []op {
	switch {
	case u.ops != nil:
		return u.ops
	case u.shared != nil:
		return sharedOps(u.shared)
	}
	return portOps(u.from, u.to, o)
}

// port returns the Port of u, or nil if it has none.
func (u unit) port() *service.Port {
	if u.to.port != nil {
		return u.to.port
	}
	return u.from.port
}

// Empty implements reconcile.Plan.
func (p *plan) Empty() bool { return len(p.units) == 0 && len(p.staleClients) == 0 }

// Outcome implements reconcile.Plan.
func (p *plan) Outcome() reconcile.Outcome {
	out := reconcile.Outcome{FullSync: p.fullSync, Drift: p.drift, Removed: p.removed}
	if len(p.drift) > 0 {
		out.Suspect = p.backend.driver.Suspect()
	}
	return out
}

// Changes implements reconcile.Plan.
func (p *plan) Changes() reconcile.Changes {
	var all reconcile.Changes
	for _, u := range p.units {
		for _, o := range u.steps(p.backend.options) {
			c := reconcile.Change{Text: o.text(p.backend.family)}
			if of := u.port(); of != nil {
				c.Port, c.Named = of.Name, o.element.comment == of.Name.String()
			}
			all = append(all, c)
		}
	}
	return all
}

// chunk bounds the ops in one transaction. The kernel processes a transaction without a
// pause, and other users of nftables wait for it.
const chunk = 8192

// maxFailures bounds how many Ports are tried one by one after the kernel rejected a
// transaction. More failures mean that the table or the kernel is at fault.
const maxFailures = 64

// Apply implements reconcile.Plan. It splits a transaction that the kernel rejects until
// the Port at fault is alone, and commits the rest. It retries failed units once at the
// end, because a conflicting object may have been deleted by then.
func (p *plan) Apply(ctx context.Context) reconcile.Outcome {
	err := p.commit(ctx)
	out := p.Outcome()
	out.Err = err
	return out
}

// commit makes the changes of p.
func (p *plan) commit(ctx context.Context) error {
	a := &applier{plan: p, ctx: ctx}
	a.commitAll(joinMoves(p.units))
	if failed := a.failed; len(failed) > 0 && a.fatal == nil {
		a.failed, a.errs = nil, nil
		a.commitAll(failed)
	}
	b := p.backend
	if err := errors.Join(append(a.errs, a.fatal)...); err != nil {
		b.have = nil // the next Plan reads the table
		return err
	}
	b.have = p.next
	for k, n := range p.sharedDelta {
		if b.have.shared[k] += n; b.have.shared[k] == 0 {
			delete(b.have.shared, k)
		}
	}
	p.recordSlots()
	return a.pruneClients()
}

// recordSlots records the slots of the changed Ports.
func (p *plan) recordSlots() {
	for _, u := range p.units {
		switch {
		case u.ops != nil: // planFull has recorded them
		case u.to.port != nil && !u.to.slots.identity():
			p.next.slots[u.to.port.Name] = u.to.slots
		case u.port() != nil:
			delete(p.next.slots, u.port().Name)
		}
	}
}

// applier is one run of Apply.
type applier struct {
	plan   *plan
	ctx    context.Context
	failed []unit
	errs   []error
	fatal  error // ends the run
	ops    []op  // of the latest transaction; the next one reuses the memory
}

// commitAll commits units in transactions of about one chunk. Each prerequisite unit gets
// its own transaction.
func (a *applier) commitAll(units []unit) {
	var group []unit
	size := 0
	for i, u := range units {
		if a.fatal != nil {
			return
		}
		if u.prerequisite {
			a.prepare(u)
			continue
		}
		group = append(group, u)
		last := i == len(units)-1
		if size += u.size(); last || size >= chunk && !units[i+1].joined {
			a.commit(group)
			group, size = nil, 0
		}
	}
}

func (u unit) size() int {
	if u.ops != nil {
		return len(u.ops)
	}
	n := len(u.shared)
	if u.from.port != nil && u.to.port == nil {
		n = u.from.size()
	}
	if u.to.port != nil {
		n += u.to.size()
	}
	return n
}

// prepare commits a prerequisite unit. An error ends the run.
func (a *applier) prepare(u unit) {
	if err := a.plan.backend.commitOps(a.ctx, u.ops); err != nil {
		a.fatal = fmt.Errorf("prepare table %s: %w", a.plan.backend.name(), err)
	}
}

func (a *applier) commit(units []unit) {
	a.ops = a.ops[:0]
	for _, u := range units {
		a.ops = append(a.ops, u.steps(a.plan.backend.options)...)
	}
	err := a.plan.backend.commitOps(a.ctx, a.ops)
	if err == nil {
		return
	} else if a.ctx.Err() != nil {
		a.fatal = err
		return
	}
	parts := splitUnits(units)
	for _, part := range parts {
		if a.fatal == nil {
			a.commit(part)
		}
	}
	if parts == nil {
		for _, u := range units {
			a.recordFailure(u, err)
		}
	}
}

func (a *applier) recordFailure(u unit, err error) {
	if p := u.port(); p != nil {
		err = &reconcile.PortError{Family: p.Family, Name: p.Name, Err: err}
	} else {
		err = fmt.Errorf("table %s: %w", a.plan.backend.name(), err)
	}
	a.failed = append(a.failed, u)
	a.errs = append(a.errs, err)
	if len(a.errs) >= maxFailures {
		a.fatal = fmt.Errorf("table %s: gave up after %d refusals", a.plan.backend.name(), len(a.errs))
	}
}

// pruneClients deletes the client records of removed endpoints.
func (a *applier) pruneClients() error {
	var errs []error
	b := a.plan.backend
	for _, l := range a.plan.staleClients {
		for _, g := range append(l.groups(clusterList), l.groups(localList)...) {
			if err := b.driver.PruneClients(a.ctx, g.clients, g.members); err != nil {
				b.have = nil
				err = fmt.Errorf("forget clients of endpoints that left: %w", err)
				errs = append(errs, &reconcile.PortError{Family: b.family, Name: l.port.Name, Err: err})
			}
		}
	}
	return errors.Join(errs...)
}

// commitOps commits ops, sorted as a transaction needs them.
func (b *Backend) commitOps(ctx context.Context, ops []op) error {
	if len(ops) == 0 {
		return nil
	}
	slices.SortStableFunc(ops, func(x, y op) int { return int(x.verb) - int(y.verb) })
	return b.driver.Commit(ctx, ops)
}
