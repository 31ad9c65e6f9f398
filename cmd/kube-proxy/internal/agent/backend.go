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

// ConntrackCleaner deletes conntrack entries that a round for a snapshot made stale. After
// the pause again, if that is not 0, it is to be called once more.
type ConntrackCleaner func(context.Context, *service.Snapshot, reconcile.Result) (flows int, again time.Duration, err error)

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

// plan plans for b and for the listeners of NodePorts on its loopback address.
func (b *Backend) plan(ctx context.Context, want *service.Snapshot) (reconcile.Plan, error) {
	if b.Localhost == nil {
		return b.Backend.Plan(ctx, want)
	}
	return reconcile.PlanBoth(ctx, want, b.Backend, b.Localhost)
}

// planRecorder records the snapshot of the latest round.
type planRecorder struct {
	*Backend
	desired *service.Snapshot
}

// Plan implements reconcile.Backend.
func (k *planRecorder) Plan(ctx context.Context, want *service.Snapshot) (reconcile.Plan, error) {
	k.desired = want
	return k.plan(ctx, want)
}

// SetResync implements reconcile.ResyncSetter.
func (k *planRecorder) SetResync(d time.Duration) {
	if b, ok := k.Backend.Backend.(reconcile.ResyncSetter); ok {
		b.SetResync(d)
	}
}

// Forget implements reconcile.Forgetter.
func (k *planRecorder) Forget() {
	if b, ok := k.Backend.Backend.(reconcile.Forgetter); ok {
		b.Forget()
	}
}

// Suspect implements reconcile.SuspectFinder.
func (k *planRecorder) Suspect() string {
	if b, ok := k.Backend.Backend.(reconcile.SuspectFinder); ok {
		return b.Suspect()
	}
	return ""
}

// watchPause is the pause after a failure of the watch.
const watchPause = 5 * time.Second

// watch reports foreign changes to b's rules until ctx ends. Without a watch, only a
// resync finds drift, so its failure does not end the proxy.
func watch(ctx context.Context, b *Backend, w reconcile.Watcher, changed func()) error {
	for ctx.Err() == nil {
		err := w.Watch(ctx, changed)
		if ctx.Err() != nil {
			return nil
		}
		klog.FromContext(ctx).Error(err, "Watching the rules for changes by others broke off", "backend", b.String(), "retry", watchPause)
		select {
		case <-ctx.Done():
		case <-time.After(watchPause):
		}
		changed()
	}
	return nil
}
