// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
)

// TestRenderIgnoresSourceRanges checks that an address with source ranges is served on
// Windows if the operator allows it, with a note that it is open. On Linux the ranges are
// enforced.
func TestRenderIgnoresSourceRanges(t *testing.T) {
	const served, open = "loadbalancer tcp 203.0.113.5:443 ", "every client can connect to 203.0.113.5"
	for _, tt := range []struct {
		mode, flag   string
		served, open bool
	}{
		{"kernelspace", "--ignore-source-ranges=false", false, false},
		{"kernelspace", "--ignore-source-ranges", true, true},
		{"nftables", "--ignore-source-ranges", false, false},
	} {
		got := call(t, "", "render", "--manifests", "../../docs/examples/shop", "--hostname-override", "node-a", "--proxy-mode", tt.mode, tt.flag)
		if got.Code != 0 || strings.Contains(got.Out, served) != tt.served || strings.Contains(got.Out, open) != tt.open {
			t.Errorf("mode %s with %s: exit %d, %s\n%s", tt.mode, tt.flag, got.Code, got.Err, got.Out)
		}
		if noted := strings.Contains(got.Err, "has no effect on linux"); noted != (tt.mode == "nftables") {
			t.Errorf("mode %s with %s: %s", tt.mode, tt.flag, got.Err)
		}
		if restricted := strings.Contains(got.Out, "203.0.113.5 . tcp . 443 . 192.0.2.100"); restricted != (tt.mode == "nftables") {
			t.Errorf("mode %s with %s: source ranges are not as they should be:\n%s", tt.mode, tt.flag, got.Out)
		}
	}
}
