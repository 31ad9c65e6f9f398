// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"

	"kubeproxy/common/condition"
	"kubeproxy/common/metrics"
	"kubeproxy/common/service"
	"kubeproxy/common/takeover"
	"kubeproxy/platform/mode"
)

// newTakeover returns the takeover for b, nil if no targets are known. It removes nothing
// before the first rounds.
func (p *proxy) newTakeover(ctx context.Context, b *mode.Backend, kick func()) (*takeover.Takeover, error) {
	if len(b.Owned) == 0 {
		return nil, nil
	}
	all, err := p.options.Targets(ctx, p.selected.Config)
	if err != nil {
		return nil, err
	}
	return takeover.New(takeover.Options{
		Family: b.Family, Targets: all, Owned: b.Owned, Audit: b.Audit, Enter: p.leaseEnter(), Log: p.log.WithValues("backend", b.String()),
		Condition:          func(text string) { p.showLeftovers(b.Family, text) },
		ReportForeignRules: func(what string) { p.reports.OtherProxies.ReportForeignRules(b.Family, what) },
		CountFailure:       func() { p.reports.Metrics.CleanupFailed(metrics.Backend{Mode: b.Mode, Family: b.Family}) },
		OnRemoved: func() {
			if b.Conntrack != nil {
				b.Conntrack.Recheck()
			}
			kick()
		},
	}), nil
}

// showUnprogrammed shows the leftovers of families that are not programmed.
func (p *proxy) showUnprogrammed(ctx context.Context) {
	unavailable := p.selected.Unavailable
	if len(unavailable) == 0 {
		return
	}
	all, err := p.options.Targets(ctx, p.selected.Config)
	if err != nil {
		p.log.Error(err, takeover.UnreadText)
	}
	var unprogrammed []takeover.Target
	for _, t := range all {
		if unavailable[t.Family] != "" {
			unprogrammed = append(unprogrammed, t)
		}
	}
	takeover.ReportUnprogrammed(ctx, p.log, unprogrammed, p.showLeftovers)
}

// showLeftovers updates the condition about what an earlier service proxy left.
func (p *proxy) showLeftovers(f service.Family, text string) {
	p.reports.Health.SetCondition(condition.Leftovers.Of(f.String()), text)
}
