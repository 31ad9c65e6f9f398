// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package socketlb

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
)

// LookAtSite returns what this node has for the layer. It changes nothing.
func LookAtSite() (Site, error) {
	root, err := UnifiedRoot()
	if errors.Is(err, errNoHierarchy) {
		return Site{}, nil
	}
	if err != nil {
		return Site{}, err
	}
	id, err := cgroupID(root)
	if err != nil {
		return Site{}, err
	}
	dir, err := os.Open(root)
	if err != nil {
		return Site{}, err
	}
	defer dir.Close()
	s := Site{Root: root, Whole: id == rootID, Pods: findPods(root)}
	s.NoPrograms, err = lacksPrograms(int(dir.Fd()))
	return s, err
}

// lacksPrograms asks the kernel for the programs of a cgroup. Without CONFIG_CGROUP_BPF it
// answers EINVAL, see cgroup_bpf_prog_query in include/linux/bpf-cgroup.h. It answers EPERM
// to a process without rights, for whom nothing is known.
func lacksPrograms(cgroup int) (bool, error) {
	switch _, err := countPrograms(cgroup, ebpf.AttachCGroupInet4Connect, 0); {
	case err == nil, errors.Is(err, unix.EPERM):
		return false, nil
	case lacking(err):
		return true, nil
	default:
		return false, fmt.Errorf("ask for the programs of the cgroups: %w", err)
	}
}

// countPrograms returns how many programs are attached at a place of a cgroup. With
// BPF_F_QUERY_EFFECTIVE, those of the cgroups above it count, also if these are not to be
// seen here. link.QueryPrograms is no help: it takes a process without rights for a kernel
// that cannot answer.
func countPrograms(cgroup int, at ebpf.AttachType, flags uint32) (int, error) {
	// Linux writes the last field even if the size does not include it (6.18:
	// kernel/bpf/cgroup.c, __cgroup_bpf_query).
	query := struct {
		target, attach, flags, attached      uint32
		programs                             uint64
		count, _                             uint32
		programFlags, links, linkFlags, last uint64
	}{target: uint32(cgroup), attach: uint32(at), flags: flags}
	_, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_QUERY, uintptr(unsafe.Pointer(&query)), unsafe.Sizeof(query))
	if errno != 0 {
		return 0, errno
	}
	return int(query.count), nil
}

// lacking reports whether err is that of a kernel without what the layer consists of.
func lacking(err error) bool {
	return errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) || errors.Is(err, ebpf.ErrNotSupported)
}

// LookFor returns what the kernel has of the layer of family f. It changes nothing.
func LookFor(f service.Family, o Options) (Presence, error) {
	d := NewDriver(f, o)
	if l, is := d.(unavailable); is {
		return Presence{}, l.reason
	}
	defer d.Release()
	found, err := d.Installed()
	if err != nil || !found {
		return Presence{}, err
	}
	s, err := d.Inspect()
	if err != nil {
		return Presence{Installed: true}, fmt.Errorf("read back socket acceleration of %s: %w", f, err)
	}
	if s == nil {
		return Presence{Installed: true}, nil
	}
	return Presence{Installed: true, Known: true, Fault: s.Fault, Pods: s.Pods}, nil
}
