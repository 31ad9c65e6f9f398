// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	"kubeproxy/common/metrics"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/userspace"
	"kubeproxy/platform/mode"
)

// relay is a Backend whose connections pass through this process.
type relay interface {
	// Tracked returns the snapshot that conntrack entries follow. Its endpoints may be
	// ports of this process.
	Tracked() *service.Snapshot
	// Observe reports what the relay refuses and why, empty most of the time: text
	// without names, detail with names.
	Observe(report func(text, detail string))
	// ObserveUnreached reports from time to time the clients that were not served because
	// endpoints failed.
	ObserveUnreached(report func(name service.PortName, clients int, err error))
	// HandOver redirects new connections past this process while it is away. It returns
	// what clients lose by that.
	HandOver(ctx context.Context) (loss string, err error)
	// Drain waits until the open connections end or ctx ends.
	Drain(ctx context.Context)
	// Connections returns how many connections of all families end with this process.
	Connections() int
}

// observeRelay shows the shortage of a relay as a condition, and logs clients that are
// not served.
func (p *proxy) observeRelay() {
	p.selected.reportRelayShortage = p.showRelayShortage
	for i, b := range p.selected.Backends {
		r, ok := b.Backend.(relay)
		if !ok {
			return
		}
		r.ObserveUnreached(LogUnreached(p.log, b.Family))
		if i == 0 { // a shortage of one family applies to both
			r.Observe(p.showRelayShortage)
		}
	}
}

// relayMetrics sums the open files and the refused connections of all relays, nil without
// a relay.
func relayMetrics(backends []*mode.Backend) *metrics.Relay {
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

func (p *proxy) showRelayShortage(text, detail string) {
	p.reports.Health.SetDetailedCondition("relay", text, detail)
	if text != "" {
		p.log.Info("Warning: " + detail)
	}
}

// The times of a stop.
const (
	// StopTime bounds a stop from the signal on, if no call hangs.
	StopTime = 4 * time.Second
	// handOverTime is the part of StopTime for the redirection of new connections. Open
	// connections may go on for the rest.
	handOverTime = 3 * time.Second
)

// shutDown handles connections when the proxy ends. In modes with a relay, it redirects
// new ones past the process, and lets open ones end first.
func (p *proxy) shutDown(ctx context.Context) {
	log, backends := p.log, p.selected.Backends
	name, deadline := string(p.selected.Name), p.process.StopBegan(ctx).Add(StopTime)
	standby := p.lease != nil && p.lease.Standby()
	var relays []relay
	for _, b := range backends {
		if r, ok := b.Backend.(relay); ok {
			relays = append(relays, r)
		}
	}
	if len(relays) == 0 {
		log.Info("Stopped; the rules stay in force", "mode", name)
		return
	}
	drain := func() {
		log.Info("Stopping; connections through this process may end", "mode", name,
			"within", time.Until(deadline).Round(time.Millisecond).String(), "connections", relays[0].Connections())
		forEachBackend(backends, deadline, func(ctx context.Context, b *mode.Backend) bool {
			b.Backend.(relay).Drain(ctx)
			return true
		})
	}
	if standby { // another process owns the rules and goes on
		drain()
		log.Info("Stopped; another service proxy programs this node", "mode", name, "brokenOff", relays[0].Connections())
		return
	}
	handed := forEachBackend(backends, deadline.Add(handOverTime-StopTime), func(ctx context.Context, b *mode.Backend) bool { return handOver(ctx, log, b) })
	drain()
	what := "Stopped; new connections to Services go to endpoints without a process"
	if !handed {
		what = "Stopped; until the next start, new connections to Services are refused, but where the log says they are led past this process"
	}
	log.Info(what, "mode", name, "brokenOff", relays[0].Connections())
}

// forEachBackend calls do with all backends in parallel. It returns whether all calls
// returned true by the deadline.
func forEachBackend(backends []*mode.Backend, deadline time.Time, do func(context.Context, *mode.Backend) bool) bool {
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

// handOver redirects new connections past the relay b, and logs the result.
func handOver(ctx context.Context, log klog.Logger, b *mode.Backend) bool {
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

// LogUnreached logs who is not served by a relay.
func LogUnreached(log klog.Logger, f service.Family) func(service.PortName, int, error) {
	return func(name service.PortName, clients int, err error) {
		log.Info("Warning: clients of a Service are turned away, as its endpoints do not answer",
			"service", name.String(), "protocol", name.Protocol.String(), "family", f.String(), "clients", clients, "err", err)
	}
}
