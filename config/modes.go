// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"slices"
	"strings"

	"k8s.io/kube-proxy/config/v1alpha1"
)

// The proxy modes that settings of the configuration are about, as spelled in files and
// flags. Flags.Modes has those that exist.
const (
	IPTables    v1alpha1.ProxyMode = "iptables"
	IPVS        v1alpha1.ProxyMode = "ipvs"
	NFTables    v1alpha1.ProxyMode = "nftables"
	Userspace   v1alpha1.ProxyMode = "userspace"
	Kernelspace v1alpha1.ProxyMode = "kernelspace"
)

// Mode is what the configuration needs to know of a proxy mode.
type Mode struct {
	Name v1alpha1.ProxyMode
	OS   OS
	// Settings lists the settings that the mode uses and not every mode uses, such as
	// ipvs.scheduler.
	Settings []string
	// Localhost is what answers NodePorts on loopback addresses.
	Localhost Localhost
}

// Localhost is what answers NodePorts on loopback addresses, if nodePortAddresses
// includes them.
type Localhost uint8

// The ways to answer there.
const (
	LocalhostNobody    Localhost = iota
	LocalhostListeners           // listeners of the process
	LocalhostRules               // over IPv4 rules, which iptables.localhostNodePorts switches; over IPv6 listeners
)

// uses reports whether the mode uses a setting that not every mode uses.
func (m Mode) uses(path string) bool { return slices.Contains(m.Settings, path) }

// ModesOf lists the names of the modes of os, sorted.
func ModesOf(modes []Mode, os OS) []v1alpha1.ProxyMode {
	var all []v1alpha1.ProxyMode
	for _, m := range modes {
		if m.OS == os {
			all = append(all, m.Name)
		}
	}
	slices.Sort(all)
	return all
}

// modeHelp is the help of --proxy-mode.
func modeHelp(modes []Mode) string {
	var on []string
	for _, s := range []struct {
		os   OS
		name string
	}{{Linux, "Linux"}, {Windows, "Windows"}} {
		if names := texts(ModesOf(modes, s.os)); len(names) > 0 {
			on = append(on, list(names)+" on "+s.name)
		}
	}
	return "`MODE` that forwards traffic: " + strings.Join(on, ", ") + "; empty for the best one that works"
}

// usersOf names the modes of a system that use a setting, as "a or b".
func (b *build) usersOf(path string, os OS) string {
	var names []string
	for _, m := range b.modes {
		if m.OS == os && m.uses(path) {
			names = append(names, string(m.Name))
		}
	}
	slices.Sort(names)
	return list(names)
}

// mode returns what is known of the configured mode, nothing if none is.
func (b *build) mode() Mode {
	for _, m := range b.modes {
		if m.Name == b.Mode && m.OS == b.os {
			return m
		}
	}
	return Mode{}
}

// usesNFTables reports whether mode is nftables, explicitly or by default.
func usesNFTables(mode v1alpha1.ProxyMode, os OS) bool {
	return mode == NFTables || mode == "" && os == Linux
}
