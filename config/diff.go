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

// Effect is what it takes to put a changed setting in force.
type Effect uint8

// The effects, the mildest first.
const (
	Unused  Effect = iota // nothing: what runs does not look at the setting
	Hot                   // the process can take it in while it runs
	Restart               // only a new process can
)

// Use tells what of its configuration a process makes use of.
type Use struct {
	// Mode is the one in force, also where the configuration leaves it open.
	Mode v1alpha1.ProxyMode
	// APIServer means that objects come from one.
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

// Diff lists the settings in which now differs from old, in the type's order.
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

// showList is show, but all lists without elements look the same.
func showList(v reflect.Value) string {
	if v.Kind() == reflect.Slice && v.Len() == 0 {
		return "[]"
	}
	return showValue(v)
}

// diffGates compares gate by gate, as each has an effect of its own.
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
		// Those that are honored are on unless they are switched off.
		if gates[name] == honored && (from == "false") != (to == "false") && (name != ipvsGate || mayBeIPVS(next)) {
			c.Effect = effects["featureGates"].effect
		}
		all = append(all, c)
	}
	return all
}

// mayBeIPVS reports that the mode can be ipvs, be it because the Node asks for it.
func mayBeIPVS(c *Config) bool { return c.OS == Linux && (c.Mode == IPVS || c.Mode == "") }

func showGate(all map[string]bool, name string) string {
	on, given := all[name]
	if !given {
		return "unset"
	}
	return strconv.FormatBool(on)
}

// leafPaths lists the settings, without the sections around them.
func leafPaths() []string {
	all := paths(reflect.TypeFor[v1alpha1.KubeProxyConfiguration](), "")
	return slices.DeleteFunc(all, func(path string) bool {
		return slices.ContainsFunc(all, func(p string) bool { return strings.HasPrefix(p, path+".") })
	})
}

func (u Use) effect(path string, now *Config) Effect {
	e := effects[path]
	switch {
	case path == "mode" && now.Mode == u.Mode: // it says what was found anyway
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

// modeEffect is an effect in some modes only; nil stands for all of them.
type modeEffect struct {
	effect Effect
	modes  []v1alpha1.ProxyMode
}

// effects holds every setting. What no running part can take in again, such as
// the way to the API server or the bit that other programs may look at, needs
// a restart.
var effects = map[string]modeEffect{
	"kind":         {Unused, nil}, // there is one only
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
