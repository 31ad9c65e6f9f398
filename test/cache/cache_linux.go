// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cache keeps what tests make once on a machine and use again: kernels, programs of
// other projects, prefixes of Wine. One process makes a thing while others wait. What nobody
// has used for a month goes.
package cache

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Lifetime is how long a thing is kept that nobody uses.
const Lifetime = 30 * 24 * time.Hour

// Folder returns the folder with a name in this project's part of the user's cache. It
// need not exist.
func Folder(name string) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the cache folder: %w", err)
	}
	return filepath.Join(cache, "kubeproxy", name), nil
}

// Touch marks a file or folder as used, and returns whether it exists.
func Touch(path string) bool {
	now := time.Now()
	return os.Chtimes(path, now, now) == nil
}

// TryLock takes the lock of a file, which it makes. The error is unix.EWOULDBLOCK if
// another process holds it. The kernel releases the lock of a process that dies, see
// flock(2).
func TryLock(file string) (unlock func(), err error) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", file, err), f.Close())
	}
	return func() { f.Close() }, nil
}

// Lock is TryLock, and waits until no other process holds the lock. It calls waiting, if
// not nil, once if it has to wait.
func Lock(ctx context.Context, file string, waiting func()) (unlock func(), err error) {
	for {
		unlock, err := TryLock(file)
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return unlock, err
		}
		if waiting != nil {
			waiting()
			waiting = nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("lock %s: %w", file, ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Make makes a file or folder unless it is there: one process makes it, under a lock, while
// others wait. A process that dies leaves nothing that looks complete. The folder around it
// counts as used.
func Make(ctx context.Context, path string, waiting func(), build func(part string) error) error {
	folder := filepath.Dir(path)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	Touch(folder)
	there := func() bool { _, err := os.Stat(path); return err == nil }
	if there() {
		return nil
	}
	unlock, err := Lock(ctx, filepath.Join(folder, "lock"), waiting)
	if err != nil {
		return err
	}
	defer unlock()
	if there() { // maybe since we wait for the lock
		return nil
	}
	part := path + ".part"
	err = os.RemoveAll(part) // of a process that died
	if err == nil {
		err = build(part)
	}
	if err == nil {
		err = os.Rename(part, path)
	}
	if err != nil {
		err = errors.Join(err, os.RemoveAll(part))
	}
	return err
}

// Prune removes what is in a folder and was not touched within Lifetime, except what has
// one of the names.
func Prune(folder string, keep ...string) error {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return fmt.Errorf("list what was not used for long: %w", err)
	}
	var errs []error
	for _, e := range entries {
		info, err := e.Info() // another process may have removed it
		if err == nil && !slices.Contains(keep, e.Name()) && time.Since(info.ModTime()) > Lifetime {
			errs = append(errs, os.RemoveAll(filepath.Join(folder, e.Name())))
		}
	}
	return errors.Join(errs...)
}
