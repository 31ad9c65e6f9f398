// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"kubeproxy/common/lease"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/report"
	"kubeproxy/common/service"
	"kubeproxy/common/takeover"
	"kubeproxy/common/track"
	"kubeproxy/platform/mode"
)

// member is a backend with what runs beside it.
type member struct {
	*mode.Backend
	loop     *reconcile.Loop
	takeover *takeover.Takeover // nil if there is nothing to take over from
}

// The pauses of repairs after foreign changes, see Drift of reconcile.Loop. Repairs take
// at most a twentieth of the time.
const (
	driftPause      = 100 * time.Millisecond
	driftPauseMax   = time.Second
	driftCostFactor = 20
)

// newMembers returns a member for each backend, and looks for what an earlier proxy left.
func (p *proxy) newMembers(ctx context.Context) ([]*member, error) {
	var all []*member
	for _, b := range p.selected.Backends {
		m, err := p.newMember(ctx, b)
		if err != nil {
			return nil, err
		}
		p.progress.expect(b.String())
		all = append(all, m)
	}
	return all, nil
}

func (p *proxy) newMember(ctx context.Context, b *mode.Backend) (*member, error) {
	l := reconcile.NewLoop(b.WithLocalhost())
	l.Latest = p.tracker.Latest
	timing := timingOf(p.selected.Descriptor, p.selected.Config)
	l.MinInterval, l.Burst, l.Resync, l.Retry = timing.MinInterval, 10, timing.Resync, timing.Retry
	l.CostFactor, l.Grace = timing.CostFactor, b.Grace
	l.Drift, l.DriftCostFactor = reconcile.Backoff{First: driftPause, Max: driftPauseMax}, driftCostFactor
	l.Enter = p.leaseEnter()
	t, err := p.newTakeover(ctx, b, l.Kick)
	if err != nil {
		return nil, err
	}
	m := &member{Backend: b, loop: l, takeover: t}
	l.Standby = func(want *service.Snapshot) {
		if t != nil {
			t.Standby()
		}
		p.reports.Standby(b.Family, want)
	}
	rounds := p.reports.Sequence(p.afterRounds(ctx, m))
	l.Report = func(r reconcile.Result) { rounds.Report(report.Round{Mode: b.Mode, Family: b.Family, Result: r}) }
	p.tracker.Subscribe(track.Listener{Changed: func() {
		p.reports.Queued(b.Mode, b.Family)
		l.SnapshotChanged()
	}})
	if t != nil {
		t.Discover(ctx)
	}
	return m, nil
}

// afterRounds returns what follows the rounds of m.
func (p *proxy) afterRounds(ctx context.Context, m *member) report.Backend {
	r := report.Backend{
		Log:     p.log.WithValues("backend", m.String()),
		InForce: func() { p.progress.done(m.String()) },
	}
	if m.takeover != nil {
		r.Takeover = m.takeover.RecordRound
	}
	if m.Conntrack != nil {
		r.CleanConntrack = func(r reconcile.Result) (int, error) {
			// A cleanup that has begun is finished even if ctx ends.
			flows, again, err := m.Conntrack.Clean(context.WithoutCancel(ctx), r)
			if again > 0 {
				time.AfterFunc(again, m.loop.Kick)
			}
			return flows, err
		}
	}
	return r
}

// start starts the goroutines of m in group.
func (m *member) start(ctx context.Context, group *errgroup.Group) {
	group.Go(func() error { return m.loop.Run(ctx) })
	if m.takeover != nil {
		group.Go(func() error {
			m.takeover.Run(ctx)
			return nil
		})
	}
	group.Go(func() error { return m.watch(ctx) })
}

func loopsOf(members []*member) []*reconcile.Loop {
	var all []*reconcile.Loop
	for _, m := range members {
		all = append(all, m.loop)
	}
	return all
}

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
