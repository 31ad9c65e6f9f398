// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	"kubeproxy/common/metrics"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/userspace"
)

// relay is a Backend that connections pass through this process with.
type relay interface {
	// Tracked returns the snapshot that flows which the kernel knows of follow,
	// to ports of this process for instance.
	Tracked() *service.Snapshot
	// Observe passes on what the relay refuses and why, nothing most of the time:
	// in words that name nobody, and with names.
	Observe(report func(text, detail string))
	// ObserveUnreached has report told, now and then, of clients that were not
	// served because of endpoints.
	ObserveUnreached(report func(name service.PortName, clients int, err error))
	// HandOver leads new connections past this process, for the time without
	// it, and returns what clients lose by that.
	HandOver(ctx context.Context) (loss string, err error)
	// Drain waits for the connections that are open now, as long as ctx lasts.
	Drain(ctx context.Context)
	// Connections returns how many end with this process, of all families.
	Connections() int
}

// withTrackedSnapshot is settle for the snapshot that flows follow.
func withTrackedSnapshot(b *backend, clean func(context.Context, *service.Snapshot, reconcile.Result) (int, error)) func(context.Context, *service.Snapshot, reconcile.Result) (int, error) {
	r, ok := b.Backend.(relay)
	if !ok {
		return clean
	}
	return func(ctx context.Context, _ *service.Snapshot, result reconcile.Result) (int, error) {
		return clean(ctx, r.Tracked(), result)
	}
}

// observeRelay has what a relay lacks be a condition, and logs who is not served.
func (o *statusReporter) observeRelay(x *selectedMode) {
	x.reportRelayShortage = o.reportRelayShortage
	for i, b := range x.backends {
		r, ok := b.Backend.(relay)
		if !ok {
			return
		}
		r.ObserveUnreached(logUnreached(o.log, b.family))
		if i == 0 { // what one family lacks, both do
			r.Observe(o.reportRelayShortage)
		}
	}
}

// relayMetrics is what all relays have of the process's files and refused, nil without
// one.
func relayMetrics(backends []*backend) *metrics.Relay {
	r, ok := backends[0].Backend.(interface{ Use() userspace.Use })
	if !ok {
		return nil
	}
	use := r.Use()
	all := &metrics.Relay{Open: use.Open, Limit: use.Limit, Refused: map[string]uint64{}}
	for _, reason := range userspace.Reasons() {
		all.Refused[string(reason)] = use.Refused[reason]
	}
	return all
}

func (o *statusReporter) reportRelayShortage(text, detail string) {
	o.health.SetDetailedCondition("relay", text, detail)
	if text != "" {
		o.log.Info("Warning: " + detail)
	}
}

// The times of a stop.
const (
	// stopTime is how long a stop takes at most from the signal on, if nothing hangs.
	// It is below stopLimit by what closing takes.
	stopTime = 4 * time.Second
	// handOverTime is how much of it connections may take to be led past this
	// process. Those through it may go on for the rest.
	handOverTime = 3 * time.Second
)

// shutDown says what becomes of connections now that the proxy ends. Where they
// pass through it, new ones go without it from now on, and old ones may end
// first.
func (o *statusReporter) shutDown(ctx context.Context, log klog.Logger, backends []*backend) {
	mode, deadline := backends[0].mode, stopDeadline(ctx)
	standby := o.lease != nil && o.lease.Standby()
	var relays []relay
	for _, b := range backends {
		if r, ok := b.Backend.(relay); ok {
			relays = append(relays, r)
		}
	}
	if len(relays) == 0 {
		log.Info("Stopped; the rules stay in force", "mode", mode)
		return
	}
	drain := func() {
		log.Info("Stopping; connections through this process may end", "mode", mode,
			"within", time.Until(deadline).Round(time.Millisecond).String(), "connections", relays[0].Connections())
		forEachBackend(backends, deadline, func(ctx context.Context, b *backend) bool {
			b.Backend.(relay).Drain(ctx)
			return true
		})
	}
	if standby { // the rules are another process's, which goes on
		drain()
		log.Info("Stopped; another service proxy programs this node", "mode", mode, "brokenOff", relays[0].Connections())
		return
	}
	handed := forEachBackend(backends, deadline.Add(handOverTime-stopTime), func(ctx context.Context, b *backend) bool { return handOver(ctx, log, b) })
	drain()
	what := "Stopped; new connections to Services go to endpoints without a process"
	if !handed {
		what = "Stopped; until the next start, new connections to Services are refused, but where the log says they are led past this process"
	}
	log.Info(what, "mode", mode, "brokenOff", relays[0].Connections())
}

// forEachBackend does something with all backends at the same time, until then at most, and
// reports that all did it.
func forEachBackend(backends []*backend, deadline time.Time, do func(context.Context, *backend) bool) bool {
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	var all sync.WaitGroup
	var failed atomic.Bool
	for _, b := range backends {
		all.Go(func() {
			if !do(ctx, b) {
				failed.Store(true)
			}
		})
	}
	all.Wait()
	return !failed.Load()
}

// handOver has the relay b be passed by, and says how that went.
func handOver(ctx context.Context, log klog.Logger, b *backend) bool {
	start := time.Now()
	loss, err := b.Backend.(relay).HandOver(ctx)
	log = log.WithValues("backend", b.String())
	switch {
	case err != nil:
		log.Error(err, "Connections cannot be led past this process; new ones are refused from its end to the next start")
		return false
	case loss != "":
		log.Info("New connections go straight to endpoints until the next start, without "+loss, "took", time.Since(start))
	default:
		log.Info("New connections go straight to endpoints until the next start", "took", time.Since(start))
	}
	return true
}
