// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"fmt"
	"slices"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

// Driver is what Backend asks from the system, for one family. Its methods
// are called from one goroutine at a time, but for Watch.
type Driver interface {
	// Restore makes text, as iptables-restore --noflush takes it, take effect:
	// the part for one table together, or not at all. An error that is no
	// fault of the text is an errBusy.
	Restore(ctx context.Context, text string) error
	// Save returns what iptables-save prints of the tables that exist.
	Save(ctx context.Context) (string, error)
	// Touched reports that others may have changed the tables since the last
	// call of Save, not counting Restores. It is cheap.
	Touched(ctx context.Context) (bool, error)
	// Dormant lists the tables of the role that the kernel lets no packet pass,
	// whatever rules they have. Activate ends that for one.
	Dormant() ([]string, error)
	Activate(table string) error
	// RouteLocalnetEnabled reports that packets to loopback addresses may be routed,
	// EnableRouteLocalnet sees to it, and DisableRouteLocalnet to the contrary. The error of
	// RouteLocalnetEnabled is why they cannot be, or why that is not known.
	RouteLocalnetEnabled() (bool, error)
	EnableRouteLocalnet() error
	DisableRouteLocalnet() error
	// Liberal reports that the kernel takes packets outside of the window of
	// their connection as valid.
	Liberal() bool
	// Watch calls touched whenever others change the tables, until ctx ends.
	Watch(ctx context.Context, touched func()) error
}

// Backend keeps the chains of one family. It implements reconcile.Backend.
type Backend struct {
	layout
	driver Driver
	// installed is what the tables hold, nil while that is not known.
	installed *installed
	tally     Tally
	counts    counts
	// localnetMarked says that localnetMark is there, or was when it was last looked
	// for, and routed that loopback addresses are.
	localnetMarked, localnetRouted bool
	localnetErr                    error // why they cannot be
	degradedReason                 string
	pending                        pending
}

var _ reconcile.Watcher = (*Backend)(nil)

// installed describes chains that are as we want them.
type installed struct {
	snapshot *service.Snapshot
	sums     map[id]sum
	// retained are entries of an earlier process that a partial snapshot does not
	// have.
	retained []entry
}

// Plan implements reconcile.Backend. Without foreign changes its cost follows
// the difference between want and the last snapshot, and the number of
// Services where one of them came or went; else the tables are read.
func (b *Backend) Plan(ctx context.Context, want *service.Snapshot) (reconcile.Plan, error) {
	touched, settingsChanged := true, b.readSettings()
	if b.installed != nil {
		var err error
		if touched, err = b.driver.Touched(ctx); err != nil {
			return nil, fmt.Errorf("ask for changes to the tables: %w", err)
		}
		// What a partial snapshot left in force may go now.
		touched = touched || b.installed.snapshot.Incomplete && !want.Incomplete
	}
	var p *plan
	if touched {
		// The driver tells of a change once, so until a plan was applied
		// nobody knows what the tables hold.
		have := b.installed
		b.installed = nil
		t, err := b.read(ctx)
		if err != nil {
			return nil, err
		}
		p = b.planAll(t, have, b.withPendingNodePorts(want, t))
	} else {
		p = b.planChanges(b.withPendingNodePorts(want, nil), settingsChanged)
	}
	b.planLocalnet(p)
	// Who does not apply a plan may see somebody else do it.
	b.installed = nil
	switch {
	case p.Empty() && p.fullSync:
		b.recordInstalled(p.next)
	case p.Empty():
		b.installed = p.next
	}
	return p, nil
}

// maxReads bounds how often the tables are read until nobody disturbs that.
const maxReads = 5

func (b *Backend) read(ctx context.Context) (*observed, error) {
	for range maxReads {
		text, err := b.driver.Save(ctx)
		if err != nil {
			return nil, fmt.Errorf("read the tables of %s: %w", command(b.family), err)
		}
		if h := parse(text, b.options.Role); !h.interrupted {
			h.dormant, err = b.driver.Dormant()
			return h, err
		}
	}
	return nil, fmt.Errorf("read the tables of %s: others changed them meanwhile, %d times in a row", command(b.family), maxReads)
}

// Cleanup implements reconcile.Backend: it removes every chain that a service
// proxy of the node has made, and the rules that lead there. A chain that
// somebody else refers to is emptied, stays, and is an error.
func (b *Backend) Cleanup(ctx context.Context) error {
	b.installed = nil
	t, err := b.read(ctx)
	if err != nil {
		return err
	}
	if _, routed := t.chains[localnetMark]; routed {
		if err := b.driver.DisableRouteLocalnet(); err != nil {
			return fmt.Errorf("stop to route loopback addresses: %w", err)
		}
	}
	b.localnetMarked = false
	c := t.extraneous(nil)
	if !c.empty() {
		if err := b.driver.Restore(ctx, c.text()); err != nil {
			return fmt.Errorf("remove the chains of %s: %w", command(b.family), err)
		}
	}
	return t.inUse()
}

// Forget implements reconcile.Forgetter.
func (b *Backend) Forget() { b.installed = nil }

// Suspect implements reconcile.SuspectFinder.
func (b *Backend) Suspect() string {
	if d, ok := b.driver.(interface{ Suspect() string }); ok {
		return d.Suspect()
	}
	return ""
}

// Watch implements reconcile.Watcher.
func (b *Backend) Watch(ctx context.Context, touched func()) error {
	return b.driver.Watch(ctx, touched)
}

// planChanges plans from one snapshot to the next. turned says that chains of the
// same snapshot may differ.
func (b *Backend) planChanges(want *service.Snapshot, settingsChanged bool) *plan {
	h := b.installed
	p := &plan{backend: b, from: h, next: h}
	if want == h.snapshot && !settingsChanged {
		return p
	}
	p.next = &installed{snapshot: want, sums: h.sums, retained: h.retained}
	if h.snapshot.Node != want.Node || settingsChanged {
		p.stage = b.stageAll(h, want)
		return p
	}
	s := &stage{layout: b.layout, sums: h.sums, keepDeleted: len(h.retained) > 0}
	same := true
	for c := range service.Diff(h.snapshot, want, b.family) {
		same = same && b.sameEntries(c, want.Node)
		s.changePort(c, want.Node)
		p.next.dropRetained(b.keys(c.New, want.Node))
	}
	if !same {
		s.ensureShared(b.shared(want.Node, want.Ports(b.family), p.next.retained))
	}
	p.stage = s
	return p
}

// dropRetained drops from what an earlier process left what a Port has now.
func (h *installed) dropRetained(has []key) {
	if len(has) == 0 || len(h.retained) == 0 {
		return
	}
	h.retained = slices.DeleteFunc(slices.Clone(h.retained), func(e entry) bool { return slices.Contains(has, e.key) })
}

// stageAll compares all chains of want with those that h notes.
func (b *Backend) stageAll(h *installed, want *service.Snapshot) *stage {
	s := &stage{layout: b.layout, sums: h.sums, keepDeleted: len(h.retained) > 0}
	for c := range service.Diff(h.snapshot, want, b.family) {
		s.changePort(c, want.Node)
	}
	for p := range want.Ports(b.family) {
		s.ensure(b.portChains(p, want.Node)...)
	}
	s.ensureShared(b.shared(want.Node, want.Ports(b.family), h.retained))
	return s
}

// Close gives back what a Backend holds of the kernel's. The chains stay.
func (b *Backend) Close() error {
	if d, ok := b.driver.(interface{ close() }); ok {
		d.close()
	}
	return nil
}
