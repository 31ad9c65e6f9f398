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

// TestMakeImagesOfBinaries checks that images are laid out after the binaries are built, and
// not beside that, when make may run steps at the same time. Both are only said here.
func TestMakeImagesOfBinaries(t *testing.T) {
	said, err := exec.Command("make", "-C", "..", "-j4", "image", "SYSTEMS=linux-amd64", "go_build=sh -c 'sleep 0.3; echo built' sh", "lay_out=echo laid out $(1)").CombinedOutput()
	built, laid := strings.Index(string(said), "built\n"), strings.Index(string(said), "laid out image\n")
	if err != nil || built < 0 || laid < built {
		t.Errorf("make -j4 image: %v, want what is built, and then laid out, in\n%s", err, said)
	}
}

// TestMakeWithoutEarlierVersion checks that make changes says what it wants where git does
// not know an earlier version.
func TestMakeWithoutEarlierVersion(t *testing.T) {
	said, err := exec.Command("make", "-C", "..", "earlier", "EARLIER=").CombinedOutput()
	if err == nil || !strings.Contains(string(said), "EARLIER=COMMIT names one") {
		t.Errorf("make earlier: %v, and it says\n%s", err, said)
	}
}
