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

// withoutEffect lists the gates of the Service proxy in versions of kube-proxy, and those
// for all programs, that have no effect here. Every program of Kubernetes accepts the gates
// of all others, so any other gate may stand in a file, too.
var withoutEffect = []string{
	"AllAlpha", "AllBeta", "AllowExtTrafficLocalEndpoints", "ClientsAllowCBOR", "ClientsPreferCBOR", "ComponentSLIs",
	"ContextualLogging", "EndpointSlice", "EndpointSliceProxying", "EndpointSliceTerminatingCondition", "IPv6DualStack",
	"InOrderInformers", "InformerResourceVersion", "KubeProxyDrainingTerminatingNodes", "LoadBalancerIPMode",
	"LoggingAlphaOptions", "LoggingBetaOptions", "MinimizeIPTablesRestore", "MixedProtocolLBService", "SCTPSupport",
	"ServiceAppProtocol", "ServiceInternalTrafficPolicy", "ServiceLBNodePortControl", "ServiceLoadBalancerClass",
	"ServiceNodeExclusion", "ServiceTopology", "ServiceTrafficDistribution", "StructuredLogging", "SupportIPVSProxyMode",
	"TopologyAwareHints", "WatchListClient", "WindowsEndpointSliceProxying",
}

// featureOf returns a gate that affects the proxy, nil if name is not one.
func featureOf(name string) *feature {
	for i := range features {
		if features[i].Name == name {
			return &features[i]
		}
	}
	return nil
}

// acts reports whether the value of a gate has an effect.
func acts(name string) bool {
	f := featureOf(name)
	return f != nil && f.why == ""
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
		", and gates of other programs and versions are accepted and have no effect"
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

// validateGates checks the names of gates. A name like that of a gate which acts here is
// probably a mistake. Any other may be a gate of another program.
func (b *build) validateGates() {
	var names []string
	for _, f := range features {
		names = append(names, f.Name)
	}
	for _, name := range slices.Sorted(maps.Keys(b.FeatureGates)) {
		if featureOf(name) != nil || slices.Contains(withoutEffect, name) {
			continue
		}
		path, near := "featureGates["+name+"]", suggest.Closest(name, names)
		switch {
		case b.strict || near != "":
			b.warnf(path, "unknown feature gate%s", didYouMean(near))
		default:
			b.notef(path, "is ignored: no gate of the proxy has that name")
		}
	}
	if switchedOff(b.FeatureGates, b.Mode) {
		b.errorf("mode", "%s is switched off by featureGates[KubeProxyIPVS]: want another mode, or the gate on", v1alpha1.ProxyMode(IPVS))
	}
}

// noteGates adds notes about gates whose configured value has no effect.
func (b *build) noteGates() {
	for _, name := range slices.Sorted(maps.Keys(b.FeatureGates)) {
		path, f := "featureGates["+name+"]", featureOf(name)
		switch {
		case name == "AllAlpha" || name == "AllBeta":
			b.notef(path, "switches nothing: the proxy has no gate of that stage that can be switched")
		case slices.Contains(withoutEffect, name):
			b.notef(path, "is ignored: the gate does not concern the proxy or has become permanent")
		case f != nil && f.why != "" && b.FeatureGates[name] != f.Enabled:
			b.notef(path, "is ignored: %s %s", name, f.why)
		}
	}
}
