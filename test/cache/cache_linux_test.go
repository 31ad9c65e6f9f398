// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package cache

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestLock(t *testing.T) {
	file := filepath.Join(t.TempDir(), "lock")
	unlock, err := TryLock(file)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := TryLock(file); !errors.Is(err, unix.EWOULDBLOCK) {
		t.Errorf("a second lock: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := Lock(ctx, file, cancel); !errors.Is(err, context.Canceled) {
		t.Errorf("a wait that ends: %v", err)
	}
	again, err := Lock(t.Context(), file, unlock) // which it has to wait for
	if err != nil {
		t.Fatal(err)
	}
	again()
}

func TestPrune(t *testing.T) {
	dir := t.TempDir()
	old := time.Now().Add(-Lifetime - time.Hour)
	for _, name := range []string{"old", "used", "kept"} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.Mkdir(path, 0o755), os.WriteFile(filepath.Join(path, "file"), nil, 0o600), os.Chtimes(path, old, old)); err != nil {
			t.Fatal(err)
		}
	}
	if !Touch(filepath.Join(dir, "used")) || Touch(filepath.Join(dir, "none")) {
		t.Error("Touch does not say what exists")
	}
	if err := Prune(dir, "kept"); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"old": false, "used": true, "kept": true} {
		if _, err := os.Stat(filepath.Join(dir, name)); (err == nil) != want {
			t.Errorf("%s is kept: %t, want %t", name, err == nil, want)
		}
	}
}
