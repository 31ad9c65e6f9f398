// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package kit

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

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
