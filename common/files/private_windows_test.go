// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package files

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/windows"

	"kubeproxy/test/kit"
)

// TestWriters reads descriptors as Windows has them: of ProgramData, of a folder made there, and of our own.
func TestWriters(t *testing.T) {
	for name, tt := range map[string]struct {
		sddl string
		want int
	}{
		"ours":                  {private, 0},
		"read by all":           {"O:BAG:SYD:P(A;;FA;;;SY)(A;;FA;;;BA)(A;;0x1200a9;;;BU)", 0},
		"written by Users":      {"O:BAG:SYD:P(A;;FA;;;SY)(A;;0x100116;;;BU)", 1},
		"changed by Everyone":   {"O:SYG:SYD:P(A;;FA;;;SY)(A;;SDGA;;;WD)", 1},
		"inherited by others":   {"O:BAG:SYD:P(A;;FA;;;SY)(A;OICIIO;GA;;;CO)", 0},
		"refused":               {"O:BAG:SYD:P(D;;GA;;;BU)(A;;FA;;;SY)", 0},
		"owned by a guest":      {"O:LGG:SYD:P(A;;FA;;;SY)", 1},
		"no list, owned by us":  {"O:BAG:SY", 1},
		"an empty list, for us": {"O:BAG:SYD:P", 0},
	} {
		sd, err := windows.SecurityDescriptorFromString(tt.sddl)
		kit.Need(t, err == nil, "%s: %v", name, err)
		if got, err := writersIn(sd, trusted); err != nil || len(got) != tt.want {
			t.Errorf("%s: %v, %v, want %d", name, got, err, tt.want)
		}
	}
	sd, err := windows.SecurityDescriptorFromString("O:BAG:SYD:P(A;;FA;;;WD)")
	kit.Must(t, err)
	if got, err := writersIn(sd, append(slices.Clone(trusted), "S-1-1-0")); err != nil || len(got) != 0 {
		t.Errorf("an account that is trusted: %v, %v", got, err)
	}
}

// TestProtect takes a folder back that everybody may write to.
func TestProtect(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "data")
	writers := func() []string {
		t.Helper()
		all, err := Writers(dir)
		kit.Must(t, err)
		return all
	}
	if err := Protect(dir); err != nil || len(writers()) != 0 {
		t.Fatalf("made: %v, others that may write: %q", err, writers())
	}
	sd, err := windows.SecurityDescriptorFromString("D:P(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)(A;OICI;FA;;;WD)")
	kit.Must(t, err)
	dacl, _, err := sd.DACL()
	kit.Must(t, err)
	kit.Must(t, windows.SetNamedSecurityInfo(dir, windows.SE_FILE_OBJECT, windows.DACL_SECURITY_INFORMATION|windows.PROTECTED_DACL_SECURITY_INFORMATION, nil, nil, dacl, nil))
	kit.Check(t, len(writers()) != 0, "everybody may write, and nobody is named")
	if err := Protect(dir); err != nil || len(writers()) != 0 {
		t.Errorf("taken back: %v, others that may write: %q", err, writers())
	}
	err = os.WriteFile(filepath.Join(dir, "file"), nil, 0o600)
	kit.Check(t, err == nil, "the program itself: %v", err)
}
