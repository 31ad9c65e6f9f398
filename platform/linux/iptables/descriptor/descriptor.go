// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package descriptor describes mode iptables, and translates its settings. Mode userspace
// shares the settings.
package descriptor

import (
	"io"

	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/config"
	"kubeproxy/platform/linux/iptables"
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
		MemoryShare: 4,
		Needs:       "the commands of iptables 1.6.2 or later, legacy or nft",
		Leaves:      "`KUBE-` chains in tables nat and filter",
		Section:     Section,
		Render:      render,
		Differences: func(want *service.Snapshot, c route.Conn, r mode.Rendering) ([]string, error) {
			return iptables.Differences(want, c, Options(r.Config)), nil
		},
		System: system(),
	}
}

// Section returns what section iptables of the configuration says.
func Section(c *config.Config) mode.Section {
	s := &c.IPTables
	return mode.Section{MinSyncPeriod: s.MinSyncPeriod.Duration, SyncPeriod: s.SyncPeriod.Duration, MasqueradeAll: s.MasqueradeAll}
}

// Options translates the settings of the configuration.
func Options(c *config.Config) iptables.Options {
	return iptables.Options{
		MasqueradeBit:      int(*c.IPTables.MasqueradeBit),
		LocalhostNodePorts: *c.IPTables.LocalhostNodePorts,
		DropInvalid:        !c.Conntrack.TCPBeLiberal,
	}
}

func render(w io.Writer, want *service.Snapshot, r mode.Rendering) error {
	return iptables.Render(w, want, Options(r.Config), r.Format)
}
