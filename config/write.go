// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"io"

	"sigs.k8s.io/yaml"
)

// Write writes every field of c as YAML, from which an equal configuration can be loaded.
func (c *Config) Write(w io.Writer) error {
	data, err := yaml.Marshal(c.KubeProxyConfiguration)
	if err != nil {
		return fmt.Errorf("encode configuration: %w", err)
	}
	for _, s := range ownSwitches {
		if !s.usual(&c.Switches) {
			data = append(data, s.path+": "+s.of(&c.Switches).String()+"\n"...)
		}
	}
	if _, err := w.Write(data); err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	return nil
}

// IgnoreExternalIPs reports whether a feature gate disables externalIPs of Services.
func (c *Config) IgnoreExternalIPs() bool {
	on, given := c.FeatureGates["AllowServiceExternalIPs"]
	return given && !on
}
