// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/netip"
	"os"
	"time"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/common/track"
	"kubeproxy/config"
	"kubeproxy/platform/linux/iptables"
	"kubeproxy/platform/linux/ipvs"
	"kubeproxy/platform/linux/nftables"
	"kubeproxy/platform/linux/userspace"
)

// trackOptions translates the settings of the configuration about traffic.
func trackOptions(c *config.Config, node string) track.Options {
	ports := c.NodePorts()
	o := track.Options{
		NodeName:          node,
		NodePorts:         ports.Prefixes,
		NodePortsPrimary:  ports.Primary,
		MasqueradeAll:     c.IPTables.MasqueradeAll,
		IgnoreExternalIPs: c.IgnoreExternalIPs(),
		ProxyName:         c.ProxyName,
		Listed:            c.OS == config.Windows,
	}
	if modeOf(c) == config.NFTables {
		o.MasqueradeAll = c.NFTables.MasqueradeAll
	}
	if ip := c.NodeIP(); ip.IsValid() {
		o.NodeIPs = []netip.Addr{ip}
	}
	switch c.DetectLocalMode {
	case config.ClusterCIDR, "": // the empty mode occurs on Windows, which has no default
		o.Pods = service.LocalPods{Prefixes: c.ClusterCIDRs()}
	case config.NodeCIDR:
		o.PodsFromNode = true
	case config.BridgeInterface:
		o.Pods = service.LocalPods{Interface: c.DetectLocal.BridgeInterface}
	case config.InterfaceNamePrefix:
		o.Pods = service.LocalPods{InterfacePrefix: c.DetectLocal.InterfaceNamePrefix}
	}
	return o
}

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

// syncPeriods returns the least and the longest time between two rounds in the mode of c.
// The iptables section applies to Windows as well.
func syncPeriods(c *config.Config) (minPeriod, maxPeriod time.Duration) {
	switch modeOf(c) {
	case config.NFTables:
		return c.NFTables.MinSyncPeriod.Duration, c.NFTables.SyncPeriod.Duration
	case config.IPVS:
		return c.IPVS.MinSyncPeriod.Duration, c.IPVS.SyncPeriod.Duration
	}
	return c.IPTables.MinSyncPeriod.Duration, c.IPTables.SyncPeriod.Duration
}

// defaultMinSync is the default of minSyncPeriod. It bounds the work of rounds, but most
// rounds cost next to nothing. So the default bounds the cost of rounds instead; any
// other value is used as it is.
const defaultMinSync, defaultCostFactor = time.Second, 50

func timingOf(c *config.Config) reconcile.Timing {
	minPeriod, maxPeriod := syncPeriods(c)
	p := reconcile.Timing{MinInterval: minPeriod, Resync: maxPeriod, Retry: reconcile.Backoff{First: firstRetry, Max: maxPeriod}}
	if minPeriod == defaultMinSync {
		p.CostFactor = defaultCostFactor
	}
	return p
}

// nodeName returns the name of the own Node.
func nodeName(c *config.Config) (string, error) {
	host := ""
	if c.HostnameOverride == "" {
		var err error
		if host, err = os.Hostname(); err != nil {
			return "", fmt.Errorf("find the node's name: %w; set --hostname-override", err)
		}
	}
	name := c.NodeName(host)
	if name == "" {
		return "", fmt.Errorf("find the node's name: the host has none; set --hostname-override")
	}
	return name, nil
}
