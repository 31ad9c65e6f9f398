// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/kube-proxy/config/v1alpha1"

	"kubeproxy/common/service"
	"kubeproxy/common/suggest"
)

// otherOSFields lists the settings that each system does not use.
var otherOSFields = map[OS][]string{
	Linux:   {"winkernel", "windowsRunAsService"},
	Windows: {"iptables.localhostNodePorts", "iptables.masqueradeAll", "iptables.masqueradeBit", "ipvs", "nftables", "conntrack", "oomScoreAdj", "detectLocal"},
}

// ignoredFields lists the settings that no mode on any system uses.
var ignoredFields = map[string]string{
	"configSyncPeriod":            "the API server is watched, and its objects are not read again in between",
	"showHiddenMetricsForVersion": "no metric is hidden",
}

// noteUnused adds notes about settings of the file or a flag that have no effect.
func (b *build) noteUnused() {
	plain := v1alpha1.KubeProxyConfiguration{}
	setDefaults(&plain, b.os, func(string) bool { return false })
	for _, path := range b.setPaths() {
		usual := showValue(fieldAt(&b.KubeProxyConfiguration, path)) == showValue(fieldAt(&plain, path))
		// An author who writes this default wants it.
		if !usual || path == "iptables.localhostNodePorts" {
			b.noteOtherModes(path)
		}
		if usual {
			continue
		}
		if path == "portRange" && !b.mode().uses(path) {
			b.notef(path, "has an effect in mode %s only", b.usersOf(path, Linux))
		}
		if why, ok := ignoredFields[path]; ok {
			b.notef(path, "is ignored: %s", why)
		}
		if strings.HasPrefix(path, "logging.options.") {
			b.notef(path, "is ignored: logs are not buffered and go to standard error")
		}
		if isOtherOS(b.os, path) {
			b.notef(path, "has no effect on %s", b.os)
		}
	}
	b.noteBind()
	b.noteLocalhost()
	b.noteNodeName()
	b.noteGates()
	b.noteFamilies()
}

// noteOtherModes notes a setting that others than the configured mode use, apart from those of
// sections iptables and nftables, see inheritFields.
func (b *build) noteOtherModes(path string) {
	mode := b.mode()
	if mode.Name == "" || mode.uses(path) || isOtherOS(b.os, path) || path == "portRange" {
		return
	}
	section, name, _ := strings.Cut(path, ".")
	shared := (section == "iptables" || section == "nftables") && (mode.Name == IPTables || mode.Name == NFTables) &&
		slices.ContainsFunc(inheritedFields, func(names []string) bool { return slices.Contains(names, name) })
	if users := b.usersOf(path, b.os); users != "" && !shared {
		b.notef(path, "has no effect in mode %s, only in mode %s", mode.Name, users)
	}
}

// noteBind notes an address where kube-proxy's mode userspace would listen, and ours does not.
func (b *build) noteBind() {
	a, err := service.ParseAddr(b.BindAddress)
	first, _, ranged := portRange(b.PortRange)
	switch {
	case err != nil || a.IsUnspecified() || b.os != Linux || b.Mode != Userspace:
	case !listenable(a.Unmap()):
		b.notef("bindAddress", "%s is no address to which packets from elsewhere can be led: listeners of mode userspace are at one that only packets to Services reach", a)
	case ranged && first == 0:
		b.notef("bindAddress", "%s is the node's address; listeners of mode userspace are there only with --proxy-port-range, else at an address that only packets to Services reach", a)
	}
}

// noteLocalhost notes loopback addresses that are configured to answer NodePorts and do not.
func (b *build) noteLocalhost() {
	r, err := nodePorts(b.NodePortAddresses)
	if err != nil || b.os != Linux {
		return
	}
	byRules := b.mode().Localhost == LocalhostRules // over IPv4
	for _, p := range r.Prefixes {
		switch f := service.FamilyOf(p.Addr()); {
		case !service.LoopbackOnly(p):
		case byRules && f == service.IPv4 && !*b.IPTables.LocalhostNodePorts:
			b.notef("nodePortAddresses", "%s has no effect: in mode %s, iptables.localhostNodePorts keeps NodePorts from 127.0.0.0/8", p, b.Mode)
		case (!byRules || f == service.IPv6) && !p.Contains(service.Localhost(f)):
			b.notef("nodePortAddresses", "%s has no effect: of loopback addresses, %s alone answers NodePorts in this mode", p, service.Localhost(f))
		}
	}
}

// noteNodeName notes a name that no Node can have, so that no endpoint is local.
func (b *build) noteNodeName() {
	name := normalName(b.HostnameOverride)
	if name != "" && validation.IsDNS1123Subdomain(name) != nil {
		b.notef("hostnameOverride", "%.80q is no name that a Node can have: want what kubectl get nodes shows, of lower-case letters, digits, - and .", name)
	}
}

// ignoreOtherMode drops another system's mode from the file, which nodes may share. As a flag it is
// an error, because a flag is for one process.
func (b *build) ignoreOtherMode(f *Flags) {
	if b.Mode == "" || f.changed("proxy-mode") || slices.Contains(ModesOf(b.modes, b.os), b.Mode) {
		return
	}
	for _, other := range []OS{Linux, Windows} {
		if slices.Contains(ModesOf(b.modes, other), b.Mode) {
			b.notef("mode", "%s is a mode of %s; on %s the best mode that works is used, as if none were set", b.Mode, other, b.os)
			b.Mode = ""
			return
		}
	}
}

// ignoreInterfaces drops, on Windows, the modes that detect pods by interface. On
// Windows, pods are detected by address or not at all.
func (b *build) ignoreInterfaces() {
	if m := b.DetectLocalMode; b.os == Windows && (m == BridgeInterface || m == InterfaceNamePrefix) {
		b.notef("detectLocalMode", "%s has no effect on %s; clusterCIDR has, if it is set", m, b.os)
		b.DetectLocalMode = ""
	}
}

// noteEmpty notes an address that a flag sets to "", which once was said to mean no server.
func (b *build) noteEmpty(f *Flags) {
	for _, s := range settings {
		if (s.path == "healthzBindAddress" || s.path == "metricsBindAddress") && f.changed(s.flag) && fieldAt(&b.KubeProxyConfiguration, s.path).IsZero() {
			b.notef(s.path, "is empty, which stands for the default; port 0 stands for no server")
		}
	}
}

// setPaths lists the settings that the file or a flag sets, in the order of the type.
func (b *build) setPaths() []string {
	return slices.DeleteFunc(leafPaths(), func(path string) bool { return !b.given(path) })
}

// isOtherOS reports whether os does not use the setting at path.
func isOtherOS(os OS, path string) bool {
	return slices.ContainsFunc(otherOSFields[os], func(f string) bool {
		return path == f || strings.HasPrefix(path, f+".")
	})
}

// Feature is a feature gate of the proxy.
type Feature struct {
	Name  string
	Stage string // ALPHA, BETA, DEPRECATED, or empty for a stable one
	// Enabled is the state in effect, which may differ from the configured one.
	Enabled bool
	why     string // why it cannot be changed, or empty
}

const alwaysOn = "is always on"

// features lists them by name, with their defaults.
var features = []Feature{
	{"AllowServiceExternalIPs", "DEPRECATED", true, ""},
	{"ComponentFlagz", "", true, alwaysOn},
	{"ComponentStatusz", "", true, alwaysOn},
	{"KubeProxyIPVS", "DEPRECATED", true, ""},
	{"KubeProxyNFTablesLocalhostNodePorts", "ALPHA", true, "is always on: 127.0.0.1 and ::1 answer NodePorts where nodePortAddresses has localhost"},
	{"MultiCIDRServiceAllocator", "", true, alwaysOn},
	{"NFTablesProxyMode", "", true, alwaysOn},
	{"PreferSameTrafficDistribution", "", true, alwaysOn},
	{"WinDSR", "", true, "is always on: winkernel.enableDSR decides"},
	{"WinOverlay", "", true, alwaysOn},
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
func featureOf(name string) *Feature {
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
	all := slices.Clone(features)
	for i, f := range all {
		if on, given := c.FeatureGates[f.Name]; given && f.why == "" {
			all[i].Enabled = on
		}
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
func (c *Config) SwitchedOff(mode v1alpha1.ProxyMode) bool { return switchedOff(c.FeatureGates, mode) }

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
