// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package build

import (
	"os/exec"
	"strings"
	"testing"
)

// TestMakeNotesRevision has what make builds know its commit, as the compiler is
// not let look for it.
func TestMakeNotesRevision(t *testing.T) {
	commit, err := exec.Command("git", "-C", "..", "rev-parse", "HEAD").Output()
	if err != nil {
		return // no repository, and so no commit to know
	}
	made, err := exec.Command("make", "-C", "..", "-n", "bin/kube-proxy").CombinedOutput()
	if err != nil {
		t.Fatalf("make -n: %v: %s", err, made)
	}
	if want := "," + strings.TrimSpace(string(commit)) + ","; !strings.Contains(string(made), want) {
		t.Errorf("want %s in\n%s", want, made)
	}
}
