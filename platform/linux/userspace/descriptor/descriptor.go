// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package descriptor describes mode userspace, and translates its settings.
package descriptor

import (
	"fmt"
	"io"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/config"
	iptablesmode "kubeproxy/platform/linux/iptables/descriptor"
	"kubeproxy/platform/linux/userspace"
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
		Needs:        "the same",
		Leaves:       "the same; connections pass through the process",
		Section:      iptablesmode.Section,
		Render:       render,
		Limits: func(want *service.Snapshot, f service.Family, _ mode.Rendering) (reconcile.Outcome, error) {
			return userspace.Lost(want, f), nil
		},
		Differences: func(want *service.Snapshot, c route.Conn, r mode.Rendering) ([]string, error) {
			return userspace.Differences(want, c, iptablesmode.Options(r.Config)), nil
		},
		System: system(),
	}
}

func options(c *config.Config) userspace.Options {
	o := userspace.Options{Rules: iptablesmode.Options(c), UDPIdle: c.UDPIdleTimeout}
	o.Ports.First, o.Ports.Last = c.Listeners()
	if a := c.ListenAddr(); a.IsValid() {
		o.Listen[service.FamilyOf(a)] = a
	}
	return o
}

func render(w io.Writer, want *service.Snapshot, r mode.Rendering) error {
	if r.Config.PortRange == "" {
		r.Note(fmt.Sprintf("the system chooses the ports of listeners; this output assumes %d and the following ones", userspace.AssumedPorts.First))
	}
	return userspace.Render(w, want, options(r.Config), r.Format)
}
