// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/kube-proxy/config/v1alpha1"

	"kubeproxy/common/suggest"
)

// Feature is a feature gate of the proxy.
type Feature struct {
	Name  string
	Stage string // ALPHA, BETA, DEPRECATED, or empty for a stable one
	// Enabled is the state in effect, which may differ from the configured one.
	Enabled bool
}

// feature is a gate that affects the proxy.
type feature struct {
	Feature        // the default
	why     string // why it cannot be changed, or empty
}

const alwaysOn = "is always on"

// features lists them by name.
var features = []feature{
	{Feature{"AllowServiceExternalIPs", "DEPRECATED", true}, ""},
	{Feature{"ComponentFlagz", "", true}, alwaysOn},
	{Feature{"ComponentStatusz", "", true}, alwaysOn},
	{Feature{"KubeProxyIPVS", "DEPRECATED", true}, ""},
	{Feature{"KubeProxyNFTablesLocalhostNodePorts", "ALPHA", true}, "is always on: 127.0.0.1 and ::1 answer NodePorts where nodePortAddresses has localhost"},
	{Feature{"MultiCIDRServiceAllocator", "", true}, alwaysOn},
	{Feature{"NFTablesProxyMode", "", true}, alwaysOn},
	{Feature{"PreferSameTrafficDistribution", "", true}, alwaysOn},
	{Feature{"WinDSR", "", true}, "is always on: winkernel.enableDSR decides"},
	{Feature{"WinOverlay", "", true}, alwaysOn},
}

// Features returns the gates that affect the proxy, by name.
func (c *Config) Features() []Feature {
	all := make([]Feature, 0, len(features))
	for _, f := range features {
		if on, given := c.FeatureGates[f.Name]; given && f.why == "" {
			f.Enabled = on
		}
		all = append(all, f.Feature)
	}
	return all
}

// featureHelp lists the gates for a help text.
func featureHelp() string {
	var can, cannot []string
	for _, f := range features {
		if f.why == "" {
			can = append(can, fmt.Sprintf("%s (%t)", f.Name, f.Enabled))
		} else {
			cannot = append(cannot, f.Name)
		}
	}
	return strings.Join(can, " and ") + " can be switched; " + strings.Join(cannot, ", ") +
		", AllAlpha, AllBeta and gates of old versions are accepted and have no effect"
}

// ipvsGate is the gate that can disable mode ipvs.
const ipvsGate = "KubeProxyIPVS"

// SwitchedOff reports whether a feature gate disables mode, wherever mode is set.
func (c *Config) SwitchedOff(mode v1alpha1.ProxyMode) bool {
	return switchedOff(c.FeatureGates, mode)
}

func switchedOff(gates map[string]bool, mode v1alpha1.ProxyMode) bool {
	on, given := gates[ipvsGate]
	return mode == IPVS && given && !on
}

func (b *build) validateGates() {
	for _, name := range slices.Sorted(maps.Keys(b.FeatureGates)) {
		if _, known := gates[name]; !known {
			b.errorf("featureGates["+name+"]", "unknown feature gate%s", didYouMean(suggest.Closest(name, slices.Sorted(maps.Keys(gates)))))
		}
	}
	if switchedOff(b.FeatureGates, b.Mode) {
		b.errorf("mode", "%s is switched off by featureGates[KubeProxyIPVS]: want another mode, or the gate on", v1alpha1.ProxyMode(IPVS))
	}
}

// noteGates adds notes about gates whose configured value has no effect.
func (b *build) noteGates() {
	for _, name := range slices.Sorted(maps.Keys(b.FeatureGates)) {
		if gates[name] == honored {
			continue
		}
		path := "featureGates[" + name + "]"
		i := slices.IndexFunc(features, func(f feature) bool { return f.Name == name })
		switch {
		case name == "AllAlpha" || name == "AllBeta":
			b.notef(path, "switches nothing: the proxy has no gate of that stage that can be switched")
		case i < 0:
			b.notef(path, "is ignored: the gate does not concern the proxy or has become permanent")
		case b.FeatureGates[name] != features[i].Enabled:
			b.notef(path, "is ignored: %s %s", name, features[i].why)
		}
	}
}
