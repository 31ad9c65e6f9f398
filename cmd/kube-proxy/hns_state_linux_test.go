// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestHNSStateUnsupportedOS checks that the error names the system of the command.
func TestHNSStateUnsupportedOS(t *testing.T) {
	want := outcome{1, "", "kube-proxy: " + errNoHNS.Error() + "\n"}
	if diff := cmp.Diff(want, call(t, t.TempDir(), "hns-state")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
