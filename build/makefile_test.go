// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package build

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestMakeNotesRevision checks that make passes the commit to its builds, as the compiler
// may not look for it.
func TestMakeNotesRevision(t *testing.T) {
	commit, err := exec.Command("git", "-C", "..", "rev-parse", "HEAD").Output()
	if err != nil {
		return // no repository, and so no commit
	}
	made, err := exec.Command("make", "-C", "..", "-n", "bin/kube-proxy").CombinedOutput()
	if err != nil {
		t.Fatalf("make -n: %v: %s", err, made)
	}
	if want := "," + strings.TrimSpace(string(commit)) + ","; !strings.Contains(string(made), want) {
		t.Errorf("want %s in\n%s", want, made)
	}
}

// TestNightlyFuzzes has make nightly run each fuzz test there is.
func TestNightlyFuzzes(t *testing.T) {
	made, err := exec.Command("make", "-C", "..", "-n", "nightly").CombinedOutput()
	if err != nil || !strings.Contains(string(made), "build/fuzz.sh") {
		t.Errorf("make -n nightly: %v, want build/fuzz.sh in\n%s", err, made)
	}
	said, err := exec.Command("./fuzz.sh", "none").CombinedOutput()
	if err != nil {
		t.Fatalf("fuzz.sh: %v: %s", err, said)
	}
	for _, dir := range []string{"cmd", "common", "config", "platform", "test"} {
		err := filepath.WalkDir("../"+dir, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			for _, m := range regexp.MustCompile(`(?m)^func (Fuzz\w*)\(`).FindAllStringSubmatch(string(text), -1) {
				if want := "fuzz: " + m[1] + " of ./" + strings.TrimPrefix(filepath.Dir(path), "../") + ","; !strings.Contains(string(said), want) {
					t.Errorf("want %q in\n%s", want, said)
				}
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
}
