// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package descriptor

import (
	"context"

	"kubeproxy/common/reconcile"
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
		Open:              open,
		Owned:             owned,
		Targets:           targets,
		ReadBack:          readBack,
		Conntrack:         true,
	}
}

func open(_ context.Context, s mode.Setup, families []service.Family) ([]*mode.Backend, error) {
	return mode.Each(families, func(f service.Family) (*mode.Backend, error) {
		create := func() (reconcile.Backend, error) { return ipvs.New(f, options(s.Config)) }
		b, err := create()
		x := &mode.Backend{
			Backend: b, Family: f, Audit: create,
			Tracer: func() (mode.Tracer, error) { return ipvs.New(f, options(s.Config)) },
		}
		if s.Config.CountTraffic && err == nil {
			x.Traffic, err = ipvs.NewCounters(f)
		}
		return x, err
	})
}

func readBack(ctx context.Context, s mode.Setup, f service.Family, want *service.Snapshot) (held, wanted string, err error) {
	b, err := ipvs.New(f, options(s.Config))
	if err != nil {
		return "", "", err
	}
	defer b.Close()
	return b.ReadBack(ctx, want)
}

func owned(_ *config.Config, f service.Family) ([]string, error) {
	return []string{ipvs.Leftovers{Family: f}.String()}, nil
}

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
