// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"

	"kubeproxy/common/service"
	"kubeproxy/common/takeover"
	"kubeproxy/config"
	"kubeproxy/platform/mode"
)

func system() *mode.System {
	return &mode.System{
		Probe:     func(_ *config.Config, f service.Family) error { return Probe(f) },
		Open:      mode.OpenEach(newOf, complete),
		Owned:     owned,
		Targets:   targets,
		ReadBack:  mode.ReadBack(newOf),
		Conntrack: true, Translates: true,
	}
}

func newOf(c *config.Config, f service.Family) (*Backend, error) { return New(f, optionsOf(c)) }

func complete(s mode.Setup, x *mode.Backend, _ *Backend) (err error) {
	x.Unrelayed = func() (uint64, error) { return Unrelayed(x.Family, optionsOf(s.Config)) }
	x.LetGo = ownTable(s.Config, x.Family).letGo
	if s.Config.CountTraffic {
		x.Traffic, err = NewCounters(x.Family, optionsOf(s.Config))
	}
	return err
}

func owned(c *config.Config, f service.Family) ([]string, error) {
	return []string{ownTable(c, f).String()}, nil
}

// ownTable is the table that the proxy of the name in c has.
func ownTable(c *config.Config, f service.Family) Leftovers {
	return Leftovers{Family: f, Table: TableOf(c.ProxyName)}
}

func targets(_ context.Context, s mode.Setup) ([]takeover.Target, error) {
	var all []takeover.Target
	for _, f := range service.Families {
		all = append(all, takeover.Target{Leftovers: ownTable(s.Config, f), Family: f})
		if s.Config.ProxyName == "" {
			all = append(all, takeover.Target{Leftovers: Leftovers{Family: f, Table: UpstreamTable}, Family: f, Upstream: true})
		}
	}
	return all, nil
}
