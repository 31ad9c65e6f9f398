// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package socketlb

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// kernelName is how much of a program's name the kernel keeps (kernel:
// include/uapi/linux/bpf.h, BPF_OBJ_NAME_LEN).
const kernelName = 15

// attached calls fn for each link of the kernel that attaches a program of this layer, of
// this family and network namespace, wherever it is pinned. Only a process with
// CAP_SYS_ADMIN may look for links (kernel: kernel/bpf/syscall.c, bpf_obj_get_next_id), so
// for others there are none.
func (k *kernel) attached(fn func(link.Link) error) error {
	names := map[string]bool{}
	for _, a := range attachments[k.family] {
		names[a.program[:min(len(a.program), kernelName)]] = true
	}
	it := new(link.Iterator)
	defer func() {
		if it.Link != nil {
			it.Link.Close()
		}
	}()
	for it.Next() {
		ours, err := k.isOurs(it.Link, names)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.EPERM) {
			continue // it went meanwhile
		}
		if ours && err == nil {
			err = fn(it.Link)
		}
		if err != nil {
			return err
		}
	}
	if err := it.Err(); err != nil && !errors.Is(err, unix.EPERM) {
		return fmt.Errorf("list links of programs: %w", err)
	}
	return nil
}

// isOurs reports whether l attaches a program with one of names whose scope is this
// network namespace.
func (k *kernel) isOurs(l link.Link, names map[string]bool) (bool, error) {
	info, err := l.Info()
	if err != nil || info.Type != link.CgroupType || info.Cgroup() == nil || info.Cgroup().CgroupId == 0 {
		return false, err
	}
	p, err := ebpf.NewProgramFromID(info.Program)
	if err != nil {
		return false, err
	}
	defer p.Close()
	about, err := p.Info()
	if err != nil || !names[about.Name] {
		return false, err
	}
	maps, _ := about.MapIDs()
	for _, id := range maps {
		if found, err := k.isScope(id); found || err != nil {
			return found, err
		}
	}
	return false, nil
}

// isScope reports whether a map is the scope of this layer. The network namespace and the
// owner are its first words in every version.
func (k *kernel) isScope(id ebpf.MapID) (bool, error) {
	m, err := ebpf.NewMapFromID(id)
	if err != nil {
		return false, err
	}
	defer m.Close()
	about, err := m.Info()
	if err != nil || about.Name != "scope" || about.ValueSize < 16 {
		return false, err
	}
	value, err := m.LookupBytes(uint32(0))
	if err != nil || len(value) < 16 {
		return false, err
	}
	return binary.NativeEndian.Uint64(value) == k.netns && binary.NativeEndian.Uint64(value[8:]) == k.owner, nil
}
