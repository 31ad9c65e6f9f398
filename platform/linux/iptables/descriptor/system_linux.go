// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package descriptor

import (
	"context"

	"kubeproxy/common/metrics"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/common/takeover"
	"kubeproxy/config"
	"kubeproxy/platform/linux/iptables"
	"kubeproxy/platform/mode"
)

func system() *mode.System {
	return &mode.System{
		Probe:     func(c *config.Config, f service.Family) error { return iptables.Probe(f, Options(c)) },
		Open:      open,
		Owned:     Owned,
		Targets:   targets,
		ReadBack:  readBack,
		Conntrack: true,
	}
}

func open(_ context.Context, s mode.Setup, families []service.Family) ([]*mode.Backend, error) {
	return mode.Each(families, func(f service.Family) (*mode.Backend, error) {
		b, err := iptables.New(f, Options(s.Config))
		if err != nil {
			return nil, err
		}
		x := &mode.Backend{
			Backend: b, Family: f,
			Audit:  func() (reconcile.Backend, error) { return iptables.New(f, Options(s.Config)) },
			Tracer: func() (mode.Tracer, error) { return iptables.New(f, Options(s.Config)) },
			Packets: func(ctx context.Context) (metrics.Packets, error) {
				p, err := b.Packets(ctx)
				return metrics.Packets(p), err
			},
		}
		if s.Config.CountTraffic {
			x.Traffic = iptables.NewCounters(f, Options(s.Config))
		}
		return x, nil
	})
}

func readBack(ctx context.Context, s mode.Setup, f service.Family, want *service.Snapshot) (held, wanted string, err error) {
	b, err := iptables.New(f, Options(s.Config))
	if err != nil {
		return "", "", err
	}
	defer b.Close()
	return b.ReadBack(ctx, want)
}

// Owned names the targets that rounds of modes iptables and userspace keep in order: the
// chains in the variant of iptables that this node uses.
func Owned(_ *config.Config, f service.Family) ([]string, error) {
	v, err := iptables.NodeVariant(f)
	return []string{iptables.Leftovers{Variant: v, Family: f}.String()}, err
}

func targets(context.Context, mode.Setup) ([]takeover.Target, error) {
	var all []takeover.Target
	for _, f := range service.Families {
		for _, v := range iptables.Variants {
			all = append(all, takeover.Target{Leftovers: iptables.Leftovers{Variant: v, Family: f}, Family: f})
		}
	}
	return all, nil
}
