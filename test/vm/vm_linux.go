// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// ErrMissing means that this machine cannot run virtual machines.
var ErrMissing = errors.New("something that virtual machines are made of is missing; on Debian: apt-get install " +
	"qemu-system-x86 iptables ipset ipvsadm nftables conntrack iproute2 kmod busybox-static xz-utils zstd")

// emulator is QEMU.
const emulator = "qemu-system-x86_64"

// Machine is a kernel with the programs that are available to every command.
type Machine struct {
	kernel kernel
	base   string // path of the image's first part
	cache  string
}

// cacheLifetime is how long unused files are kept.
const cacheLifetime = 30 * 24 * time.Hour

// Prepare returns the Machine with one of the Kernels. The first call for a kernel
// downloads it, which is reported to out; later ones find it in the folder kubeproxy/vm
// of the user's cache.
func Prepare(ctx context.Context, name string, out io.Writer) (Machine, error) {
	if !slices.Contains(Kernels, name) {
		return Machine{}, unknownKernelError(name)
	}
	if runtime.GOARCH != "amd64" {
		return Machine{}, fmt.Errorf("%w: the kernels are for amd64, this machine is %s", ErrMissing, runtime.GOARCH)
	}
	if _, err := locate(emulator); err != nil {
		return Machine{}, err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return Machine{}, fmt.Errorf("find the cache folder: %w", err)
	}
	m := Machine{cache: filepath.Join(cache, "kubeproxy", "vm")}
	if err := os.MkdirAll(m.cache, 0o755); err != nil {
		return m, err
	}
	unlock, err := lock(ctx, filepath.Join(m.cache, "lock"))
	if err != nil {
		return m, fmt.Errorf("lock %s: %w", m.cache, err)
	}
	defer unlock()
	if err := m.fetch(ctx, name, out); err != nil {
		return m, fmt.Errorf("kernel %s: %w", name, err)
	}
	if err := m.build(); err != nil {
		return m, fmt.Errorf("make the image for kernel %s: %w", name, err)
	}
	return m, m.prune()
}

// Release is the kernel's version as uname prints it.
func (m Machine) Release() string { return m.kernel.release }

// fetch finds the kernel, or downloads it.
func (m *Machine) fetch(ctx context.Context, name string, out io.Writer) error {
	folder := filepath.Join(m.cache, "kernel-"+name)
	if !touch(folder) {
		part, lists := folder+".part", filepath.Join(m.cache, "apt")
		err := errors.Join(os.RemoveAll(part), os.RemoveAll(lists), os.MkdirAll(lists, 0o755))
		if err == nil {
			err = apt{folder: lists, out: out}.fetch(ctx, name, part)
		}
		if err == nil {
			err = os.Rename(part, folder)
			touch(folder) // its time was that of the package
		}
		if err := errors.Join(err, os.RemoveAll(part), os.RemoveAll(lists)); err != nil {
			return err
		}
	}
	var err error
	m.kernel, err = openKernel(folder)
	return err
}

// build finds the first part of the image, or writes it.
func (m *Machine) build() error {
	t, err := base(m.kernel)
	if err != nil {
		return err
	}
	key, err := t.key()
	if err != nil {
		return err
	}
	m.base = filepath.Join(m.cache, "image-"+m.kernel.release+"-"+key)
	if touch(m.base) {
		return nil
	}
	part := m.base + ".part"
	f, err := os.Create(part)
	if err != nil {
		return err
	}
	err = errors.Join(t.write(f), f.Close())
	if err == nil {
		err = os.Rename(part, m.base)
	}
	return err
}

// prune removes files that have long been unused.
func (m Machine) prune() error {
	all, err := filepath.Glob(filepath.Join(m.cache, "*-*"))
	errs := []error{err}
	for _, path := range all {
		if info, err := os.Stat(path); err == nil && time.Since(info.ModTime()) > cacheLifetime {
			errs = append(errs, os.RemoveAll(path))
		}
	}
	return errors.Join(errs...)
}

// touch marks an existing file as used, and returns whether it exists.
func touch(path string) bool {
	now := time.Now()
	return os.Chtimes(path, now, now) == nil
}

// lock waits until no other process holds a lock. The kernel releases the lock of a
// process that dies, see flock(2).
func lock(ctx context.Context, path string) (unlock func() error, err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return f.Close, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return nil, errors.Join(err, f.Close())
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), f.Close())
		case <-time.After(50 * time.Millisecond):
		}
	}
}
