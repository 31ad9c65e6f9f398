// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package modes

import (
	"context"
	"errors"
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
	if len(r.Removed) > 0 && !errors.Is(err, errors.ErrUnsupported) {
		removedFlows, removeErr := c.flows.Reconcile(ctx, removedRules(r.Removed), now)
		n, err = n+removedFlows, errors.Join(err, removeErr)
	}
	if n > 0 {
		c.log.V(2).Info("Removed stale flows", "family", c.family.String(), "flows", n)
	}
	if r.Err != nil { // a port that failed keeps its old rules, which may still create entries
		c.flows.Resync()
	}
	return n, c.flows.ResyncAfter(), err
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
