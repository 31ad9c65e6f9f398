// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"

	"kubeproxy/common/lease"
	"kubeproxy/common/reconcile"
)

// newLease returns the lease that this process shares with other proxies of the same
// Services, nil where there is no transport for one.
func (s System) newLease(proxyName string, as lease.Identity) *lease.Lease {
	transport, self := s.LeaseTransport(proxyName)
	if transport == nil {
		return nil
	}
	self.Mode, self.Version = as.Mode, as.Version
	return lease.New(transport, self)
}

// leaseEnter returns the function that admits this process to program the node, nil if it
// always may.
func (p *proxy) leaseEnter() func(context.Context) (func(), bool) {
	if p.lease == nil {
		return nil
	}
	return p.lease.Enter
}

// runLease runs the lease until end is called. Call end after the last change to the
// node: another process may program from then on.
func (p *proxy) runLease(ctx context.Context, loops []*reconcile.Loop) (end func()) {
	if p.lease == nil {
		return func() {}
	}
	standby := false
	changed := func(s lease.State) {
		if ctx.Err() != nil {
			return // the process is stopping
		}
		p.reports.OtherProxies.LeaseChanged(s)
		if s.Standby == standby {
			return // loops wait for the first state, and only Standby concerns them
		}
		standby = s.Standby
		for _, l := range loops {
			l.Kick()
		}
	}
	p.lease.Fault = p.reports.Health.Fault
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.lease.Run(running, changed)
	}()
	return func() {
		cancel()
		<-ended
		p.reports.OtherProxies.Stop()
	}
}
