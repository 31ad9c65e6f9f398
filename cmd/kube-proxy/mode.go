// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"k8s.io/kube-proxy/config/v1alpha1"

	"kubeproxy/config"
)

// modeOf returns the mode that c asks for. An empty one is the best that is
// built in.
func modeOf(c *config.Config) v1alpha1.ProxyMode {
	switch {
	case c.Mode != "":
		return c.Mode
	case c.OS == config.Windows:
		return config.Kernelspace
	}
	return config.NFTables
}

// checkMode refuses the modes that are still to come.
func checkMode(c *config.Config, o *options) error {
	only := config.NFTables
	if c.OS == config.Windows {
		only = config.Kernelspace
	}
	switch mode := modeOf(c); {
	case mode == only:
		return nil
	case o.fallback:
		return fmt.Errorf("mode %s is not built in yet, nor are the modes that --proxy-mode-fallback leads to; the only mode so far is %s", mode, only)
	default:
		return fmt.Errorf("mode %s is not built in yet; the only mode so far is %s", mode, only)
	}
}
