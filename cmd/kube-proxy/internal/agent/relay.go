// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	"kubeproxy/common/service"
	"kubeproxy/platform/mode"
)

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
	standby := p.lease != nil && p.lease.State().Standby
	relay := backends[0].Relay // it counts the connections of all families
	if relay == nil {
		log.Info("Stopped; the rules stay in force", "mode", name)
		return
	}
	drain := func() {
		log.Info("Stopping; connections through this process may end", "mode", name,
			"within", time.Until(deadline).Round(time.Millisecond).String(), "connections", relay.Connections())
		forEachBackend(backends, deadline, func(ctx context.Context, b *mode.Backend) bool {
			b.Relay.Drain(ctx)
			return true
		})
	}
	if standby { // another process owns the rules and goes on
		drain()
		log.Info("Stopped; another service proxy programs this node", "mode", name, "brokenOff", relay.Connections())
		return
	}
	handed := forEachBackend(backends, deadline.Add(handOverTime-StopTime), func(ctx context.Context, b *mode.Backend) bool { return handOver(ctx, log, b) })
	drain()
	what := "Stopped; new connections to Services go to endpoints without a process"
	if !handed {
		what = "Stopped; until the next start, new connections to Services are refused, except where the log says that they are led past this process"
	}
	log.Info(what, "mode", name, "brokenOff", relay.Connections())
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
	loss, err := b.Relay.HandOver(ctx)
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

// logUnreached returns a function that logs connections that a relay could not serve.
func logUnreached(log klog.Logger) func(service.Family, service.PortName, int, error) {
	return func(f service.Family, name service.PortName, clients int, err error) {
		log.Info("Warning: connections to a Service fail, because its endpoints do not answer",
			"service", name.String(), "protocol", name.Protocol.String(), "family", f.String(), "clients", clients, "err", err)
	}
}
