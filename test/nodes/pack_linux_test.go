// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"io"
	"os"
	"path/filepath"
	"testing"
)

// TestOpenParts checks that a cluster of packed parts has as many nodes as are asked for,
// and finds the parts.
func TestOpenParts(t *testing.T) {
	folder := t.TempDir()
	text := `{"Nodes": 0, "Programs": "/disk/programs", "Tests": "/disk/programs", "Store": "/disk/containerd"}`
	if err := os.WriteFile(filepath.Join(folder, partsFile), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := OpenParts(io.Discard, folder, 3)
	if err != nil {
		t.Fatal(err)
	}
	if c.Nodes != 3 || c.Programs != "/disk/programs" || c.Store != "/disk/containerd" {
		t.Errorf("the cluster is %+v", c)
	}
	if _, err := OpenParts(io.Discard, t.TempDir(), 3); err == nil {
		t.Error("a folder without parts is no error")
	}
}
