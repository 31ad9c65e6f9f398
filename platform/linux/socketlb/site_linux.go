// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package socketlb

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
)

// LookAtSite returns what this node has for the layer. It changes nothing.
func LookAtSite() (Site, error) { return lookAt(UnifiedRoot()) }

func lookAt(root string, err error) (Site, error) {
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
	s := Site{Root: root, Whole: id == rootID, Pods: findPlace(root).pods()}
	s.NoPrograms, err = lacksPrograms(int(dir.Fd()))
	return s, err
}

// lacksPrograms asks the kernel for the programs of a cgroup. Without CONFIG_CGROUP_BPF it
// answers EINVAL, see cgroup_bpf_prog_query in include/linux/bpf-cgroup.h. It answers EPERM
// to a process without rights, for whom nothing is known.
func lacksPrograms(cgroup int) (bool, error) {
	switch _, err := programsAt(cgroup, ebpf.AttachCGroupInet4Connect, 0); {
	case err == nil, errors.Is(err, unix.EPERM):
		return false, nil
	case lacking(err):
		return true, nil
	default:
		return false, fmt.Errorf("ask for the programs of the cgroups: %w", err)
	}
}

// attachedPrograms are the programs at a place of a cgroup.
type attachedPrograms struct {
	ids   []ebpf.ProgramID
	flags uint32 // with which they were attached, 0 for those of several cgroups
}

// programsAt returns what is attached at a place of a cgroup. With BPF_F_QUERY_EFFECTIVE,
// those of the cgroups above it count, also if these are not to be seen here.
// link.QueryPrograms is no help: it takes a process without rights for a kernel that cannot
// answer.
func programsAt(cgroup int, at ebpf.AttachType, flags uint32) (attachedPrograms, error) {
	// Linux writes the last field even if the size does not include it (6.18:
	// kernel/bpf/cgroup.c, __cgroup_bpf_query).
	query := struct {
		target, attach, flags, attached      uint32
		programs                             uint64
		count, _                             uint32
		programFlags, links, linkFlags, last uint64
	}{target: uint32(cgroup), attach: uint32(at), flags: flags, count: mostPrograms}
	ids := make([]ebpf.ProgramID, mostPrograms)
	query.programs = uint64(uintptr(unsafe.Pointer(&ids[0])))
	_, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_QUERY, uintptr(unsafe.Pointer(&query)), unsafe.Sizeof(query))
	runtime.KeepAlive(ids)
	if errno != 0 {
		return attachedPrograms{}, errno
	}
	return attachedPrograms{ids[:query.count], query.attached}, nil
}

// mostPrograms is how many programs Linux lets be attached at one place of a cgroup (kernel:
// include/linux/bpf-cgroup-defs.h and kernel/bpf/cgroup.c, BPF_CGROUP_MAX_PROGS), and those of
// the cgroups above it.
const mostPrograms = 64 * 16

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
	return Presence{Installed: true, Known: true, Fault: s.Fault, Others: s.Others, Pods: s.Pods}, nil
}
