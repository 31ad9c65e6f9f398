// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package goldentext

import (
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Write makes got the text of a golden file.
func Write(t testing.TB, path, got string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
		t.Fatal(err)
	}
}

// Compare requires that got is the text of a golden file.
func Compare(t testing.TB, path, got string) {
	t.Helper()
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}
