// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"k8s.io/kube-proxy/config/v1alpha1"

	"kubeproxy/common/doctor"
	"kubeproxy/common/service"
	"kubeproxy/config"
)

// setClockCommand sets the clock of the node.
const setClockCommand = "w32tm /resync"

// systemChecks returns the checks of a Windows node.
func systemChecks(*examination) ([]doctor.Check, error) { return nil, nil }

// probeMode returns whether the mode exists on this system.
func probeMode(c *config.Config, mode v1alpha1.ProxyMode, _ service.Family) error {
	return checkBuilt(mode, c.OS)
}
