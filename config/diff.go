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
	Mode Mode
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
		if u.Mode.uses(udpIdlePath) {
			c.Effect = Restart
		}
		all = append(all, c)
	}
	return append(all, diffSwitches(old, now)...)
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
		if acts(name) && (from == "false") != (to == "false") && (name != ipvsGate || mayBeIPVS(next)) {
			c.Effect = Restart
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
	e, someModes := effectOf(path)
	switch {
	case path == "mode" && now.Mode == u.Mode.Name: // the mode equals the one that was detected
		return Unused
	case someModes && !u.Mode.uses(path):
		return Unused
	case strings.HasPrefix(path, "clientConnection.") && !u.APIServer:
		return Unused
	case path == "conntrack.tcpBeLiberal" && u.Mode.uses(path): // a rule depends on it
		return Restart
	case isOtherOS(now.OS, path):
		return Unused
	}
	return e
}

// effectOf returns the effect of a setting, and whether modes that do not list it ignore it.
func effectOf(path string) (e Effect, someModes bool) {
	for _, s := range settings {
		if path == s.path || path == s.nftables {
			return s.effect, s.someModes
		}
	}
	if path == "clientConnection.acceptContentTypes" { // it has no flag
		return Restart, false
	}
	return Unused, false
}
