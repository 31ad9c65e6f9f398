// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"strings"

	"k8s.io/klog/v2"

	"kubeproxy/config"
)

// logStart logs the decisions of the start, and where each comes from.
func logStart(log klog.Logger, o *Options, process Process, x *Selected) {
	c := x.Config
	name, _ := NodeName(c) // its error was handled before
	var families []string
	for _, b := range x.Backends {
		families = append(families, b.Family.String())
	}
	args := []any{
		"version", process.Build.GitVersion, "mode", x.Name, "modeFrom", x.Origin, "families", strings.Join(families, ", "),
		"node", name, "nodeFrom", o.nameOrigin(c),
		"pods", podsText(c), "podsFrom", o.podsOrigin(c),
	}
	if ip := c.NodeIP(); ip.IsValid() {
		args = append(args, "nodeIP", ip.String(), "nodeIPFrom", o.settingOrigin("bind-address"))
	}
	log.Info("Starting", args...)
}

// nameOrigin returns where the node's name comes from.
func (o *Options) nameOrigin(c *config.Config) string {
	if c.HostnameOverride == "" {
		return "the host's name"
	}
	return o.settingOrigin("hostname-override")
}

// settingOrigin returns where a setting comes from that has a flag and no default.
func (o *Options) settingOrigin(flag string) string {
	if o.FlagSet != nil && o.FlagSet.Changed(flag) {
		return "--" + flag
	}
	return cmp.Or(o.Flags.Config, "the default")
}

// settingOrDefaultOrigin returns where a setting comes from that has a flag and a
// default.
func (o *Options) settingOrDefaultOrigin(flag string) string {
	switch {
	case o.FlagSet != nil && o.FlagSet.Changed(flag):
		return "--" + flag
	case o.Flags.Config != "":
		return o.Flags.Config + " or the default"
	}
	return "the default"
}

// podsOrigin returns where the setting in podsText comes from.
func (o *Options) podsOrigin(c *config.Config) string {
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
		return "not distinguished, because no cluster CIDR is configured"
	}
	return "sources in clusterCIDR " + c.ClusterCIDR
}

// LogConfigIssues logs settings that may surprise the author of the configuration.
func LogConfigIssues(log klog.Logger, c *config.Config) {
	for _, w := range c.Warnings {
		log.Info("Warning: mistake in the configuration: "+w.Error(), "strict", "--strict-config ends the process instead")
	}
	for _, o := range c.Overrides {
		log.Info(o.String(), "flag", o.Flag, "path", o.Path, "from", o.From, "to", o.To)
	}
	for _, n := range c.Notes {
		log.Info("Note on the configuration: " + n.String())
	}
}
