// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package descriptor

import (
	"context"

	"kubeproxy/common/service"
	"kubeproxy/common/takeover"
	"kubeproxy/config"
	"kubeproxy/platform/linux/ipvs"
	"kubeproxy/platform/mode"
)

func system() *mode.System {
	return &mode.System{
		Probe: func(c *config.Config, f service.Family) error { return ipvs.Probe(f, options(c)) },
		// The probe makes a virtual server and an interface.
		ProbeLeavesTraces: true,
		Open:              mode.OpenEach(create, addTraffic),
		Owned:             owned,
		Targets:           targets,
		Prepare:           func(ctx context.Context, s mode.Setup) error { return ipvs.Prepare(ctx, options(s.Config)) },
		Pending:           func(_ context.Context, s mode.Setup) ([]string, error) { return ipvs.Pending(options(s.Config)) },
		ReadBack:          mode.ReadBack(create),
		Conntrack:         true,
	}
}

func create(c *config.Config, f service.Family) (*ipvs.Backend, error) {
	return ipvs.New(f, options(c))
}

func addTraffic(s mode.Setup, x *mode.Backend, _ *ipvs.Backend) (err error) {
	if s.Config.CountTraffic {
		x.Traffic, err = ipvs.NewCounters(x.Family)
	}
	return err
}

func owned(_ *config.Config, f service.Family) ([]string, error) {
	return []string{ipvs.Leftovers{Family: f}.String()}, nil
}

var (
	_ takeover.Draining = ipvs.Leftovers{}
	_ takeover.Draining = ipvs.Upstream{}
)

func targets(_ context.Context, s mode.Setup) ([]takeover.Target, error) {
	exclude := options(s.Config).Exclude
	var all []takeover.Target
	for _, f := range service.Families {
		all = append(all,
			takeover.Target{Leftovers: ipvs.Leftovers{Family: f, Exclude: exclude}, Family: f, IPVS: true},
			takeover.Target{Leftovers: ipvs.Upstream{Family: f, Exclude: exclude}, Family: f, IPVS: true, Upstream: true})
	}
	return all, nil
}
