// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package descriptor

import (
	"context"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/common/takeover"
	"kubeproxy/config"
	"kubeproxy/platform/linux/nftables"
	"kubeproxy/platform/mode"
)

func system() *mode.System {
	return &mode.System{
		Probe:     func(_ *config.Config, f service.Family) error { return nftables.Probe(f) },
		Open:      open,
		Owned:     owned,
		Targets:   targets,
		ReadBack:  readBack,
		Conntrack: true,
	}
}

func open(_ context.Context, s mode.Setup, families []service.Family) ([]*mode.Backend, error) {
	return mode.Each(families, func(f service.Family) (*mode.Backend, error) {
		create := func() (reconcile.Backend, error) { return nftables.New(f, options(s.Config)) }
		b, err := create()
		x := &mode.Backend{
			Backend: b, Family: f, Audit: create,
			Tracer: func() (mode.Tracer, error) { return nftables.New(f, options(s.Config)) },
		}
		if s.Config.CountTraffic && err == nil {
			x.Traffic, err = nftables.NewCounters(f, options(s.Config))
		}
		return x, err
	})
}

func readBack(ctx context.Context, s mode.Setup, f service.Family, want *service.Snapshot) (held, wanted string, err error) {
	b, err := nftables.New(f, options(s.Config))
	if err != nil {
		return "", "", err
	}
	defer b.Close()
	return b.ReadBack(ctx, want)
}

func owned(c *config.Config, f service.Family) ([]string, error) {
	return []string{ownTable(c, f).String()}, nil
}

// ownTable is the table that the proxy of the name in c has.
func ownTable(c *config.Config, f service.Family) nftables.Leftovers {
	return nftables.Leftovers{Family: f, Table: nftables.TableOf(c.ProxyName)}
}

func targets(_ context.Context, s mode.Setup) ([]takeover.Target, error) {
	var all []takeover.Target
	for _, f := range service.Families {
		all = append(all, takeover.Target{Leftovers: ownTable(s.Config, f), Family: f})
		if s.Config.ProxyName == "" {
			all = append(all, takeover.Target{Leftovers: nftables.Leftovers{Family: f, Table: nftables.UpstreamTable}, Family: f, Upstream: true})
		}
	}
	return all, nil
}
