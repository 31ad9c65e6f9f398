// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"context"

	"kubeproxy/common/condition"
	"kubeproxy/common/service"
	"kubeproxy/common/takeover"
	"kubeproxy/config"
	"kubeproxy/platform/mode"
)

func system() *mode.System {
	return &mode.System{
		Probe: func(c *config.Config, f service.Family) error { return Probe(f, optionsOf(c)) },
		// The probe makes a virtual server and an interface.
		ProbeLeavesTraces: true,
		Open:              mode.OpenEach(newOf, complete),
		Owned:             owned,
		Targets:           targets,
		Prepare:           func(ctx context.Context, s mode.Setup) error { return Prepare(ctx, optionsOf(s.Config)) },
		Pending:           func(_ context.Context, s mode.Setup) ([]string, error) { return Pending(optionsOf(s.Config)) },
		ReadBack:          mode.ReadBack(newOf),
		SharedMark: func(c *config.Config, f service.Family) (string, error) {
			return SharedMark(f, int(*c.IPTables.MasqueradeBit))
		},
		Conntrack: true,
	}
}

func newOf(c *config.Config, f service.Family) (*Backend, error) { return New(f, optionsOf(c)) }

func complete(s mode.Setup, x *mode.Backend, b *Backend) (err error) {
	b.showSharedMark = s.Condition(condition.SharedMark.Of(x.Family.String()))
	if s.Config.CountTraffic {
		x.Traffic, err = NewCounters(x.Family)
	}
	return err
}

func owned(_ *config.Config, f service.Family) ([]string, error) {
	return []string{Leftovers{Family: f}.String()}, nil
}

var (
	_ takeover.Draining = Leftovers{}
	_ takeover.Draining = Upstream{}
)

func targets(_ context.Context, s mode.Setup) ([]takeover.Target, error) {
	exclude := optionsOf(s.Config).Exclude
	var all []takeover.Target
	for _, f := range service.Families {
		all = append(all,
			takeover.Target{Leftovers: Leftovers{Family: f, Exclude: exclude}, Family: f, IPVS: true},
			takeover.Target{Leftovers: Upstream{Family: f, Exclude: exclude}, Family: f, IPVS: true, Upstream: true})
	}
	return all, nil
}
