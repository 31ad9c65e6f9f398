// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package wine

import (
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// skippedUnderWine are tests that cannot pass under Wine, each with the reason. They run
// on Linux all the same.
var skippedUnderWine = []struct{ test, why string }{
	{"TestModesToCome", "it is about modes of Linux"},
	{"TestMistakes/value_out_of_range", "it is about modes of Linux"},
	{"TestMistakes/every_error_of_a_file", "it names the modes of Linux"},
	{"TestFileLinks", "Wine makes no symbolic links"},
	{"TestSwapped", "Wine renames no symbolic links"},
	{"TestRunVolume", "Wine renames no symbolic links"},
	{"TestRunKeepsTheLastGoodState/link_to_nowhere", "Wine renames no symbolic links"},
	{"TestRefreshNotices/same_time_and_size,_other_inode", "on Windows Go asks for a file's identity too late to compare it"},
}

// TestWindowsPackages runs the tests of all packages of the Windows program, built for
// Windows.
func TestWindowsPackages(t *testing.T) {
	w := Start(t, Options{})
	overlay, err := Overlay(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	skip := []string{}
	for _, e := range skippedUnderWine {
		skip = append(skip, e.test)
	}
	slices.Sort(skip)
	args := []string{"test", "-json", "-vet=off", "-overlay=" + overlay, "-exec=" + strings.Join(w.Command(), " "), "-skip=" + skipping(skip)}
	cmd := exec.CommandContext(t.Context(), "go", append(args, packages(t)...)...)
	cmd.Env = append(w.Environ(), "GOOS=windows", "GOARCH=amd64", "CGO_ENABLED=0")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	report(t, read(t, out))
	if err := cmd.Wait(); err != nil {
		t.Errorf("go test for windows: %v", err)
	}
}

// skipping joins tests to a pattern of go test. In it, slashes separate the patterns of
// each level.
func skipping(tests []string) string {
	for i, test := range tests {
		names := strings.Split(test, "/")
		for j, name := range names {
			names[j] = "^" + name + "$"
		}
		tests[i] = strings.Join(names, "/")
	}
	return strings.Join(tests, "|")
}

// packages are those packages of kube-proxy.exe that have tests, and platform, which has
// tests of all backends together.
func packages(t *testing.T) []string {
	t.Helper()
	const format = `{{with .Module}}{{if .Main}}{{if or $.TestGoFiles $.XTestGoFiles}}{{$.ImportPath}}{{end}}{{end}}{{end}}`
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", format, "kubeproxy/cmd/kube-proxy", "kubeproxy/platform")
	cmd.Env = append(os.Environ(), "GOOS=windows", "GOARCH=amd64", "CGO_ENABLED=0")
	text, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list for windows: %v", err)
	}
	list := strings.Fields(string(text))
	if len(list) < 10 || !slices.Contains(list, "kubeproxy/cmd/kube-proxy") {
		t.Fatalf("packages of kube-proxy.exe: %v", list)
	}
	return list
}

// event is a line of go test -json.
type event struct{ Action, Package, ImportPath, Test, Output string }

// result is the result of a package.
type result struct {
	name, action string
	output       []string
	skipped      map[string]string // tests, with their output
	passed       int
}

func read(t *testing.T, events io.Reader) []*result {
	t.Helper()
	results := map[string]*result{}
	var order []*result
	for d := json.NewDecoder(events); ; {
		var e event
		if err := d.Decode(&e); errors.Is(err, io.EOF) {
			return order
		} else if err != nil {
			t.Fatalf("read what go test says: %v", err)
		}
		name, _, _ := strings.Cut(cmp.Or(e.Package, e.ImportPath), " ") // A package that does not build has only ImportPath.
		r := results[name]
		if r == nil {
			r = &result{name: name, skipped: map[string]string{}}
			results[name], order = r, append(order, r)
		}
		r.handle(e)
	}
}

func (r *result) handle(e event) {
	switch {
	case e.Action == "output" || e.Action == "build-output":
		r.output = append(r.output, e.Output)
	case e.Test == "" && (e.Action == "pass" || e.Action == "fail" || e.Action == "skip"):
		r.action = e.Action
	case e.Action == "skip":
		r.skipped[e.Test] = strings.Join(r.output[max(0, len(r.output)-3):], "")
	case e.Action == "pass":
		r.passed++
	}
}

// report shows the packages as subtests, and their skipped tests as skipped.
func report(t *testing.T, results []*result) {
	t.Helper()
	for _, r := range results {
		t.Run(strings.TrimPrefix(r.name, "kubeproxy/"), func(t *testing.T) {
			if r.action != "pass" || r.passed == 0 {
				t.Errorf("%s, %d tests passed:\n%s", r.action, r.passed, strings.Join(r.output, ""))
			}
			t.Logf("%d tests passed", r.passed)
			for test, said := range r.skipped {
				t.Run(test, func(t *testing.T) { t.Skip(said) })
			}
		})
	}
}
