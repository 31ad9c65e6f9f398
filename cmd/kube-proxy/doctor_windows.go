// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"k8s.io/kube-proxy/config/v1alpha1"

	"kubeproxy/common/doctor"
	"kubeproxy/common/service"
	"kubeproxy/config"
	windowsdoctor "kubeproxy/platform/windows/doctor"
	"kubeproxy/platform/windows/hns"
)

// setClockCommand sets the clock of the node.
const setClockCommand = "w32tm /resync"

// systemChecks returns the checks of a Windows node.
func systemChecks(x *examination) ([]doctor.Check, error) {
	d := hns.NewDriver()
	n := &windowsdoctor.Node{Options: hnsOptions(x.config), List: d.List, PortsLeft: d.PortsLeft, Windows: windowsdoctor.System{}, Holder: x.holder, Answered: x.proxy.Answer != nil, Services: x.services}
	for _, s := range serverAddrs(x.config) {
		n.Servers = append(n.Servers, windowsdoctor.Server{Name: s.name, Flag: s.flag, Addr: s.addr})
	}
	return n.Checks(), nil
}

// probeMode returns whether the mode exists on this system.
func probeMode(c *config.Config, mode v1alpha1.ProxyMode, _ service.Family) error {
	return checkBuilt(mode, c.OS)
}
