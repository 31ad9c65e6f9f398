// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package modes

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/conntrack"
	"kubeproxy/platform/mode"
)

// conntrackCleaner is a mode.Conntrack.
type conntrackCleaner struct {
	flows   *conntrack.Reconciler
	family  service.Family
	log     klog.Logger
	recheck atomic.Bool
	// cleaned is the snapshot of the last Clean, nil before the first one. retiring are the
	// frontends that the rules refuse until the next Clean. leftovers are those of them that
	// an earlier process left.
	cleaned             *service.Snapshot
	retiring, leftovers []*service.Port
	// tracked, if set, returns the snapshot that entries follow instead of the one of the
	// round. The endpoints of a relay are ports of this process.
	tracked func() *service.Snapshot
}

func newConntrackCleaner(ctx context.Context, b *mode.Backend) *conntrackCleaner {
	c := &conntrackCleaner{flows: &conntrack.Reconciler{Driver: conntrack.Netlink{}, Family: b.Family}, family: b.Family, log: klog.FromContext(ctx)}
	if b.Relay != nil {
		c.tracked = b.Relay.Tracked
	}
	return c
}

// Recheck implements mode.Conntrack.
func (c *conntrackCleaner) Recheck() { c.recheck.Store(true) }

// Clean implements mode.Conntrack.
func (c *conntrackCleaner) Clean(ctx context.Context, r reconcile.Result) (int, time.Duration, error) {
	now := r.Snapshot
	if c.tracked != nil {
		now = c.tracked()
	}
	if c.recheck.Swap(false) || len(r.Drift) > 0 { // foreign rules may have created entries
		c.flows.Resync()
	}
	n, err := c.flows.Sync(ctx, now)
	if removed := slices.Concat(r.Removed, c.leftovers); len(removed) > 0 && !errors.Is(err, errors.ErrUnsupported) {
		removedFlows, removeErr := c.flows.Reconcile(ctx, removedRules(removed), now)
		n, err = n+removedFlows, errors.Join(err, removeErr)
	}
	if n > 0 {
		c.log.V(2).Info("Removed stale flows", "family", c.family.String(), "flows", n)
	}
	if r.Err != nil { // a port that failed keeps its old rules, which may still create entries
		c.flows.Resync()
	}
	again := c.flows.ResyncAfter()
	if len(c.retiring) > 0 {
		again = 1
	}
	c.cleaned, c.retiring, c.leftovers = r.Snapshot, nil, nil
	return n, again, err
}

// retiring is a backend that has frontends refuse their clients until Clean has deleted
// their entries. Only then it removes them, see conntrack.Retiring.
type retiring struct {
	reconcile.Backend
	cleaner *conntrackCleaner
}

// Plan implements reconcile.Backend.
func (b retiring) Plan(ctx context.Context, want *service.Snapshot) (reconcile.Plan, error) {
	c := b.cleaner
	c.retiring, c.leftovers = conntrack.Retiring(c.cleaned, want, c.family), nil
	p, err := b.Backend.Plan(ctx, and(want, c.retiring))
	if err != nil {
		return nil, err
	}
	if c.leftovers = conntrack.RetiringLeftovers(p.Outcome().Removed, and(want, c.retiring)); len(c.leftovers) == 0 {
		return p, nil
	}
	c.retiring = append(c.retiring, c.leftovers...)
	return b.Backend.Plan(ctx, and(want, c.retiring))
}

// and returns s with more ports.
func and(s *service.Snapshot, ports []*service.Port) *service.Snapshot {
	if len(ports) == 0 {
		return s
	}
	var changes []service.Change
	for _, p := range ports {
		changes = append(changes, service.Change{New: p})
	}
	return s.With(s.Generation, s.Node, changes)
}

// removedRules returns conntrack rules for frontends that an earlier process left and
// that this process does not know.
func removedRules(ports []*service.Port) []conntrack.Rule {
	var rules []conntrack.Rule
	for _, p := range ports {
		rules = append(rules, conntrack.Changes(p, nil)...)
	}
	return rules
}
