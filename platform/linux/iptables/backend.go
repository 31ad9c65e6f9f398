// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

// Driver is what Backend needs from the system, for one family. All methods except Watch
// are called from one goroutine at a time.
type Driver interface {
	// Restore applies text, in the format of iptables-restore --noflush. Each table is
	// changed completely or not at all. An error that is not caused by the text wraps
	// ErrBusy.
	Restore(ctx context.Context, text string) error
	// PieceRules returns how many rules of new chains one text should have, so that the
	// command needs little memory. 0 means any number.
	PieceRules() int
	// Save returns the output of iptables-save for the tables that exist.
	Save(ctx context.Context) (string, error)
	// Touched reports whether others may have changed the tables since the last call of
	// Save. Changes by Restore do not count. The call is cheap.
	Touched(ctx context.Context) (bool, error)
	// Dormant lists the tables of the role that have the flag dormant: the kernel
	// evaluates none of their rules (nft(8)). Activate clears the flag of one table.
	Dormant() ([]string, error)
	// SavedTables names the tables that Save prints, as explain.Walk has them.
	SavedTables() []string
	Activate(table string) error
	// RouteLocalnetEnabled reports whether the kernel routes packets to loopback
	// addresses. EnableRouteLocalnet and DisableRouteLocalnet switch that on and off. An
	// error of RouteLocalnetEnabled means that it cannot be switched on, or that the
	// setting cannot be read.
	RouteLocalnetEnabled() (bool, error)
	EnableRouteLocalnet() error
	DisableRouteLocalnet() error
	// Recent returns how long ago each client was entered in a list of the match recent,
	// empty if there is no such list.
	Recent(list string) (map[netip.Addr]time.Duration, error)
	// Liberal reports whether the kernel accepts packets outside of the TCP window of
	// their connection as valid (nf_conntrack_tcp_be_liberal, see
	// docs.kernel.org/networking/nf_conntrack-sysctl.html).
	Liberal() bool
	// Watch calls touched whenever others change the tables, until ctx is done.
	Watch(ctx context.Context, touched func()) error
	// Suspect names the process that changed our chains last. It is empty if that is
	// unknown.
	Suspect() string
	// Close releases the kernel resources of the Driver.
	Close()
}

// Backend keeps the chains of one family in the desired state. It implements
// reconcile.Backend.
type Backend struct {
	reconcile.Base
	layout
	driver Driver
	// installed is what the tables hold, nil if that is not known.
	installed *installed
	rules     reconcile.Rules // of the latest Apply
	counts    counts
	// localnetMarked means that localnetMark existed when the tables were last read.
	// localnetRouted means that the kernel routes loopback addresses.
	localnetMarked, localnetRouted bool
	localnetErr                    error // why it cannot route them
	degradedReason                 string
	pending                        pending
}

// installed describes chains that match a snapshot.
type installed struct {
	snapshot *service.Snapshot
	sums     map[id]sum
	// retained are entries of an earlier process that an incomplete snapshot does not
	// contain.
	retained []entry
}

// Plan implements reconcile.Backend. Without foreign changes its cost is proportional to
// the difference between want and the last snapshot, plus the number of Services if a
// Service was added or removed. After foreign changes it reads the tables.
func (b *Backend) Plan(ctx context.Context, want *service.Snapshot) (reconcile.Plan, error) {
	touched, settingsChanged := true, b.readSettings()
	if b.installed != nil {
		var err error
		if touched, err = b.driver.Touched(ctx); err != nil {
			return nil, fmt.Errorf("ask for changes to the tables: %w", err)
		}
		// A complete snapshot allows the removal of what the incomplete one retained.
		touched = touched || b.installed.snapshot.Incomplete && !want.Incomplete
	}
	var p *plan
	if touched {
		// The driver reports a change once. Until a plan has been applied, the contents
		// of the tables are unknown.
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
	// The caller may discard the plan while another process makes the same change.
	b.installed = nil
	switch {
	case p.Empty() && p.fullSync:
		b.recordInstalled(p.next)
	case p.Empty():
		b.installed = p.next
	}
	return p, nil
}

// maxReads limits how often the tables are read again because others change them at the
// same time.
const maxReads = 5

func (b *Backend) read(ctx context.Context) (*observed, error) {
	_, t, err := b.list(ctx)
	return t, err
}

// list reads the tables, as text and parsed.
func (b *Backend) list(ctx context.Context) (string, *observed, error) {
	for range maxReads {
		text, err := b.driver.Save(ctx)
		if err != nil {
			return "", nil, fmt.Errorf("read the tables of %s: %w", command(b.family), err)
		}
		if h := parse(text, b.options.Role); !h.interrupted {
			h.dormant, err = b.driver.Dormant()
			return text, h, err
		}
	}
	return "", nil, fmt.Errorf("read the tables of %s: others changed them meanwhile, %d times in a row", command(b.family), maxReads)
}

// Cleanup implements reconcile.Backend. It removes every chain that a service proxy of
// the node has made, and the rules that jump there. A chain that rules of others refer
// to is flushed and kept, and is reported as an error.
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

// Forget implements reconcile.Backend.
func (b *Backend) Forget() { b.installed = nil }

// Watch implements reconcile.Backend.
func (b *Backend) Watch(ctx context.Context, touched func()) error {
	return b.driver.Watch(ctx, touched)
}

// planChanges plans from the last snapshot to want without reading the tables.
// settingsChanged means that chains may differ although the snapshot is the same.
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

// dropRetained removes the keys in has from the retained entries: a Port of the snapshot
// has them now.
func (h *installed) dropRetained(has []key) {
	if len(has) == 0 || len(h.retained) == 0 {
		return
	}
	h.retained = slices.DeleteFunc(slices.Clone(h.retained), func(e entry) bool { return slices.Contains(has, e.key) })
}

// stageAll compares all chains of want with the sums in h.
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

// Close implements reconcile.Backend.
func (b *Backend) Close() error {
	b.driver.Close()
	return nil
}
