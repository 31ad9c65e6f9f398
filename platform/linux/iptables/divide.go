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

// divide applies the changes of p one after the other, as far as they work. A
// Port that is refused keeps what it had.
func (p *plan) divide(ctx context.Context, refusal error) error {
	b, want := p.backend, p.next.snapshot
	t, err := b.read(ctx) // one of the tables may have been programmed
	if err != nil {
		return err
	}
	d := &divider{plan: p, ctx: ctx, sums: t.sums(), ports: map[service.PortName]*service.Port{}, held: t.entries(), jumps: t.lacking(b.jumps()), moves: t.misplaced(b.jumps()), behind: t.behind}
	d.owners = map[key]service.PortName{}
	changes := p.changes
	if p.whole {
		d.owned(want)
	} else {
		for port := range p.from.snapshot.Ports(b.family) {
			d.ports[port.Name] = port
		}
		d.held = p.next.held
	}
	if err := d.try(nil); err != nil {
		return fmt.Errorf("program the tables of %s: %w", command(b.family), errors.Join(refusal, err))
	}
	d.jumps, d.moves = nil, nil
	d.halve(changes)
	if len(d.errs) == 0 && d.fatal == nil {
		d.sweep()
	}
	return errors.Join(append(d.errs, d.fatal)...)
}

// divider is one run of divide.
type divider struct {
	plan   *plan
	ctx    context.Context
	sums   map[id]sum
	jumps  []jump
	moves  []move
	behind map[id]int
	ports  map[service.PortName]*service.Port // in force
	held   []entry                            // in the tables when it began
	owners map[key]service.PortName           // who wants what is held
	errs   []error
	fatal  error // ends the run
}

// owned notes the keys of all Ports.
func (d *divider) owned(want *service.Snapshot) {
	b := d.plan.backend
	for p := range want.Ports(b.family) {
		for _, k := range b.keys(p, want.Node) {
			d.owners[k] = p.Name
		}
	}
}

// others returns the entries that stay though no port in force has them: of
// Ports whose turn has not come, or that were refused, and what a partial
// snapshot does not know.
func (d *divider) others() []entry {
	if !d.plan.whole {
		return d.held
	}
	var all []entry
	for _, e := range d.held {
		owner, wanted := d.owners[e.key]
		if !wanted && d.plan.next.snapshot.Partial || wanted && d.ports[owner] == nil {
			all = append(all, e)
		}
	}
	return all
}

// sweep removes what nobody wants, once all the rest is in.
func (d *divider) sweep() {
	b := d.plan.backend
	// Branches of trees have gone with the trees.
	c := change{unjumps: d.plan.unjumps, deletes: slices.DeleteFunc(slices.Clone(d.plan.deletes), id.isBranch)}
	if !d.plan.whole || c.empty() {
		return
	}
	if err := b.restore(d.ctx, &c); err != nil {
		d.fatal = fmt.Errorf("remove old chains from the tables of %s: %w", command(b.family), err)
	}
}

// halve applies changes, or each half of them.
func (d *divider) halve(changes []service.Change) {
	if len(changes) == 0 || d.fatal != nil {
		return
	}
	err := d.try(changes)
	switch {
	case err == nil:
	case errors.Is(err, errBusy) || d.ctx.Err() != nil:
		d.fatal = fmt.Errorf("program the tables of %s: %w", command(d.plan.backend.family), err)
	case len(changes) > 1:
		d.halve(changes[:len(changes)/2])
		d.halve(changes[len(changes)/2:])
	default:
		d.fail(changes[0], err)
	}
}

func (d *divider) fail(c service.Change, err error) {
	d.errs = append(d.errs, &reconcile.PortError{Family: d.plan.backend.family, Name: c.Name(), Err: err})
	if len(d.errs) >= maxFailures {
		d.fatal = fmt.Errorf("tables of %s: gave up after %d refusals", command(d.plan.backend.family), len(d.errs))
	}
}

// try applies changes and what is shared together with them.
func (d *divider) try(changes []service.Change) error {
	b, node := d.plan.backend, d.plan.next.snapshot.Node
	before := map[service.PortName]*service.Port{}
	s := &stage{layout: b.layout, sums: d.sums, keep: d.plan.next.snapshot.Partial && len(d.held) > 0}
	for _, c := range changes {
		before[c.Name()] = d.ports[c.Name()]
		s.port(c, node)
		d.set(c.Name(), c.New)
	}
	for port := range d.values() { // whose chains may have gone with a text of which a part was refused
		s.want(b.portChains(port, node)...)
	}
	s.shared(b.shared(node, d.values(), d.others()))
	s.jumps, s.behind, s.moves = d.jumps, d.behind, d.moves
	if s.empty() {
		return nil
	}
	if err := b.restore(d.ctx, &s.change); err != nil {
		for name, p := range before {
			d.set(name, p)
		}
		return errors.Join(err, d.look())
	}
	s.done()
	return nil
}

// look finds out what the tables hold after a refusal, for one of them may have
// been programmed.
func (d *divider) look() error {
	t, err := d.plan.backend.read(d.ctx)
	if err != nil {
		return err
	}
	d.sums = t.sums()
	return nil
}

func (d *divider) set(name service.PortName, p *service.Port) {
	if p == nil {
		delete(d.ports, name)
		return
	}
	d.ports[name] = p
}

// values yields the ports in force, in name order.
func (d *divider) values() iter.Seq[*service.Port] {
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
