// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"fmt"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

// Driver is what Backend asks from the kernel, for one family. Its methods
// are called from one goroutine at a time, but for Watch.
type Driver interface {
	// Commit makes ops take effect together, or not at all and says why.
	Commit(ctx context.Context, ops []op) error
	// Read returns our table, nil if there is none.
	Read(ctx context.Context) (*table, error)
	// Touched reports that others may have changed our table since the last
	// call of Read, not counting Commits. It is cheap.
	Touched(ctx context.Context) (bool, error)
	// PruneClients deletes the remembered clients of a clients map whose endpoint
	// is not among keep.
	PruneClients(ctx context.Context, clients *set, keep map[string]bool) error
	// Liberal reports that the kernel takes packets outside of the window of
	// their connection as valid.
	Liberal() bool
	// Watch calls touched whenever others change our table, until ctx ends.
	Watch(ctx context.Context, touched func()) error
}

// Backend keeps one family's table. It implements reconcile.Backend.
type Backend struct {
	family  service.Family
	options Options
	driver  Driver
	// have is what the table holds, nil while that is not known.
	have    *installed
	liberal bool // as Driver.Liberal said last
}

// effectiveOptions returns the options as far as the kernel lets them count.
func (b *Backend) effectiveOptions() Options {
	o := b.options
	o.DropInvalid = o.DropInvalid && !b.liberal
	return o
}

var _ reconcile.Watcher = (*Backend)(nil)

// installed describes a table that is as we want it, by what it was made
// from; the elements themselves are kept by the kernel alone.
type installed struct {
	snapshot *service.Snapshot
	options  Options
	// slots has the Ports whose slots are not simply in order.
	slots   map[service.PortName]slots
	classes classes
	shared  shared
}

func (h *installed) layout(p *service.Port) layout {
	if p == nil {
		return layout{}
	}
	return layout{p, h.slots[p.Name]}
}

// Plan implements reconcile.Backend. Without foreign changes its cost
// follows the difference between want and the last snapshot; else the table
// is read.
func (b *Backend) Plan(ctx context.Context, want *service.Snapshot) (reconcile.Plan, error) {
	touched := true
	b.liberal = b.options.DropInvalid && b.driver.Liberal()
	if b.have != nil {
		var err error
		if touched, err = b.driver.Touched(ctx); err != nil {
			return nil, fmt.Errorf("ask for changes to table %s: %w", b.name(), err)
		}
		// What a partial snapshot left in force may go now.
		touched = touched || b.have.snapshot.Incomplete && !want.Incomplete ||
			b.have.snapshot.Node.NodePortsPending[b.family] && !want.Node.NodePortsPending[b.family]
	}
	var p *plan
	if touched {
		// The driver tells of a change once, so until a plan was applied
		// nobody knows what the table holds.
		have := b.have
		b.have = nil
		t, err := b.driver.Read(ctx)
		if err != nil {
			return nil, fmt.Errorf("read table %s: %w", b.name(), err)
		}
		p = b.planFull(t, have, want)
	} else {
		p = b.planIncremental(want)
	}
	if p.Empty() {
		b.have = p.next
	}
	return p, nil
}

// Cleanup implements reconcile.Backend: it deletes the table.
func (b *Backend) Cleanup(ctx context.Context) error {
	b.have = nil
	t, err := b.driver.Read(ctx)
	if err != nil {
		return fmt.Errorf("read table %s: %w", b.name(), err)
	}
	if t == nil {
		return nil
	}
	if err := b.driver.Commit(ctx, []op{{verb: delTable, table: b.options.table()}}); err != nil {
		return fmt.Errorf("delete table %s: %w", b.name(), err)
	}
	return nil
}

// Watch implements reconcile.Watcher.
func (b *Backend) Watch(ctx context.Context, touched func()) error {
	return b.driver.Watch(ctx, touched)
}

// Forget implements reconcile.Forgetter.
func (b *Backend) Forget() { b.have = nil }

// Suspect implements reconcile.SuspectFinder.
func (b *Backend) Suspect() string {
	if d, ok := b.driver.(interface{ Suspect() string }); ok {
		return d.Suspect()
	}
	return ""
}

func (b *Backend) name() string { return tableFamily(b.family) + " " + b.options.table() }

// planIncremental plans from one snapshot to the next.
func (b *Backend) planIncremental(want *service.Snapshot) *plan {
	p := &plan{backend: b, next: &installed{snapshot: want, options: b.effectiveOptions(), slots: b.have.slots, shared: b.have.shared}}
	h := b.have
	if want == h.snapshot && h.options == b.effectiveOptions() {
		p.next = h
		return p
	}
	need := h.classes
	for c := range service.Diff(h.snapshot, want, b.family) {
		from := h.layout(c.Old)
		to := layout{}
		if c.New != nil {
			to = from.next(c.New)
			need = need.union(to.neededClasses())
		}
		if c.Old != nil && c.New != nil && c.New.Affinity > 0 {
			p.staleClients = append(p.staleClients, to)
		}
		p.units = append(p.units, unit{from: from, to: to})
	}
	p.next.classes = need
	var base []op
	if h.snapshot.Node != want.Node || h.options != p.next.options {
		base = appendChainChanges(base, baseChains(b.family, h.snapshot.Node, h.options), baseChains(b.family, want.Node, p.next.options))
	}
	base = appendChain(base, need.without(h.classes).chains(b.options)...)
	if len(base) > 0 {
		p.units = append([]unit{{ops: base, prerequisite: true}}, p.units...)
	}
	p.planSharedChanges()
	return p
}

// planSharedChanges adds the unit that follows p's other units in the elements
// that Ports share.
func (p *plan) planSharedChanges() {
	p.sharedDelta = newShared()
	for _, u := range p.units {
		p.sharedDelta.replace(u.from.port, u.to.port)
	}
	var ops []op
	for k, n := range p.sharedDelta {
		have := p.next.shared[k]
		switch {
		case have == 0 && n > 0:
			ops = append(ops, op{verb: addElement, element: k.element()})
		case have > 0 && have+n == 0:
			ops = append(ops, op{verb: delElement, element: k.element()})
		}
	}
	if len(ops) > 0 {
		sortElements(ops)
		p.units = append(p.units, unit{ops: ops})
	}
}
