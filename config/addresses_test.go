// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"testing"
)

// TestLeadingZeros checks that numbers in addresses are decimal, as kube-proxy reads them.
func TestLeadingZeros(t *testing.T) {
	var c Config
	c.BindAddress, c.ClusterCIDR = "192.000.002.001", "010.244.000.000/16,fd00:0010::/048"
	c.NodePortAddresses = []string{"192.0.002.000/24"}
	want := "192.0.2.1 [10.244.0.0/16 fd00:10::/48] [192.0.2.0/24 ::/0]"
	if got := fmt.Sprint(c.NodeIP(), c.ClusterCIDRs(), c.NodePorts().Prefixes); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
