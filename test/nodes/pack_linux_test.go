// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"kubeproxy/test/kit"
)

// TestOpenParts checks that a cluster of packed parts has as many nodes as are asked for,
// and finds the parts.
func TestOpenParts(t *testing.T) {
	folder := t.TempDir()
	text := `{"Nodes": 0, "Programs": "/disk/programs", "Tests": "/disk/programs", "Store": "/disk/containerd"}`
	kit.WriteFile(t, filepath.Join(folder, partsFile), text)
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

// TestFillStoreLeavesNothing checks that a network namespace goes whose settings fail.
func TestFillStoreLeavesNothing(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a machine needs root")
	}
	forwarding["none"] = "1"
	t.Cleanup(func() { delete(forwarding, "none") })
	c := &Cluster{Name: "test", folder: t.TempDir()}
	if err := c.fillStore(t.Context(), t.TempDir()); err == nil {
		t.Error("a setting that does not exist is no error")
	}
	left, err := filepath.Glob("/run/netns/kubeproxy-test-store*")
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestJoin checks that clusters keep their programs, when others come or the folder that
// they were built in goes.
func TestJoin(t *testing.T) {
	cache := t.TempDir()
	program := func(folder, name string) string {
		file := filepath.Join(cache, folder, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(folder), 0o755)); err != nil {
			t.Fatal(err)
		}
		return file
	}
	var folders []string
	for _, version := range []string{"old", "new", "new"} {
		folder, err := join(t.Context(), io.Discard, []string{program(version, "containerd"), program("other", "helm")})
		if err != nil {
			t.Fatal(err)
		}
		folders = append(folders, folder)
	}
	if folders[0] == folders[1] || folders[1] != folders[2] {
		t.Errorf("the folders are %v", folders)
	}
	if err := os.RemoveAll(filepath.Join(cache, "old")); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(filepath.Join(folders[0], "containerd")); err != nil || string(text) != "old" {
		t.Errorf("the old cluster has containerd %q, %v", text, err)
	}
}
