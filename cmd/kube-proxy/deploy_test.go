// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"kubeproxy/config"
)

// TestDeployedConfig has nothing in it that the proxy would remark on.
func TestDeployedConfig(t *testing.T) {
	c, err := config.Check("../../build/deploy/linux/config.yaml", config.Linux)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range c.Notes {
		t.Errorf("note: %s", n)
	}
	if *c.OOMScoreAdj != 0 {
		t.Errorf("oomScoreAdj %d needs a right that the container has not", *c.OOMScoreAdj)
	}
}
