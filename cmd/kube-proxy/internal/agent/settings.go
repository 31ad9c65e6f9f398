// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"net/netip"
	"os"
	"time"

	"k8s.io/kube-proxy/config/v1alpha1"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/common/track"
	"kubeproxy/config"
)

// TrackOptions translates the settings of the configuration about traffic.
func TrackOptions(c *config.Config, node string) track.Options {
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

// modeOf returns the mode that c configures. Without one, the settings of the best mode of
// Linux count.
func modeOf(c *config.Config) v1alpha1.ProxyMode {
	if c.Mode == "" && c.OS == config.Linux {
		return config.NFTables
	}
	return c.Mode
}

// SyncPeriods returns the least and the longest time between two rounds in the mode of c.
// The iptables section applies to Windows as well.
func SyncPeriods(c *config.Config) (minPeriod, maxPeriod time.Duration) {
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
	minPeriod, maxPeriod := SyncPeriods(c)
	p := reconcile.Timing{MinInterval: minPeriod, Resync: maxPeriod, Retry: reconcile.Backoff{First: firstRetry, Max: maxPeriod}}
	if minPeriod == defaultMinSync {
		p.CostFactor = defaultCostFactor
	}
	return p
}

// NodeName returns the name of the own Node.
func NodeName(c *config.Config) (string, error) {
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
