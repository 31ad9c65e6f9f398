// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"

	"kubeproxy/common/metrics"
	"kubeproxy/common/service"
	"kubeproxy/common/takeover"
)

// conditionLeftovers is the name of the condition about what an earlier service proxy
// left. The family follows.
const conditionLeftovers = "leftovers-"

// newTakeover returns what takes over from previous proxies for b, nil if no targets are
// known. It removes nothing before the first rounds.
func (p *proxy) newTakeover(b *backend, kick func()) (*takeover.Takeover, error) {
	if len(b.ownedTargets) == 0 {
		return nil, nil
	}
	all, err := cleanupTargets(p.selected.config)
	if err != nil {
		return nil, err
	}
	return takeover.New(takeover.Options{
		Family: b.family, Targets: all, Owned: b.ownedTargets, Audit: b.audit, Enter: p.leaseEnter(), Log: p.log.WithValues("backend", b.String()),
		Condition:          func(text string) { p.showLeftovers(b.family, text) },
		ReportForeignRules: func(what string) { p.reports.OtherProxies.ReportForeignRules(b.family, what) },
		CountFailure:       func() { p.reports.Metrics.CleanupFailed(metrics.Backend{Mode: b.mode, Family: b.family}) },
		OnRemoved: func() {
			b.recheck.Store(true)
			kick()
		},
	}), nil
}

// showUnprogrammed shows the leftovers of families that are not programmed.
func (p *proxy) showUnprogrammed(ctx context.Context) {
	unavailable := p.selected.unavailable
	if len(unavailable) == 0 {
		return
	}
	all, err := cleanupTargets(p.selected.config)
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
	p.reports.Health.SetCondition(conditionLeftovers+f.String(), text)
}
