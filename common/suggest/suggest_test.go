// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package suggest

import (
	"strings"
	"testing"
)

func TestClosest(t *testing.T) {
	names := []string{"proxy-mode", "profiling", "v", "vmodule", "mode"}
	tests := map[string]string{
		"proxymode": "proxy-mode", "proxy-mdoe": "proxy-mode", "PROXY-MODE": "proxy-mode",
		"profling": "profiling", "mdoe": "mode", "something": "", "": "v", "w": "v", strings.Repeat("x", 1000): "",
	}
	for name, want := range tests {
		if got := Closest(name, names); got != want {
			t.Errorf("Closest(%q) = %q, want %q", name, got, want)
		}
	}
}
