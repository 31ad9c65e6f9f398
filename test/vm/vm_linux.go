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

	"kubeproxy/test/cache"
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

// Files in the cache folder that processes lock.
const (
	lockFile  = "lock"
	proxyLock = "proxy.lock"
)

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
	folder, err := cache.Folder("vm")
	if err != nil {
		return Machine{}, err
	}
	m := Machine{cache: folder}
	if err := os.MkdirAll(m.cache, 0o755); err != nil {
		return m, err
	}
	unlock, err := cache.Lock(ctx, filepath.Join(m.cache, lockFile), nil)
	if err != nil {
		return m, err
	}
	defer unlock()
	if err := m.fetch(ctx, name, out); err != nil {
		return m, fmt.Errorf("kernel %s: %w", name, err)
	}
	if err := m.build(); err != nil {
		return m, fmt.Errorf("make the image for kernel %s: %w", name, err)
	}
	return m, cache.Prune(m.cache, lockFile, proxyLock)
}

// Release is the kernel's version as uname prints it.
func (m Machine) Release() string { return m.kernel.release }

// fetch finds the kernel, or downloads it.
func (m *Machine) fetch(ctx context.Context, name string, out io.Writer) error {
	folder := filepath.Join(m.cache, "kernel-"+name)
	if !cache.Touch(folder) {
		part, lists := folder+".part", filepath.Join(m.cache, "apt")
		err := errors.Join(os.RemoveAll(part), os.RemoveAll(lists), os.MkdirAll(lists, 0o755))
		if err == nil {
			err = apt{folder: lists, out: out}.fetch(ctx, name, part)
		}
		if err == nil {
			err = os.Rename(part, folder)
			cache.Touch(folder) // its time was that of the package
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
	if cache.Touch(m.base) {
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
