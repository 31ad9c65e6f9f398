// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"k8s.io/kube-proxy/config/v1alpha1"
)

// Effect is what a changed setting requires to take effect.
type Effect uint8

// The effects, mildest first.
const (
	Unused  Effect = iota // nothing, because the running parts do not use the setting
	Hot                   // the running process applies it
	Restart               // only a new process applies it
)

// Use describes which parts of its configuration a process uses.
type Use struct {
	// Mode is the mode in force, even if the configuration leaves it open.
	Mode v1alpha1.ProxyMode
	// APIServer means that objects come from an API server.
	APIServer bool
}

// Change is a setting that differs between two configurations.
type Change struct {
	Path     string // such as iptables.masqueradeBit or featureGates[NAME]
	From, To string // as in a JSON file
	Effect   Effect
}

// String returns "path: from -> to".
func (c Change) String() string { return fmt.Sprintf("%s: %s -> %s", c.Path, c.From, c.To) }

// Diff lists the settings that differ between old and now, in the order of the type.
func Diff(old, now *Config, u Use) []Change {
	var all []Change
	for _, path := range leafPaths() {
		if path == "featureGates" {
			all = append(all, diffGates(old.FeatureGates, now)...)
			continue
		}
		a, b := fieldAt(&old.KubeProxyConfiguration, path), fieldAt(&now.KubeProxyConfiguration, path)
		if from, to := showList(a), showList(b); from != to {
			all = append(all, Change{path, from, to, u.effect(path, now)})
		}
	}
	if from, to := old.UDPIdleTimeout, now.UDPIdleTimeout; from != to {
		c := Change{Path: udpIdlePath, From: from.String(), To: to.String()}
		if u.Mode == Userspace {
			c.Effect = Restart
		}
		all = append(all, c)
	}
	return all
}

// showList is show, but renders nil and empty lists alike.
func showList(v reflect.Value) string {
	if v.Kind() == reflect.Slice && v.Len() == 0 {
		return "[]"
	}
	return showValue(v)
}

// diffGates compares gate by gate, because each gate has its own effect.
func diffGates(old map[string]bool, next *Config) []Change {
	names, now := map[string]bool{}, next.FeatureGates
	maps.Copy(names, old)
	maps.Copy(names, now)
	var all []Change
	for _, name := range slices.Sorted(maps.Keys(names)) {
		from, to := showGate(old, name), showGate(now, name)
		if from == to {
			continue
		}
		c := Change{Path: "featureGates[" + name + "]", From: from, To: to}
		// Honored gates are enabled unless they are set to false.
		if gates[name] == honored && (from == "false") != (to == "false") && (name != ipvsGate || mayBeIPVS(next)) {
			c.Effect = effects["featureGates"].effect
		}
		all = append(all, c)
	}
	return all
}

// mayBeIPVS reports whether the mode can be ipvs, including by the Node's annotation.
func mayBeIPVS(c *Config) bool { return c.OS == Linux && (c.Mode == IPVS || c.Mode == "") }

func showGate(all map[string]bool, name string) string {
	on, given := all[name]
	if !given {
		return "unset"
	}
	return strconv.FormatBool(on)
}

// leafPaths lists the settings without their sections.
func leafPaths() []string {
	all := paths(reflect.TypeFor[v1alpha1.KubeProxyConfiguration](), "")
	return slices.DeleteFunc(all, func(path string) bool {
		return slices.ContainsFunc(all, func(p string) bool { return strings.HasPrefix(p, path+".") })
	})
}

func (u Use) effect(path string, now *Config) Effect {
	e := effects[path]
	switch {
	case path == "mode" && now.Mode == u.Mode: // the mode equals the one that was detected
		return Unused
	case e.modes != nil && !slices.Contains(e.modes, u.Mode):
		return Unused
	case strings.HasPrefix(path, "clientConnection.") && !u.APIServer:
		return Unused
	case path == "conntrack.tcpBeLiberal" && (u.Mode == IPTables || u.Mode == NFTables): // a rule depends on it
		return Restart
	case isOtherOS(now.OS, path):
		return Unused
	}
	return e.effect
}

// modeEffect is an effect in some modes only. Nil modes mean all.
type modeEffect struct {
	effect Effect
	modes  []v1alpha1.ProxyMode
}

// effects has every setting. A setting requires a restart if no running part can apply
// it, such as the connection to the API server, or the mark bit, which other programs may
// use.
var effects = map[string]modeEffect{
	"kind":         {Unused, nil}, // there is only one
	"apiVersion":   {Unused, nil},
	"featureGates": {Restart, nil}, // gate by gate, see diffGates

	"clientConnection.kubeconfig":         {Restart, nil},
	"clientConnection.acceptContentTypes": {Restart, nil},
	"clientConnection.contentType":        {Restart, nil},
	"clientConnection.qps":                {Restart, nil},
	"clientConnection.burst":              {Restart, nil},
	"configSyncPeriod":                    {Unused, nil}, // the API server is watched

	"logging.format":                      {Restart, nil},
	"logging.flushFrequency":              {Hot, nil},
	"logging.verbosity":                   {Hot, nil},
	"logging.vmodule":                     {Hot, nil},
	"logging.options.text.splitStream":    {Unused, nil},
	"logging.options.text.infoBufferSize": {Unused, nil},
	"logging.options.json.splitStream":    {Unused, nil},
	"logging.options.json.infoBufferSize": {Unused, nil},

	"hostnameOverride":            {Restart, nil},
	"bindAddress":                 {Restart, nil},
	"healthzBindAddress":          {Hot, nil},
	"metricsBindAddress":          {Hot, nil},
	"bindAddressHardFail":         {Hot, nil},
	"enableProfiling":             {Hot, nil},
	"showHiddenMetricsForVersion": {Unused, nil}, // none is hidden
	"oomScoreAdj":                 {Hot, nil},
	"portRange":                   {Restart, []v1alpha1.ProxyMode{Userspace}},
	"windowsRunAsService":         {Restart, nil},

	"mode":                            {Restart, nil},
	"detectLocalMode":                 {Hot, nil},
	"detectLocal.bridgeInterface":     {Hot, nil},
	"detectLocal.interfaceNamePrefix": {Hot, nil},
	"clusterCIDR":                     {Hot, nil},
	"nodePortAddresses":               {Hot, nil},

	"iptables.masqueradeBit":      {Restart, []v1alpha1.ProxyMode{IPTables, IPVS, Userspace}},
	"iptables.masqueradeAll":      {Hot, []v1alpha1.ProxyMode{IPTables, IPVS}},
	"iptables.localhostNodePorts": {Restart, []v1alpha1.ProxyMode{IPTables, Userspace}},
	"iptables.syncPeriod":         {Hot, []v1alpha1.ProxyMode{IPTables, Userspace, Kernelspace}},
	"iptables.minSyncPeriod":      {Hot, []v1alpha1.ProxyMode{IPTables, Userspace, Kernelspace}},

	"nftables.masqueradeBit": {Restart, []v1alpha1.ProxyMode{NFTables}},
	"nftables.masqueradeAll": {Hot, []v1alpha1.ProxyMode{NFTables}},
	"nftables.syncPeriod":    {Hot, []v1alpha1.ProxyMode{NFTables}},
	"nftables.minSyncPeriod": {Hot, []v1alpha1.ProxyMode{NFTables}},

	"ipvs.syncPeriod":    {Hot, []v1alpha1.ProxyMode{IPVS}},
	"ipvs.minSyncPeriod": {Hot, []v1alpha1.ProxyMode{IPVS}},
	"ipvs.scheduler":     {Restart, []v1alpha1.ProxyMode{IPVS}},
	"ipvs.excludeCIDRs":  {Restart, []v1alpha1.ProxyMode{IPVS}},
	"ipvs.strictARP":     {Restart, []v1alpha1.ProxyMode{IPVS}},
	"ipvs.tcpTimeout":    {Restart, []v1alpha1.ProxyMode{IPVS}},
	"ipvs.tcpFinTimeout": {Restart, []v1alpha1.ProxyMode{IPVS}},
	"ipvs.udpTimeout":    {Restart, []v1alpha1.ProxyMode{IPVS}},

	"winkernel.networkName":           {Restart, []v1alpha1.ProxyMode{Kernelspace}},
	"winkernel.sourceVip":             {Restart, []v1alpha1.ProxyMode{Kernelspace}},
	"winkernel.enableDSR":             {Restart, []v1alpha1.ProxyMode{Kernelspace}},
	"winkernel.rootHnsEndpointName":   {Restart, []v1alpha1.ProxyMode{Kernelspace}},
	"winkernel.forwardHealthCheckVip": {Restart, []v1alpha1.ProxyMode{Kernelspace}},

	"conntrack.maxPerCore":            {Hot, nil},
	"conntrack.min":                   {Hot, nil},
	"conntrack.tcpEstablishedTimeout": {Hot, nil},
	"conntrack.tcpCloseWaitTimeout":   {Hot, nil},
	"conntrack.tcpBeLiberal":          {Hot, nil},
	"conntrack.udpTimeout":            {Hot, nil},
	"conntrack.udpStreamTimeout":      {Hot, nil},
}
