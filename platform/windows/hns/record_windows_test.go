// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/windows"
)

// TestFileOfOthers has a state file that everybody may write to, or its folder.
func TestFileOfOthers(t *testing.T) {
	for _, open := range []string{"", "state.json"} {
		dir := filepath.Join(t.TempDir(), "data")
		f := FileStore(filepath.Join(dir, "state.json"))
		if err := f.Save([]byte("ours")); err != nil {
			t.Fatal(err)
		}
		if b, err := f.Load(); string(b) != "ours" || err != nil {
			t.Errorf("before: %q, %v", b, err)
		}
		openToAll(t, filepath.Join(dir, open))
		if b, err := f.Load(); b != nil || err == nil || !strings.Contains(err.Error(), "others may write to "+filepath.Join(dir, open)) {
			t.Errorf("%q is open to all: %q, %v", open, b, err)
		}
	}
}

// openToAll lets everybody write to a file or folder.
func openToAll(t *testing.T, path string) {
	t.Helper()
	sd, err := windows.SecurityDescriptorFromString("D:P(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)(A;OICI;FA;;;WD)")
	if err != nil {
		t.Fatal(err)
	}
	dacl, _, err := sd.DACL()
	if err == nil {
		err = windows.SetNamedSecurityInfo(path, windows.SE_FILE_OBJECT, windows.DACL_SECURITY_INFORMATION|windows.PROTECTED_DACL_SECURITY_INFORMATION, nil, nil, dacl, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
}
