// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

// maxFailures limits how many Ports may be refused one by one. A higher number means
// that the tables or the kernel are at fault.
const maxFailures = 64

// bisect applies the changes of p in parts, as far as the kernel accepts them. A Port
// that is refused keeps its old rules.
func (p *plan) bisect(ctx context.Context, refusal error) error {
	b, want := p.backend, p.next.snapshot
	t, err := b.read(ctx) // one of the tables may have been changed
	if err != nil {
		return err
	}
	d := &bisection{plan: p, ctx: ctx, sums: t.sums(), ports: map[service.PortName]*service.Port{}, existing: t.entries(), jumps: t.missingJumps(b.jumps()), moves: t.misplaced(b.jumps()), insertAfter: t.insertAfter}
	d.owners = map[key]service.PortName{}
	changes := p.changes
	if p.fullSync {
		d.recordOwners(want)
	} else {
		for port := range p.from.snapshot.Ports(b.family) {
			d.ports[port.Name] = port
		}
		d.existing = p.next.retained
	}
	if err := d.try(nil); err != nil {
		return fmt.Errorf("program the tables of %s: %w", command(b.family), errors.Join(refusal, err))
	}
	d.jumps, d.moves = nil, nil
	d.bisect(changes)
	if len(d.errs) == 0 && d.fatal == nil {
		d.deleteObsolete()
	}
	return errors.Join(append(d.errs, d.fatal)...)
}

// bisection is the state of one call of plan.bisect.
type bisection struct {
	plan        *plan
	ctx         context.Context
	sums        map[id]sum
	jumps       []jump
	moves       []move
	insertAfter map[id]int
	ports       map[service.PortName]*service.Port // whose rules are installed
	existing    []entry                            // in the tables at the start
	owners      map[key]service.PortName           // the desired owner of each key
	errs        []error
	fatal       error // ends the bisection
}

// recordOwners stores the owner of each key of want.
func (d *bisection) recordOwners(want *service.Snapshot) {
	b := d.plan.backend
	for p := range want.Ports(b.family) {
		for _, k := range b.keys(p, want.Node) {
			d.owners[k] = p.Name
		}
	}
}

// existingEntries returns the entries that stay although no installed port has them:
// those of Ports that come later or were refused, and those that an incomplete snapshot
// does not contain.
func (d *bisection) existingEntries() []entry {
	if !d.plan.fullSync {
		return d.existing
	}
	var all []entry
	for _, e := range d.existing {
		owner, wanted := d.owners[e.key]
		if !wanted && d.plan.next.snapshot.Incomplete || wanted && d.ports[owner] == nil {
			all = append(all, e)
		}
	}
	return all
}

// deleteObsolete removes obsolete chains after everything else has been applied.
func (d *bisection) deleteObsolete() {
	b := d.plan.backend
	// ensureShared has removed the obsolete branches of trees.
	c := change{deleteJumps: d.plan.deleteJumps, deletes: slices.DeleteFunc(slices.Clone(d.plan.deletes), id.isBranch)}
	if !d.plan.fullSync || c.empty() {
		return
	}
	if err := b.restore(d.ctx, &c); err != nil {
		d.fatal = fmt.Errorf("remove old chains from the tables of %s: %w", command(b.family), err)
	}
}

// bisect applies changes. If they are refused, it applies each half separately.
func (d *bisection) bisect(changes []service.Change) {
	if len(changes) == 0 || d.fatal != nil {
		return
	}
	err := d.try(changes)
	switch {
	case err == nil:
	case errors.Is(err, ErrBusy) || d.ctx.Err() != nil:
		d.fatal = fmt.Errorf("program the tables of %s: %w", command(d.plan.backend.family), err)
	case len(changes) > 1:
		d.bisect(changes[:len(changes)/2])
		d.bisect(changes[len(changes)/2:])
	default:
		d.recordFailure(changes[0], err)
	}
}

func (d *bisection) recordFailure(c service.Change, err error) {
	d.errs = append(d.errs, &reconcile.PortError{Family: d.plan.backend.family, Name: c.Name(), Err: err})
	if len(d.errs) >= maxFailures {
		d.fatal = fmt.Errorf("tables of %s: gave up after %d refusals", command(d.plan.backend.family), len(d.errs))
	}
}

// try applies changes together with the shared chains.
func (d *bisection) try(changes []service.Change) error {
	b, node := d.plan.backend, d.plan.next.snapshot.Node
	before := map[service.PortName]*service.Port{}
	s := &stage{layout: b.layout, sums: d.sums, keepDeleted: d.plan.next.snapshot.Incomplete && len(d.existing) > 0}
	for _, c := range changes {
		before[c.Name()] = d.ports[c.Name()]
		s.changePort(c, node)
		d.setPort(c.Name(), c.New)
	}
	for port := range d.sortedPorts() { // a partly refused text may have removed their chains
		s.ensure(b.portChains(port, node)...)
	}
	s.ensureShared(b.shared(node, d.sortedPorts(), d.existingEntries()))
	s.insertJumps, s.insertAfter, s.moves = d.jumps, d.insertAfter, d.moves
	if s.empty() {
		return nil
	}
	if err := b.restore(d.ctx, &s.change); err != nil {
		for name, p := range before {
			d.setPort(name, p)
		}
		return errors.Join(err, d.reread())
	}
	s.recordSums()
	return nil
}

// reread reads the tables after a refusal, because one of them may have been changed.
func (d *bisection) reread() error {
	t, err := d.plan.backend.read(d.ctx)
	if err != nil {
		return err
	}
	d.sums = t.sums()
	return nil
}

func (d *bisection) setPort(name service.PortName, p *service.Port) {
	if p == nil {
		delete(d.ports, name)
		return
	}
	d.ports[name] = p
}

// sortedPorts yields the installed ports in the order of their names.
func (d *bisection) sortedPorts() iter.Seq[*service.Port] {
	names := make([]service.PortName, 0, len(d.ports))
	for name := range d.ports {
		names = append(names, name)
	}
	slices.SortFunc(names, service.PortName.Compare)
	return func(yield func(*service.Port) bool) {
		for _, n := range names {
			if !yield(d.ports[n]) {
				return
			}
		}
	}
}
