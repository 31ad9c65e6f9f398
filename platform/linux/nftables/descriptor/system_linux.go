// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package descriptor

import (
	"context"

	"kubeproxy/common/service"
	"kubeproxy/common/takeover"
	"kubeproxy/config"
	"kubeproxy/platform/linux/nftables"
	"kubeproxy/platform/mode"
)

func system() *mode.System {
	return &mode.System{
		Probe:     func(_ *config.Config, f service.Family) error { return nftables.Probe(f) },
		Open:      mode.OpenEach(create, addCounters),
		Owned:     owned,
		Targets:   targets,
		ReadBack:  mode.ReadBack(create),
		Conntrack: true, Translates: true,
	}
}

func create(c *config.Config, f service.Family) (*nftables.Backend, error) {
	return nftables.New(f, options(c))
}

func addCounters(s mode.Setup, x *mode.Backend, _ *nftables.Backend) (err error) {
	x.Unrelayed = func() (uint64, error) { return nftables.Unrelayed(x.Family, options(s.Config)) }
	if s.Config.CountTraffic {
		x.Traffic, err = nftables.NewCounters(x.Family, options(s.Config))
	}
	return err
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
