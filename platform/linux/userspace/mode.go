// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"fmt"

	"kubeproxy/common/metrics"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/config"
	"kubeproxy/platform/linux/iptables"
	"kubeproxy/platform/mode"
)

// Mode describes mode userspace.
func Mode() mode.Descriptor {
	return mode.Descriptor{
		Mode: config.Mode{
			Name: config.Userspace, OS: config.Linux, Localhost: config.LocalhostRules,
			Settings: []string{
				"iptables.masqueradeBit", "iptables.localhostNodePorts", "iptables.syncPeriod", "iptables.minSyncPeriod", "portRange", "udpIdleTimeout",
			},
		},
		DefaultRank:  3,
		FallbackRank: 3,
		Relays:       true,
		XTables:      true,
		MetricGroups: []string{metrics.IPTables, metrics.Conntrack},
		Needs:        "the same",
		Leaves:       "the same chains; connections pass through the process",
		Section:      iptables.SectionOf,
		Render:       render,
		Limits: func(want *service.Snapshot, f service.Family, _ mode.Rendering) (reconcile.Outcome, error) {
			return Lost(want, f), nil
		},
		Differences: func(want *service.Snapshot, c route.Conn, r mode.Rendering) ([]string, error) {
			return Differences(want, c, iptables.OptionsOf(r.Config)), nil
		},
		System: system(),
	}
}

func optionsOf(c *config.Config) Options {
	o := Options{Rules: iptables.OptionsOf(c), UDPIdle: c.UDPIdleTimeout}
	o.Ports.First, o.Ports.Last = c.Listeners()
	if a := c.ListenAddr(); a.IsValid() {
		o.Listen[service.FamilyOf(a)] = a
	}
	return o
}

func render(want *service.Snapshot, r mode.Rendering) (reconcile.Objects, any, error) {
	if r.Config.PortRange == "" {
		r.Note(fmt.Sprintf("the system chooses the ports of listeners; this output assumes %d and the following ones", AssumedPorts.First))
	}
	all, doc := Render(want, optionsOf(r.Config))
	return all, doc, nil
}
