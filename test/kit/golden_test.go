// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package kit

import "testing"

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
