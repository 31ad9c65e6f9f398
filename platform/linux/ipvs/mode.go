// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"kubeproxy/common/metrics"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/config"
	"kubeproxy/platform/mode"
)

// Mode describes mode ipvs.
func Mode() mode.Descriptor {
	return mode.Descriptor{
		Mode: config.Mode{
			Name: config.IPVS, OS: config.Linux, Localhost: config.LocalhostListeners,
			Settings: []string{
				"iptables.masqueradeBit", "iptables.masqueradeAll", "ipvs.syncPeriod", "ipvs.minSyncPeriod", "ipvs.scheduler", "ipvs.excludeCIDRs",
				"ipvs.strictARP", "ipvs.tcpTimeout", "ipvs.tcpFinTimeout", "ipvs.udpTimeout",
			},
		},
		FallbackRank: 1,
		XTables:      true,
		Routes:       true,
		MetricGroups: []string{metrics.Conntrack},
		// See kubernetes/enhancements#5495.
		Deprecated: "mode ipvs is deprecated in Kubernetes and may be removed in a future version: use mode nftables, or iptables where the kernel is older than 5.13",
		Needs:      "IPVS, dummy interfaces and ipsets in the kernel, and the commands of iptables",
		Leaves: "virtual servers, routes to Service addresses, ipsets `KUBE-VS-` and `KUBE-VS6-`, " +
			"chains `KUBE-VS-` and `KUBE-VA-` in tables nat, filter and mangle",
		Section: sectionOf,
		Render:  render,
		Differences: func(want *service.Snapshot, c route.Conn, _ mode.Rendering) ([]string, error) {
			return Differences(want, c), nil
		},
		System: system(),
	}
}

// sectionOf takes the masquerade settings from section iptables, as kube-proxy does.
func sectionOf(c *config.Config) mode.Section {
	return mode.Section{MinSyncPeriod: c.IPVS.MinSyncPeriod.Duration, SyncPeriod: c.IPVS.SyncPeriod.Duration, MasqueradeAll: c.IPTables.MasqueradeAll}
}

func optionsOf(c *config.Config) Options {
	o := Options{
		MasqueradeBit: int(*c.IPTables.MasqueradeBit),
		Scheduler:     c.IPVS.Scheduler,
		SyncPeriod:    c.IPVS.SyncPeriod.Duration,
		StrictARP:     c.IPVS.StrictARP,
		TCP:           c.IPVS.TCPTimeout.Duration,
		TCPFin:        c.IPVS.TCPFinTimeout.Duration,
		UDP:           c.IPVS.UDPTimeout.Duration,
	}
	for _, s := range c.IPVS.ExcludeCIDRs {
		if p, err := service.ParsePrefix(s); err == nil { // validation has refused others
			o.Exclude = append(o.Exclude, p.Masked())
		}
	}
	return o
}

func render(want *service.Snapshot, r mode.Rendering) (reconcile.Objects, any, error) {
	all, doc := Render(want, optionsOf(r.Config))
	return all, doc, nil
}
