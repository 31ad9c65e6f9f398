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

	"kubeproxy/test/kit"
)

func TestLock(t *testing.T) {
	file := filepath.Join(t.TempDir(), "lock")
	unlock, err := TryLock(file)
	kit.Must(t, err)
	if _, err := TryLock(file); !errors.Is(err, unix.EWOULDBLOCK) {
		t.Errorf("a second lock: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := Lock(ctx, file, cancel); !errors.Is(err, context.Canceled) {
		t.Errorf("a wait that ends: %v", err)
	}
	again, err := Lock(t.Context(), file, unlock) // which it has to wait for
	kit.Must(t, err)
	again()
}

func TestPrune(t *testing.T) {
	dir := t.TempDir()
	old := time.Now().Add(-Lifetime - time.Hour)
	for _, name := range []string{"old", "used", "kept"} {
		path := filepath.Join(dir, name)
		kit.Must(t, errors.Join(os.Mkdir(path, 0o755), os.WriteFile(filepath.Join(path, "file"), nil, 0o600), os.Chtimes(path, old, old)))
	}
	kit.Check(t, Touch(filepath.Join(dir, "used")) && !Touch(filepath.Join(dir, "none")),
		"Touch does not say what exists")
	kit.Must(t, Prune(dir, "kept"))
	for name, want := range map[string]bool{"old": false, "used": true, "kept": true} {
		_, err := os.Stat(filepath.Join(dir, name))
		kit.Check(t, (err == nil) == want, "%s is kept: %t, want %t", name, err == nil, want)
	}
}

// TestMake checks that a thing is made once, that a failure leaves nothing, and that its
// folder counts as used.
func TestMake(t *testing.T) {
	path, made, waits := filepath.Join(t.TempDir(), "folder", "thing"), 0, make(chan struct{})
	failure := errors.New("no space left")
	err := Make(t.Context(), path, nil, func(part string) error { return errors.Join(failure, os.WriteFile(part, nil, 0o600)) })
	left, _ := filepath.Glob(path + "*")
	kit.Check(t, errors.Is(err, failure) && len(left) == 0, "a failure: %v, and it leaves %v", err, left)
	if err := os.Mkdir(path+".part", 0o755); err != nil { // of a process that died
		t.Fatal(err)
	}
	results := make(chan error)
	write := func(part string) error {
		made++
		<-waits
		return os.WriteFile(part, nil, 0o600)
	}
	for range 2 {
		go func() { results <- Make(t.Context(), path, func() { close(waits) }, write) }()
	}
	if err := errors.Join(<-results, <-results); err != nil || made != 1 {
		t.Errorf("two processes: %v, made %d times", err, made)
	}
	old := time.Now().Add(-Lifetime - time.Hour)
	folder := filepath.Dir(path)
	err = errors.Join(os.Chtimes(folder, old, old), Make(t.Context(), path, nil, write), Prune(filepath.Dir(folder)))
	_, there := os.Stat(path)
	kit.Check(t, err == nil && there == nil, "what is used: %v, %v", err, there)
}
