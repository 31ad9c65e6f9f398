// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"strings"

	"k8s.io/klog/v2"

	"kubeproxy/config"
)

// logStart logs the decisions of the start, and where each comes from.
func logStart(log klog.Logger, o *options, x *selectedMode) {
	c := x.config
	name, _ := nodeName(c) // its error was handled before
	var families []string
	for _, b := range x.backends {
		families = append(families, b.family.String())
	}
	args := []any{
		"version", buildInfo().Version, "mode", x.backends[0].mode, "modeFrom", x.origin, "families", strings.Join(families, ", "),
		"node", name, "nodeFrom", o.nameOrigin(c),
		"pods", podsText(c), "podsFrom", o.podsOrigin(c),
	}
	if ip := c.NodeIP(); ip.IsValid() {
		args = append(args, "nodeIP", ip.String(), "nodeIPFrom", o.settingOrigin("bind-address"))
	}
	log.Info("Starting", args...)
}

// nameOrigin returns where the node's name comes from.
func (o *options) nameOrigin(c *config.Config) string {
	if c.HostnameOverride == "" {
		return "the host's name"
	}
	return o.settingOrigin("hostname-override")
}

// settingOrigin returns where a setting comes from that has a flag and no default.
func (o *options) settingOrigin(flag string) string {
	if o.flags != nil && o.flags.Changed(flag) {
		return "--" + flag
	}
	return cmp.Or(o.config.Config, "the default")
}

// settingOrDefaultOrigin returns where a setting comes from that has a flag and a
// default.
func (o *options) settingOrDefaultOrigin(flag string) string {
	switch {
	case o.flags != nil && o.flags.Changed(flag):
		return "--" + flag
	case o.config.Config != "":
		return o.config.Config + " or the default"
	}
	return "the default"
}

// podsOrigin returns where the setting in podsText comes from.
func (o *options) podsOrigin(c *config.Config) string {
	if (c.DetectLocalMode == config.ClusterCIDR || c.DetectLocalMode == "") && c.ClusterCIDR != "" {
		return o.settingOrigin("cluster-cidr")
	}
	return o.settingOrDefaultOrigin("detect-local-mode")
}

// podsText describes how pods on this node are distinguished from other clients.
func podsText(c *config.Config) string {
	switch c.DetectLocalMode {
	case config.NodeCIDR:
		return "sources in the Node's podCIDRs"
	case config.BridgeInterface:
		return "what enters through bridge " + c.DetectLocal.BridgeInterface
	case config.InterfaceNamePrefix:
		return "what enters through interfaces named " + c.DetectLocal.InterfaceNamePrefix + "*"
	}
	if c.ClusterCIDR == "" {
		return "not told apart, as no cluster CIDR is configured"
	}
	return "sources in clusterCIDR " + c.ClusterCIDR
}
