// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"net/netip"
	"os"
	"time"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/common/track"
	"kubeproxy/config"
	"kubeproxy/platform/mode"
)

// TrackOptions translates the settings of the configuration about traffic in mode d.
func TrackOptions(d mode.Descriptor, c *config.Config, node string) track.Options {
	ports := c.NodePorts()
	o := track.Options{
		NodeName:          node,
		NodePorts:         ports.Prefixes,
		NodePortsPrimary:  ports.Primary,
		MasqueradeAll:     d.Section(c).MasqueradeAll,
		IgnoreExternalIPs: c.IgnoreExternalIPs(),
		ProxyName:         c.ProxyName,
		Listed:            d.ListedEndpoints,
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

// defaultMinSync is the default of minSyncPeriod. It bounds the work of rounds, but most
// rounds cost next to nothing. So the default bounds the cost of rounds instead; any
// other value is used as it is.
const defaultMinSync, defaultCostFactor = time.Second, 50

// timingOf returns the times of rounds in mode d.
func timingOf(d mode.Descriptor, c *config.Config) reconcile.Timing {
	s := d.Section(c)
	p := reconcile.Timing{MinInterval: s.MinSyncPeriod, Resync: s.SyncPeriod, Retry: reconcile.Backoff{First: firstRetry, Max: s.SyncPeriod}}
	if s.MinSyncPeriod == defaultMinSync {
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
