// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"k8s.io/kube-proxy/config/v1alpha1"

	"kubeproxy/common/doctor"
	"kubeproxy/common/service"
	"kubeproxy/config"
	linuxdoctor "kubeproxy/platform/linux/doctor"
	"kubeproxy/platform/linux/iptables"
)

// setClockCommand sets the clock of the node.
const setClockCommand = "chronyc makestep"

// systemChecks returns the checks of a Linux node.
func systemChecks(x *examination) ([]doctor.Check, error) {
	targets, err := foreignTargets(x)
	if err != nil {
		return nil, err
	}
	n := &linuxdoctor.Node{
		Files: os.DirFS("/"), Proc: os.DirFS("/proc"), Writable: linuxdoctor.Writable, Kernel: linuxdoctor.Netlink{},
		Settings: sysctlSettings(x.config), ProxyName: x.config.ProxyName, Services: x.services, Holder: x.holder, Answered: x.proxy.Answer != nil,
		Targets: targets, CleanupCommand: ownCommand() + " --cleanup", IPTables: iptablesVariants,
	}
	for _, m := range x.modes {
		n.Modes = append(n.Modes, linuxdoctor.Mode{
			Name: string(m), Primary: primaryFamily(x.config), Optional: len(x.modes) > 1 && m != x.config.Mode,
			Probe: func(f service.Family) error { return probeMode(x.config, m, f) },
		})
	}
	for _, s := range serverAddrs(x.config) {
		n.Servers = append(n.Servers, linuxdoctor.Server{Name: s.name, Flag: s.flag, Addr: s.addr})
	}
	return n.Checks(), nil
}

// probeMode returns what the node lacks for a mode and family. It changes nothing.
func probeMode(c *config.Config, mode v1alpha1.ProxyMode, f service.Family) error {
	for _, d := range dataplanes() {
		switch {
		case d.mode != mode:
		case mode == config.IPVS: // its probe makes a virtual server and an interface
			return linuxdoctor.InPrivateNetwork(func() error { return d.probe(c, f) })
		default:
			return d.probe(c, f)
		}
	}
	return checkBuilt(mode, c.OS)
}

// foreignTargets lists where other modes or proxies may have left rules.
func foreignTargets(x *examination) ([]linuxdoctor.Target, error) {
	all, err := cleanupTargets(x.config)
	if err != nil {
		return nil, err
	}
	var owned []string
	for _, d := range dataplanes() {
		if !slices.Contains(x.modes, d.mode) {
			continue
		}
		for _, f := range service.Families {
			// A command that is missing is what the probe of the mode reports.
			names, _ := d.ownedTargets(x.config, f)
			owned = append(owned, names...)
		}
	}
	var foreign []linuxdoctor.Target
	for _, t := range all {
		if !slices.Contains(owned, t.String()) {
			foreign = append(foreign, linuxdoctor.Target{Name: t.String(), Upstream: t.Upstream, Find: t.Find})
		}
	}
	return foreign, nil
}

func iptablesVariants() (linuxdoctor.Variants, error) {
	used, err := iptables.NodeVariant(service.IPv4)
	if err != nil {
		return linuxdoctor.Variants{}, err
	}
	v := linuxdoctor.Variants{Used: string(used)}
	for _, k := range iptables.Variants {
		if iptables.UsedByKubelet(k) {
			v.Kubelet = append(v.Kubelet, string(k))
		}
	}
	return v, nil
}

// ownCommand returns how a shell starts this program.
func ownCommand() string {
	self, err := os.Executable()
	if err != nil {
		return "kube-proxy"
	}
	name := filepath.Base(self)
	if found, err := exec.LookPath(name); err == nil && found == self {
		return name
	}
	return self
}
