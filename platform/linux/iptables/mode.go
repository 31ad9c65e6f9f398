// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"kubeproxy/common/metrics"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/config"
	"kubeproxy/platform/mode"
)

// Mode describes mode iptables.
func Mode() mode.Descriptor {
	return mode.Descriptor{
		Mode: config.Mode{
			Name: config.IPTables, OS: config.Linux, Localhost: config.LocalhostRules,
			Settings: []string{
				"iptables.masqueradeBit", "iptables.masqueradeAll", "iptables.localhostNodePorts", "iptables.syncPeriod", "iptables.minSyncPeriod",
				"conntrack.tcpBeLiberal",
			},
		},
		DefaultRank:  2,
		FallbackRank: 2,
		// iptables-restore needs several times what the proxy does, in the same cgroup:
		// iptables-nft about 150 MB for 5,000 Services of ten endpoints.
		MemoryShare:  4,
		XTables:      true,
		MetricGroups: []string{metrics.IPTables, metrics.Conntrack},
		Needs:        "the commands of iptables 1.6.2 or later, legacy or nft",
		Leaves:       "`KUBE-` chains in tables nat and filter",
		Section:      SectionOf,
		Render:       render,
		Differences: func(want *service.Snapshot, c route.Conn, r mode.Rendering) ([]string, error) {
			return Differences(want, c, OptionsOf(r.Config)), nil
		},
		System: system(),
	}
}

// SectionOf returns what section iptables of the configuration says.
func SectionOf(c *config.Config) mode.Section {
	s := &c.IPTables
	return mode.Section{MinSyncPeriod: s.MinSyncPeriod.Duration, SyncPeriod: s.SyncPeriod.Duration, MasqueradeAll: s.MasqueradeAll}
}

// OptionsOf translates the settings of the configuration.
func OptionsOf(c *config.Config) Options {
	return Options{
		MasqueradeBit:      int(*c.IPTables.MasqueradeBit),
		LocalhostNodePorts: *c.IPTables.LocalhostNodePorts,
		DropInvalid:        !c.Conntrack.TCPBeLiberal,
	}
}

func render(want *service.Snapshot, r mode.Rendering) (reconcile.Objects, any, error) {
	all, doc := Render(want, OptionsOf(r.Config))
	return all, doc, nil
}
