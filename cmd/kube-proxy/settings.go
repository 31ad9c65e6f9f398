// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/netip"

	"kubeproxy/common/service"
	"kubeproxy/config"
	"kubeproxy/platform/linux/iptables"
	"kubeproxy/platform/linux/ipvs"
	"kubeproxy/platform/linux/nftables"
	"kubeproxy/platform/linux/userspace"
)

func nftablesOptions(c *config.Config) nftables.Options {
	return nftables.Options{Table: nftables.TableOf(c.ProxyName), MasqueradeBit: int(*c.NFTables.MasqueradeBit), DropInvalid: !c.Conntrack.TCPBeLiberal}
}

func iptablesOptions(c *config.Config) iptables.Options {
	return iptables.Options{
		MasqueradeBit:      int(*c.IPTables.MasqueradeBit),
		LocalhostNodePorts: *c.IPTables.LocalhostNodePorts,
		DropInvalid:        !c.Conntrack.TCPBeLiberal,
	}
}

func userspaceOptions(c *config.Config) userspace.Options {
	o := userspace.Options{Rules: iptablesOptions(c), UDPIdle: c.UDPIdleTimeout}
	o.Ports.First, o.Ports.Last = c.Listeners()
	if a := c.ListenAddr(); a.IsValid() {
		o.Listen[service.FamilyOf(a)] = a
	}
	return o
}

// ipvsOptions takes the masquerade settings from the iptables section, as kube-proxy
// does.
func ipvsOptions(c *config.Config) ipvs.Options {
	o := ipvs.Options{
		MasqueradeBit: int(*c.IPTables.MasqueradeBit),
		Scheduler:     c.IPVS.Scheduler,
		SyncPeriod:    c.IPVS.SyncPeriod.Duration,
		StrictARP:     c.IPVS.StrictARP,
		TCP:           c.IPVS.TCPTimeout.Duration,
		TCPFin:        c.IPVS.TCPFinTimeout.Duration,
		UDP:           c.IPVS.UDPTimeout.Duration,
	}
	for _, s := range c.IPVS.ExcludeCIDRs {
		if p, err := netip.ParsePrefix(s); err == nil { // validation has refused others
			o.Exclude = append(o.Exclude, p.Masked())
		}
	}
	return o
}
