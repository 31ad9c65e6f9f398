// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strings"

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

// built lists the modes of each system that are built in.
var built = map[config.OS][]v1alpha1.ProxyMode{
	config.Linux:   {config.NFTables, config.IPTables},
	config.Windows: {config.Kernelspace},
}

// checkMode refuses the modes that are still to come.
func checkMode(c *config.Config, o *options) error {
	mode := modeOf(c)
	if slices.Contains(built[c.OS], mode) {
		return nil
	}
	var names []string
	for _, m := range built[c.OS] {
		names = append(names, string(m))
	}
	there := strings.Join(names, " and ")
	if o.fallback {
		return fmt.Errorf("mode %s is not built in yet, and --proxy-mode-fallback leads nowhere yet; the modes so far are %s", mode, there)
	}
	return fmt.Errorf("mode %s is not built in yet; the modes so far are %s", mode, there)
}
