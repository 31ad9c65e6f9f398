// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package descriptor

import (
	"context"

	"kubeproxy/common/metrics"
	"kubeproxy/common/service"
	"kubeproxy/common/takeover"
	"kubeproxy/config"
	"kubeproxy/platform/linux/iptables"
	"kubeproxy/platform/mode"
)

func system() *mode.System {
	return &mode.System{
		Probe:     func(c *config.Config, f service.Family) error { return iptables.Probe(f, Options(c)) },
		Open:      mode.OpenEach(create, addCounters),
		Owned:     Owned,
		Targets:   targets,
		ReadBack:  mode.ReadBack(create),
		Conntrack: true, Translates: true,
	}
}

func create(c *config.Config, f service.Family) (*iptables.Backend, error) {
	return iptables.New(f, Options(c))
}

func addCounters(s mode.Setup, x *mode.Backend, b *iptables.Backend) error {
	x.Packets = func(ctx context.Context) (metrics.Packets, error) {
		p, err := b.Packets(ctx)
		return metrics.Packets(p), err
	}
	if s.Config.CountTraffic {
		x.Traffic = iptables.NewCounters(x.Family, Options(s.Config))
	}
	return nil
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
