// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// settings are those of the whole kernel that kubelet insists on, below /proc/sys. In a
// machine they are files, so that those of the host stay as they are.
var settings = []string{
	"kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes",
	"vm/overcommit_memory", "vm/panic_on_oom",
}

// mountAll gives the machine file systems of its own where it is not to share those of
// the host.
func (m *Machine) mountAll() error {
	cgroups, err := hierarchies()
	if err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("keep mounts from the host: %w", err)
	}
	for _, own := range []struct{ kind, to, data string }{
		{"proc", "/proc", ""}, {"sysfs", "/sys", ""}, {"tmpfs", "/run", "mode=755"}, {"tmpfs", cgroupRoot, "mode=755"},
	} {
		if err := unix.Mount(own.kind, own.to, own.kind, 0, own.data); err != nil {
			return fmt.Errorf("mount %s: %w", own.to, err)
		}
	}
	// Socket acceleration says so if there is none.
	_ = unix.Mount("bpf", "/sys/fs/bpf", "bpf", 0, "mode=700")
	if err := errors.Join(mountCgroups(cgroups), protectSettings()); err != nil {
		return err
	}
	if err := m.mountDisk(); err != nil {
		return err
	}
	// The lock of iptables is in /run, which is the machine's own.
	if err := os.WriteFile("/run/xtables.lock", nil, 0o600); err != nil {
		return err
	}
	// Pods get mounts that are made later, such as those of volumes.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("share mounts with pods: %w", err)
	}
	return nil
}

// mountDisk gives the machine a /var of its own, where its programs keep what outlives
// them.
func (m *Machine) mountDisk() error {
	for _, name := range []string{"lib/kubelet", "log/pods", "tmp"} {
		if err := os.MkdirAll(filepath.Join(m.path("var"), name), 0o755); err != nil {
			return err
		}
	}
	if err := os.Symlink("/run", filepath.Join(m.path("var"), "run")); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return errors.Join(bind(m.path("var"), "/var"), os.Setenv("TMPDIR", "/var/tmp"))
}

func bind(from, to string) error {
	if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s on %s: %w", from, to, err)
	}
	return nil
}

// protectSettings makes /proc/sys read-only, but for what belongs to the network
// namespace.
func protectSettings() error {
	const sys = "/proc/sys"
	if err := bind(sys, sys); err != nil {
		return err
	}
	if err := unix.Mount("", sys, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		return fmt.Errorf("make %s read-only: %w", sys, err)
	}
	if err := bind(sys+"/net", sys+"/net"); err != nil {
		return err
	}
	if err := unix.Mount("", sys+"/net", "", unix.MS_BIND|unix.MS_REMOUNT, ""); err != nil {
		return fmt.Errorf("make %s/net writable: %w", sys, err)
	}
	for _, name := range settings {
		at, copied := filepath.Join(sys, name), filepath.Join("/run/settings", name)
		text, err := os.ReadFile(at)
		if err != nil {
			return err
		}
		if err := errors.Join(os.MkdirAll(filepath.Dir(copied), 0o755), os.WriteFile(copied, text, 0o644)); err != nil {
			return err
		}
		if err := bind(copied, at); err != nil {
			return err
		}
	}
	return nil
}
