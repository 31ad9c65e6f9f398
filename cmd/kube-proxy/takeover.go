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

// prepareTakeover prepares b to take over from previous proxies, and logs what they left.
// It removes nothing; that begins after the first rounds.
func (o *statusReporter) prepareTakeover(ctx context.Context, x *selectedMode, b *backend, kick func()) error {
	if len(b.ownedTargets) == 0 {
		return nil
	}
	all, err := cleanupTargets(x.config)
	if err != nil {
		return err
	}
	b.takeover = takeover.New(takeover.Options{
		Family: b.family, Targets: all, Owned: b.ownedTargets, Audit: b.audit, Enter: o.leaseEnter(), Log: o.log.WithValues("backend", b.String()),
		Condition:          func(text string) { o.setLeftovers(b.family, text) },
		ReportForeignRules: func(what string) { o.reportForeignRules(b.family, what) },
		CountFailure:       func() { o.metrics.CleanupFailed(metrics.Backend{Mode: b.mode, Family: b.family}) },
		OnRemoved: func() {
			b.recheck.Store(true)
			kick()
		},
	})
	b.takeover.Discover(ctx)
	return nil
}

// reportUnprogrammed reports which families are not programmed, and the leftovers of
// these families.
func (o *statusReporter) reportUnprogrammed(ctx context.Context, x *selectedMode) {
	o.setUnavailable(x.unavailable)
	if len(x.unavailable) == 0 {
		return
	}
	all, err := cleanupTargets(x.config)
	if err != nil {
		o.log.Error(err, takeover.UnreadText)
	}
	var unprogrammed []takeover.Target
	for _, p := range all {
		if x.unavailable[p.Family] != "" {
			unprogrammed = append(unprogrammed, p)
		}
	}
	takeover.ReportUnprogrammed(ctx, o.log, unprogrammed, o.setLeftovers)
}

// setLeftovers updates the condition about what an earlier service proxy left.
func (o *statusReporter) setLeftovers(f service.Family, text string) {
	o.health.SetCondition(conditionLeftovers+f.String(), text)
}
