// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package socketlb

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestObjectIsCompiled compares the committed programs with their source.
func TestObjectIsCompiled(t *testing.T) {
	if _, err := exec.LookPath("clang-14"); err != nil {
		t.Skipf("the programs are compiled with clang-14, which build/setup.sh bpf installs: %v", err)
	}
	out := filepath.Join(t.TempDir(), "socketlb.o")
	if text, err := exec.Command("bpf/compile.sh", out).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	fresh, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(fresh, object) {
		t.Error("bpf/socketlb.o is not what bpf/socketlb.c compiles to: run make bpf")
	}
}
