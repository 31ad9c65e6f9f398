// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"fmt"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/netlink/nft"
)

// Driver is the access to the kernel that Backend needs, for one family. Its methods are
// called from one goroutine at a time, except Watch.
type Driver interface {
	// Commit applies ops in one transaction. On error nothing was applied.
	Commit(ctx context.Context, ops []op) error
	// Read returns our table, or nil if it does not exist.
	Read(ctx context.Context) (*table, error)
	// Touched reports whether another process may have changed our table since the last
	// call of Read. Commits do not count. It is cheap.
	Touched(ctx context.Context) (bool, error)
	// PruneClients deletes those elements of a clients map whose endpoint address is not
	// in keep.
	PruneClients(ctx context.Context, clients *set, keep map[string]bool) error
	// Liberal reports whether the kernel treats packets outside of the TCP window as
	// valid (net.netfilter.nf_conntrack_tcp_be_liberal).
	Liberal() bool
	// Watch calls touched whenever another process changes our table, until ctx ends.
	Watch(ctx context.Context, touched func()) error
	// Suspect names the process that changed our table last. It is empty if that is
	// unknown.
	Suspect() string
	// close releases the kernel resources of the Driver.
	close()
}

// Backend programs the table of one family. It implements reconcile.Backend.
type Backend struct {
	reconcile.Base
	family  service.Family
	options Options
	driver  Driver
	// have describes what the table holds. It is nil while that is unknown.
	have    *installed
	liberal bool // the latest result of Driver.Liberal
}

// effectiveOptions returns the options without those that have no effect with the
// kernel's present settings.
func (b *Backend) effectiveOptions() Options {
	o := b.options
	o.DropInvalid = o.DropInvalid && !b.liberal
	return o
}

// installed describes a table that matches the desired state, by the inputs that produced
// it. Only the kernel holds the elements themselves.
type installed struct {
	snapshot *service.Snapshot
	options  Options
	// slots holds the Ports whose endpoints are not simply in order.
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

// Plan implements reconcile.Backend. If no other process changed the table, the cost
// follows the difference between want and the last snapshot. Otherwise Plan reads the
// table.
func (b *Backend) Plan(ctx context.Context, want *service.Snapshot) (reconcile.Plan, error) {
	touched := true
	b.liberal = b.options.DropInvalid && b.driver.Liberal()
	if b.have != nil {
		var err error
		if touched, err = b.driver.Touched(ctx); err != nil {
			return nil, fmt.Errorf("ask for changes to table %s: %w", b.name(), err)
		}
		// An incomplete snapshot kept elements in place. They may be deleted now, or a new
		// Port may need them with other values.
		touched = touched || b.have.snapshot.Incomplete && want != b.have.snapshot ||
			b.have.snapshot.Node.NodePortsPending[b.family] && !want.Node.NodePortsPending[b.family]
	}
	var p *plan
	if touched {
		// The driver reports a change once. What the table holds is unknown until a plan
		// was applied.
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

// Cleanup implements reconcile.Backend. It deletes the table.
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

// Watch implements reconcile.Backend.
func (b *Backend) Watch(ctx context.Context, touched func()) error {
	return b.driver.Watch(ctx, touched)
}

// Forget implements reconcile.Backend.
func (b *Backend) Forget() { b.have = nil }

// Close implements reconcile.Backend.
func (b *Backend) Close() error {
	b.driver.close()
	return nil
}

func (b *Backend) name() string { return nft.FamilyName(b.family) + " " + b.options.table() }

// planIncremental plans the step from the installed snapshot to want, without reading the
// table.
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

// planSharedChanges adds units for the elements that several Ports share, as they
// follow from the other units of p.
func (p *plan) planSharedChanges() {
	p.sharedDelta = newShared()
	for _, u := range p.units {
		p.sharedDelta.replace(u.from.port, u.to.port)
	}
	var changes []sharedChange
	for k, n := range p.sharedDelta {
		have := p.next.shared[k]
		switch {
		case have == 0 && n > 0:
			changes = append(changes, sharedChange{k, addElement})
		case have > 0 && have+n == 0:
			changes = append(changes, sharedChange{k, delElement})
		}
	}
	p.units = appendShared(p.units, changes)
}
