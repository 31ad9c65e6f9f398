// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"kubeproxy/common/metrics"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/config"
	"kubeproxy/platform/mode"
)

// Mode describes mode nftables.
func Mode() mode.Descriptor {
	return mode.Descriptor{
		Mode: config.Mode{
			Name: config.NFTables, OS: config.Linux, Localhost: config.LocalhostListeners,
			Settings: []string{
				"nftables.masqueradeBit", "nftables.masqueradeAll", "nftables.syncPeriod", "nftables.minSyncPeriod", "conntrack.tcpBeLiberal",
			},
		},
		DefaultRank:  1,
		Consistent:   true,
		MetricGroups: []string{metrics.NFTables, metrics.Conntrack},
		Named:        "the table has the name in its own",
		Needs:        "nftables in the kernel",
		Leaves:       "tables `ip kube-services` and `ip6 kube-services`",
		Section:      sectionOf,
		Render:       render,
		System:       system(),
	}
}

func sectionOf(c *config.Config) mode.Section {
	s := &c.NFTables
	return mode.Section{MinSyncPeriod: s.MinSyncPeriod.Duration, SyncPeriod: s.SyncPeriod.Duration, MasqueradeAll: s.MasqueradeAll}
}

func optionsOf(c *config.Config) Options {
	return Options{Table: TableOf(c.ProxyName), MasqueradeBit: int(*c.NFTables.MasqueradeBit), DropInvalid: !c.Conntrack.TCPBeLiberal, CountConnections: c.CountTraffic}
}

func render(want *service.Snapshot, r mode.Rendering) (reconcile.Objects, any, error) {
	all, doc := Render(want, optionsOf(r.Config))
	return all, doc, nil
}
