// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestHNSStateUnsupportedOS says where the command belongs.
func TestHNSStateUnsupportedOS(t *testing.T) {
	want := outcome{1, "", "kube-proxy: " + errNoHNS.Error() + "\n"}
	if diff := cmp.Diff(want, call(t, t.TempDir(), "hns-state")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
