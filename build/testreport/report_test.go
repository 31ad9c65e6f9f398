// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"

	"golang.org/x/tools/txtar"

	"kubeproxy/test/kit"
)

// TestReport reads the events and the allow file of a case and compares the report.
func TestReport(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	kit.Need(t, err == nil && len(files) != 0, "cases = %v, %v", files, err)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			part := sections(t, file)
			list := filepath.Join(t.TempDir(), "skips.txt")
			kit.Must(t, os.WriteFile(list, []byte(part["allow"]), 0o600))
			a, err := readAllowed(list)
			kit.Must(t, err)
			synctest.Test(t, func(t *testing.T) { // no time passes
				var out strings.Builder
				r := newReport(&out, a)
				kit.Must(t, r.read(strings.NewReader(part["events"])))
				r.summary(2)
				var names []string
				for _, s := range r.unlisted() {
					names = append(names, s.test+"\n")
				}
				kit.Same(t, "report (-want +got)", part["report"], out.String())
				kit.Same(t, "unexcused (-want +got)", part["unexcused"], strings.Join(names, ""))
			})
		})
	}
}

func sections(t *testing.T, file string) map[string]string {
	t.Helper()
	archive, err := txtar.ParseFile(file)
	kit.Must(t, err)
	part := map[string]string{}
	for _, f := range archive.Files {
		part[f.Name] = string(f.Data)
	}
	return part
}

func TestReadAllowed(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want allowed
		err  string
	}{
		"empty":     {want: allowed{}},
		"comment":   {text: "# p T why\n\n", want: allowed{}},
		"entry":     {text: "p TestA  no  such kernel\n", want: allowed{"p TestA": "no such kernel"}},
		"no reason": {text: "\np TestA\n", err: "skips.txt:2: want a package, a test and a reason"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "skips.txt")
			kit.Must(t, os.WriteFile(file, []byte(c.text), 0o600))
			got, err := readAllowed(file)
			kit.Need(t, c.err == "" || err != nil && strings.HasSuffix(err.Error(), c.err),
				"error = %v, want one that ends in %q", err, c.err)
			kit.Same(t, "allowed (-want +got)", c.want, got)
		})
	}
}

func TestRunRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"a bad choice":   {[]string{"-skips=never"}, "want show or fail"},
		"a lost file":    {[]string{"-allow", filepath.Join(t.TempDir(), "gone.txt")}, "read the tests that may be skipped"},
		"no such option": {[]string{"-sort"}, "not defined"},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			passed, err := run(c.args, &out, &out)
			kit.Check(t, !passed && err != nil && strings.Contains(err.Error(), c.want),
				"run = %v, %v, want an error with %q", passed, err, c.want)
		})
	}
}

// TestRealRuns runs go test on a small module, to check the events that the cases above
// imitate.
func TestRealRuns(t *testing.T) {
	archive, err := txtar.ParseFile("testdata/module/module.txtar")
	kit.Must(t, err)
	dir := t.TempDir()
	for _, f := range archive.Files {
		path := filepath.Join(dir, f.Name)
		kit.Must(t, os.MkdirAll(filepath.Dir(path), 0o700))
		kit.Must(t, os.WriteFile(path, f.Data, 0o600))
	}
	t.Chdir(dir)
	for name, c := range map[string]struct {
		args   []string
		passed bool
		want   []string // patterns of lines
		err    string
	}{
		"all pass":            {args: []string{"./good"}, passed: true, want: []string{`^ok    example.com/m/good +\S+  2 tests(, cached)?$`, `^2 passed, 0 failed, 0 skipped$`}},
		"one fails":           {args: []string{"./good", "./bad"}, want: []string{`^--- FAIL: TestBad`, `because`, `^FAIL  example.com/m/bad `, `^3 passed, 1 failed, 0 skipped$`}},
		"passes again":        {args: []string{"-again=1", "./good", "./unsteady"}, passed: true, want: []string{`not the first time`, `^again: example.com/m/unsteady TestUnsteady$`, `^passed only the second time`, `^  example.com/m/unsteady TestUnsteady$`, `^5 passed, 0 failed, 0 skipped$`}},
		"fails again":         {args: []string{"-again=1", "./bad"}, want: []string{`^again: example.com/m/bad TestBad$`, `^1 passed, 1 failed, 0 skipped$`}},
		"panic, not again":    {args: []string{"-again=1", "./panics"}, want: []string{`^0 passed, 1 failed, 0 skipped$`}},
		"too many, not again": {args: []string{"-again=1", "./bad", "./worse"}, want: []string{`^1 passed, 2 failed, 0 skipped$`}},
		"panic":               {args: []string{"./panics"}, want: []string{`^panic: no hope`, `^0 passed, 1 failed, 0 skipped$`}},
		"does not build":      {args: []string{"./broken"}, want: []string{`undefined: missing`, `build failed$`, `^0 passed, 1 failed, 0 skipped$`}},
		"does not vet":        {args: []string{"./vetoed"}, want: []string{`format %d`, `^0 passed, 1 failed, 0 skipped$`}},
		"TestMain fails":      {args: []string{"./setup"}, want: []string{`^no luck$`, `^0 passed, 1 failed, 0 skipped$`}},
		"skip shown":          {args: []string{"./skips"}, passed: true, want: []string{`NOT ALLOWED: skips_test.go:\d+: no such thing here$`, `^1 passed, 0 failed, 1 skipped$`}},
		"skip fails":          {args: []string{"-skips=fail", "./skips"}, want: []string{`NOT ALLOWED`, `^1 passed, 0 failed, 1 skipped$`}},
		"skip allowed":        {args: []string{"-skips=fail", "-allow=allow.txt", "./skips"}, passed: true, want: []string{`TestSkips +the machine lacks it$`}},
		"owed":                {args: []string{"-owed=owed.txt"}, passed: true, want: []string{`^2 passed, 0 failed, 0 skipped$`}},
		"owed elsewhere":      {args: []string{"-owed=owed.txt", "-mark=vm2:"}, passed: true, want: []string{`^1 passed, 0 failed, 0 skipped$`}},
		"nothing owed":        {args: []string{"-owed=allow.txt"}, passed: true},
		"not paid":            {args: []string{"-owed=unpaid.txt"}, want: []string{`runs here: example.com/m/good TestGone$`, `runs here: example.com/m/skips TestSkips$`, `^2 passed, 0 failed, 1 skipped$`}},
		"no tests":            {args: []string{"./none"}, want: []string{`no test files$`}, err: "no test ran"},
		"no package":          {args: []string{"./nowhere"}, want: []string{`directory not found`, `^0 passed, 1 failed, 0 skipped$`}},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			passed, err := run(c.args, &out, &out)
			kit.Check(t, (passed && err == nil) == c.passed && contains(err, c.err),
				"run = %v, %v, want %v and error %q", passed, err, c.passed, c.err)
			kit.Check(t, !strings.Contains(name, "not again") || !strings.Contains(out.String(), "\nagain: "), "ran a second time:\n%s", &out)
			for _, want := range c.want {
				kit.Check(t, regexp.MustCompile("(?m)"+want).MatchString(out.String()), "no line fits %q in:\n%s", want, &out)
			}
		})
	}
}

// contains returns whether err contains text, or both are empty.
func contains(err error, text string) bool {
	if err == nil || text == "" {
		return err == nil && text == ""
	}
	return strings.Contains(err.Error(), text)
}

// TestSelection checks that the package with most tests, which ends last, comes first.
func TestSelection(t *testing.T) {
	want := []string{"-run", "^(TestA|TestB)$", "m/most", "m/a", "m/b"}
	kit.Same(t, "(-want +got)", want, selection([]string{"m/a TestA", "m/b TestA", "m/most TestA", "m/most TestB"}))
}
