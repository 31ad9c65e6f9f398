// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package kit

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestNormalize(t *testing.T) {
	for _, tc := range []struct{ text, dir, want string }{
		{"stat /tmp/1/a: no such file or directory", "/tmp/1", "stat DIR/a: no such file or directory"},
		{`GetFileAttributesEx C:\tmp\1\a\b: File not found.`, `C:\tmp\1`, "stat DIR/a/b: no such file or directory"},
		{`open C:\tmp\1\a.yaml: The system cannot find the path specified.`, `C:\tmp\1`, "open DIR/a.yaml: no such file or directory"},
		{`manifest C:\tmp\1\a: name "e\nf" is none`, `C:\tmp\1`, `manifest DIR/a: name "e\nf" is none`},
		{`C:\other\a`, `C:\tmp\1`, `C:\other\a`},
	} {
		if got := Normalize(tc.text, tc.dir); got != tc.want {
			t.Errorf("Normalize(%q) = %q, want %q", tc.text, got, tc.want)
		}
	}
}

// TestCompare rewrites one of two sessions of a page, and leaves the rest as it is.
func TestCompare(t *testing.T) {
	const page = "# Page\n\n<!-- session one -->\n\n    $ old\n\n    text\n    $ echo $?\n    0\n\n## Next\n\n<!-- session two -->\n\n    $ other\n"
	const want = "# Page\n\n<!-- session one -->\n\n    $ new\n    a\n\n      b\n    $ echo $?\n    1\n\n## Next\n\n<!-- session two -->\n\n    $ other\n"
	path := filepath.Join(t.TempDir(), "page.md")
	if err := os.WriteFile(path, []byte(page), 0o600); err != nil {
		t.Fatal(err)
	}
	s := &Session{Name: "one", Prompt: "$", Status: "echo $?"}
	s.Typed("new", "a  \n\n  b\n", 1)
	Page{path, true}.Compare(t, s)
	got, err := os.ReadFile(path)
	if diff := cmp.Diff(want, string(got)); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	Page{path, false}.Compare(t, s)
	if _, err := replace(want, &Session{Name: "three"}); err == nil {
		t.Error("a page without the mark is no error")
	}
}

func TestTables(t *testing.T) {
	rows := [][]string{{"", "n"}, {"µs", "1"}, {"long", "1000"}}
	for name, tc := range map[string]struct{ got, want string }{
		"words": {Table(rows), `
|      | n    |
|------|------|
| µs   | 1    |
| long | 1000 |
`},
		"numbers": {Numbers(rows), `
|      |    n |
|------|-----:|
| µs   |    1 |
| long | 1000 |
`},
	} {
		if diff := cmp.Diff(tc.want, "\n"+tc.got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// complaints are the errors of a test.
type complaints struct {
	testing.TB
	all []string
}

func (c *complaints) Errorf(format string, args ...any) {
	c.all = append(c.all, fmt.Sprintf(format, args...))
}

func TestSame(t *testing.T) {
	c := &complaints{TB: t}
	Same(c, "equal", []int{1}, []int{1})
	Same(c, "other (-want +got)", 1, 2)
	if len(c.all) != 1 || !strings.HasPrefix(c.all[0], "other (-want +got):\n") || !strings.Contains(c.all[0], "-") {
		t.Errorf("complaints %q, want one", c.all)
	}
}
