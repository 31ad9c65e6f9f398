// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package files

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"kubeproxy/test/kit"
)

// never is longer than any test may take. A Wait of that length missed the change.
const never = time.Minute

// TestNoticed changes a file in each way that people and tools use.
func TestNoticed(t *testing.T) {
	for name, change := range map[string]func(path string) error{
		"rewritten": func(path string) error { return os.WriteFile(path, []byte("b"), 0o600) },
		"renamed over": func(path string) error {
			return errors.Join(os.WriteFile(path+".next", []byte("b"), 0o600), os.Rename(path+".next", path))
		},
		"deleted": os.Remove,
		"deleted and created": func(path string) error {
			return errors.Join(os.Remove(path), os.WriteFile(path, []byte("b"), 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "c.yaml")
			kit.WriteFile(t, path, "a")
			expectNoticed(t, path, func() error { return change(path) })
		})
	}
}

// TestSwapped simulates a mounted volume: the file is a link through a link that is
// replaced, and its own directory entry never changes.
func TestSwapped(t *testing.T) {
	dir := t.TempDir()
	mount := func(version string) error {
		return errors.Join(
			os.Mkdir(filepath.Join(dir, version), 0o755),
			os.WriteFile(filepath.Join(dir, version, "c.yaml"), []byte(version), 0o600),
			os.Symlink(version, filepath.Join(dir, "..data_tmp")),
			os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
	}
	path := filepath.Join(dir, "c.yaml")
	if err := errors.Join(mount("..first"), os.Symlink(filepath.Join("..data", "c.yaml"), path)); err != nil {
		t.Fatal(err)
	}
	expectNoticed(t, path, func() error { return mount("..second") })
}

// expectNoticed requires that change ends a Wait early, and so does a later change of the
// result.
func expectNoticed(t *testing.T, path string, change func() error) {
	t.Helper()
	w := NewWatch(path)
	defer w.Close()
	for _, change := range []func() error{change, func() error { return os.WriteFile(path, []byte("again"), 0o600) }} {
		if err := w.Add(); err != nil {
			t.Fatal(err)
		}
		if err := change(); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		if !w.Wait(t.Context(), never) || time.Since(begin) >= never {
			t.Fatal("not noticed")
		}
	}
}

func TestKicked(t *testing.T) {
	w := NewWatch(filepath.Join(t.TempDir(), "nothing", "here"))
	defer w.Close()
	if err := w.Add(); err != nil {
		t.Errorf("Add of what does not exist: %v", err)
	}
	w.Kick()
	w.Kick()
	begin := time.Now()
	if !w.Wait(t.Context(), never) || time.Since(begin) >= never {
		t.Error("a kick does not end a Wait")
	}
	if !w.Wait(t.Context(), time.Millisecond) {
		t.Error("Wait ended in time, but says that ctx did")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if w.Wait(ctx, never) {
		t.Error("Wait goes on after ctx")
	}
}
