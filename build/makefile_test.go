// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package build

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
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

// TestLeftOutTestsRun checks that each test that make leaves out of a run exists, and that
// another run has it, in every package where it is left out.
func TestLeftOutTestsRun(t *testing.T) {
	made, err := exec.Command("make", "-C", "..", "-n", "test", "rest").CombinedOutput()
	if err != nil {
		t.Fatalf("make -n: %v: %s", err, made)
	}
	var runs []testRun
	for line := range strings.Lines(string(made)) {
		if strings.Contains(line, "build/testreport") && !strings.Contains(line, "-exec") && !strings.Contains(line, "SOCKET_ACCELERATION=1") {
			runs = append(runs, readRun(line))
		}
	}
	where := map[string][]string{} // the packages with a test, by its name
	for path, text := range tree(t, func(path string) bool { return strings.HasSuffix(path, "_test.go") }) {
		for _, m := range regexp.MustCompile(`(?m)^func Test(\w+)\(`).FindAllSubmatch(text, -1) {
			where[string(m[1])] = append(where[string(m[1])], filepath.ToSlash(filepath.Dir(path)))
		}
	}
	for _, r := range runs {
		for _, name := range r.skip {
			if len(where[name]) == 0 {
				t.Errorf("there is no Test%s, which make leaves out", name)
			}
			elsewhere := func(dir string) bool {
				return !r.has(dir) || slices.ContainsFunc(runs, func(r testRun) bool { return r.runs(name, dir) })
			}
			if lost := slices.DeleteFunc(slices.Clone(where[name]), elsewhere); len(lost) > 0 {
				t.Errorf("make leaves out Test%s of %q, and runs it nowhere else", name, lost)
			}
		}
	}
}

// testRun is a call of go test: packages, and names of tests without the word Test.
type testRun struct{ packages, only, skip []string }

func readRun(line string) testRun {
	_, line, _ = strings.Cut(line, " -- ")
	line, _, _ = strings.Cut(line, " ||")
	names := func(flag string) []string {
		if m := regexp.MustCompile(flag + ` '\^Test\((.*?)\)\$'`).FindStringSubmatch(line); m != nil {
			return strings.Split(m[1], "|")
		}
		return nil
	}
	r := testRun{nil, names("-run"), names("-skip")}
	for _, word := range strings.Fields(line) {
		if pkg := strings.TrimPrefix(strings.TrimPrefix(word, "./"), module+"/"); pkg != word {
			r.packages = append(r.packages, pkg)
		}
	}
	return r
}

func (r testRun) has(dir string) bool {
	return slices.ContainsFunc(r.packages, func(pkg string) bool {
		above, below := strings.CutSuffix(pkg, "/...")
		return dir == above || below && strings.HasPrefix(dir, above+"/")
	})
}

func (r testRun) runs(name, dir string) bool {
	return r.has(dir) && !slices.Contains(r.skip, name) && (r.only == nil || slices.Contains(r.only, name))
}
