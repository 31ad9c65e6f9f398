// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import "testing"

func TestFieldOf(t *testing.T) {
	for path, want := range map[string]string{
		"spec.ports[3].port":                    "spec.ports.port",
		"spec.externalIPs[0]":                   "spec.externalIPs",
		"endpointslice web-1 endpoints[7].x[0]": "endpointslice.endpoints.x",
	} {
		if got := fieldOf(path); got != want {
			t.Errorf("fieldOf(%q) = %q, want %q", path, got, want)
		}
	}
}
