// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package socketlb

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// kernelName returns how much of a program's name the kernel keeps in any case (kernel:
// include/uapi/linux/bpf.h, BPF_OBJ_NAME_LEN). With type information it has all.
func kernelName(program string) string { return program[:min(len(program), 15)] }

// errHidden is why links cannot be listed. Only a process with CAP_SYS_ADMIN may (kernel:
// kernel/bpf/syscall.c, bpf_obj_get_next_id).
var errHidden = errors.New("permission denied")

// attached calls fn for each link of the kernel that attaches a program of this layer, of
// this family and network namespace, wherever it is pinned. If there may be others, the error
// is errHidden.
func (k *kernel) attached(fn func(link.Link) error) error {
	all, err := k.candidates()
	defer func() {
		for _, c := range all {
			c.link.Close()
		}
	}()
	if err != nil && !errors.Is(err, errHidden) {
		return err
	}
	ours := map[ebpf.MapID]bool{}
	for _, c := range all {
		for _, id := range c.maps {
			ours[id] = ours[id] || c.scoped
		}
	}
	for _, c := range all {
		// Programs for getpeername(2) share maps with the others, but not the scope.
		if !c.attached || !slices.ContainsFunc(c.maps, func(id ebpf.MapID) bool { return ours[id] }) {
			continue
		}
		if err := fn(c.link); err != nil {
			return err
		}
	}
	return err
}

// candidate is a link of a program whose name is one of this layer.
type candidate struct {
	link     link.Link
	attached bool // else it stays until it is unpinned
	maps     []ebpf.MapID
	scoped   bool // the scope is of this network namespace and owner
}

// candidates lists all links of programs with the names of the family.
func (k *kernel) candidates() ([]candidate, error) {
	names := map[string]bool{}
	for _, a := range attachments[k.family] {
		names[kernelName(a.program)] = true
	}
	it := new(link.Iterator)
	defer it.Close()
	var all []candidate
	hidden := false
	for it.Next() {
		c, err := k.lookAt(it.Link, names)
		switch {
		case err == nil && c != nil:
			it.Take()
			all = append(all, *c)
		case errors.Is(err, fs.ErrPermission): // a security module may refuse single programs
			hidden = true
		case err != nil && !errors.Is(err, fs.ErrNotExist): // else it went meanwhile
			return all, err
		}
	}
	switch err := it.Err(); {
	case hidden, errors.Is(err, fs.ErrPermission):
		return all, errHidden
	case err != nil && !lacking(err):
		return all, fmt.Errorf("list links of programs: %w", err)
	}
	return all, nil
}

// exclude returns nil if the layer is not in the kernel, although its links cannot be listed
// because of err. Its links end without pins, once no process has them open. And a process
// with CAP_NET_ADMIN may count the programs at a place, of whomever (kernel:
// kernel/bpf/syscall.c, bpf_prog_query).
func (k *kernel) exclude(here pins, err error) error {
	if here == pinsGone {
		return nil
	}
	unseen := &UnseenError{Family: k.family, Err: err}
	if k.cgroup == "" {
		return unseen
	}
	dir, err := os.Open(k.cgroup)
	if err != nil {
		unseen.Err = err
		return unseen
	}
	defer dir.Close()
	used := 0
	for _, a := range attachments[k.family] {
		n, err := countPrograms(int(dir.Fd()), a.attach, unix.BPF_F_QUERY_EFFECTIVE)
		switch {
		case err != nil && lacking(err):
			return nil
		case err != nil:
			unseen.Err = fmt.Errorf("count programs of cgroups: %w", err)
			return unseen
		}
		used += min(n, 1)
	}
	if used == 0 {
		return nil
	}
	unseen.Likely = used == len(attachments[k.family])
	unseen.Err = fmt.Errorf("%d of its %d places have programs of somebody", used, len(attachments[k.family]))
	return unseen
}

// lookAt returns what l is if its program has one of names, else nil.
func (k *kernel) lookAt(l link.Link, names map[string]bool) (*candidate, error) {
	info, err := l.Info()
	if err != nil || info.Type != link.CgroupType || info.Cgroup() == nil {
		return nil, err
	}
	p, err := ebpf.NewProgramFromID(info.Program)
	if err != nil {
		return nil, err
	}
	defer p.Close()
	about, err := p.Info()
	if err != nil || !names[kernelName(about.Name)] {
		return nil, err
	}
	c := &candidate{link: l, attached: info.Cgroup().CgroupId != 0}
	c.maps, _ = about.MapIDs()
	for _, id := range c.maps {
		if c.scoped, err = k.isScope(id); c.scoped || err != nil {
			break
		}
	}
	return c, err
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
