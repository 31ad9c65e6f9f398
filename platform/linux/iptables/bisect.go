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

// maxFailures bounds how many Ports are tried one by one after a refusal.
// More than that means that the tables or the kernel are at fault.
const maxFailures = 64

// bisect applies the changes of p one after the other, as far as they work. A
// Port that is refused keeps what it had.
func (p *plan) bisect(ctx context.Context, refusal error) error {
	b, want := p.backend, p.next.snapshot
	t, err := b.read(ctx) // one of the tables may have been programmed
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

// bisection is one run of divide.
type bisection struct {
	plan        *plan
	ctx         context.Context
	sums        map[id]sum
	jumps       []jump
	moves       []move
	insertAfter map[id]int
	ports       map[service.PortName]*service.Port // in force
	existing    []entry                            // in the tables when it began
	owners      map[key]service.PortName           // who wants what is held
	errs        []error
	fatal       error // ends the run
}

// recordOwners notes the keys of all Ports.
func (d *bisection) recordOwners(want *service.Snapshot) {
	b := d.plan.backend
	for p := range want.Ports(b.family) {
		for _, k := range b.keys(p, want.Node) {
			d.owners[k] = p.Name
		}
	}
}

// existingEntries returns the entries that stay though no port in force has them: of
// Ports whose turn has not come, or that were refused, and what a partial
// snapshot does not know.
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

// deleteObsolete removes what nobody wants, once all the rest is in.
func (d *bisection) deleteObsolete() {
	b := d.plan.backend
	// Branches of trees have gone with the trees.
	c := change{deleteJumps: d.plan.deleteJumps, deletes: slices.DeleteFunc(slices.Clone(d.plan.deletes), id.isBranch)}
	if !d.plan.fullSync || c.empty() {
		return
	}
	if err := b.restore(d.ctx, &c); err != nil {
		d.fatal = fmt.Errorf("remove old chains from the tables of %s: %w", command(b.family), err)
	}
}

// bisect applies changes, or each half of them.
func (d *bisection) bisect(changes []service.Change) {
	if len(changes) == 0 || d.fatal != nil {
		return
	}
	err := d.try(changes)
	switch {
	case err == nil:
	case errors.Is(err, errBusy) || d.ctx.Err() != nil:
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

// try applies changes and what is shared together with them.
func (d *bisection) try(changes []service.Change) error {
	b, node := d.plan.backend, d.plan.next.snapshot.Node
	before := map[service.PortName]*service.Port{}
	s := &stage{layout: b.layout, sums: d.sums, keepDeleted: d.plan.next.snapshot.Incomplete && len(d.existing) > 0}
	for _, c := range changes {
		before[c.Name()] = d.ports[c.Name()]
		s.changePort(c, node)
		d.setPort(c.Name(), c.New)
	}
	for port := range d.sortedPorts() { // whose chains may have gone with a text of which a part was refused
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

// reread finds out what the tables hold after a refusal, for one of them may have
// been programmed.
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

// sortedPorts yields the ports in force, in name order.
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
