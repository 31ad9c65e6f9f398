// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	"kubeproxy/common/metrics"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/report"
	"kubeproxy/common/service"
	"kubeproxy/config"
	"kubeproxy/platform/linux/userspace"
)

// Backend is one dataplane for one family, with the functions and the state that
// accompany it.
type Backend struct {
	reconcile.Backend
	Mode   string
	Family service.Family
	// CleanConntrack, if set, follows each round whose rules are at least partly in
	// force.
	CleanConntrack ConntrackCleaner
	// RegisterMetrics, if set, receives the metrics in which the mode counts what only it
	// does.
	RegisterMetrics func(*metrics.Metrics)
	// Conditions, if set, carries the conditions that the dataplane reports.
	Conditions *report.DataplaneConditions
	// Grace bounds what a round may still take at a stop, 0 for no bound.
	Grace time.Duration
	// Recheck makes CleanConntrack check entries again that were right before.
	Recheck atomic.Bool
	// OwnedTargets names the cleanup targets that rounds keep in order. Audit, if set,
	// returns a backend that can verify that they do.
	OwnedTargets []string
	Audit        func() (reconcile.Backend, error)
	// Localhost, if set, holds the listeners of NodePorts on a loopback address.
	Localhost *userspace.Localhost
}

// ConntrackCleaner deletes conntrack entries that a round made stale. After the pause
// again, if that is not 0, it is to be called once more.
type ConntrackCleaner func(context.Context, reconcile.Result) (flows int, again time.Duration, err error)

// String returns mode and family.
func (b *Backend) String() string { return b.Mode + " " + b.Family.String() }

// firstRetry is the pause after a first failed round. It doubles from there to the sync
// period.
const firstRetry = 250 * time.Millisecond

// Selected is a mode that works here, with what came of it.
type Selected struct {
	Config   *config.Config // with the mode
	Origin   string         // who selected it
	Backends []*Backend     // at least one
	// Unavailable holds why a family has no backend.
	Unavailable map[service.Family]string
	// ReportRelayShortage, if set, is called when listeners on loopback addresses lack a
	// resource.
	ReportRelayShortage func(text, detail string)
}

// withLocalhost returns the dataplane of b together with the listeners of NodePorts on its
// loopback address.
func (b *Backend) withLocalhost() reconcile.Backend {
	if b.Localhost == nil {
		return b.Backend
	}
	return reconcile.Both(b.Backend, b.Localhost)
}

// watchPause is the pause after a failure of the watch.
const watchPause = 5 * time.Second

// watch tells the loop of foreign changes to m's rules until ctx ends. Without a watch,
// only a resync finds drift, so its failure does not end the proxy.
func (m *member) watch(ctx context.Context) error {
	for ctx.Err() == nil {
		err := m.loop.Backend.Watch(ctx, m.loop.DataplaneChanged)
		if ctx.Err() != nil {
			return nil
		}
		klog.FromContext(ctx).Error(err, "Watching the rules for changes by others broke off", "backend", m.String(), "retry", watchPause)
		select {
		case <-ctx.Done():
		case <-time.After(watchPause):
		}
		m.loop.DataplaneChanged()
	}
	return nil
}
