// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package socketlb

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

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
// because of err. That no pins are here says nothing: they may be in a BPF file system over
// which another one was mounted. But a process with CAP_NET_ADMIN may count the programs at a
// place, of whomever (kernel: kernel/bpf/syscall.c, bpf_prog_query).
func (k *kernel) exclude(err error) error {
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
	known := k.pinnedPrograms()
	used, likely := 0, true
	for _, a := range attachments[k.family] {
		here, err := programsAt(int(dir.Fd()), a.attach, unix.BPF_F_QUERY_EFFECTIVE)
		switch {
		case err != nil && lacking(err):
			return nil
		case err != nil:
			unseen.Err = fmt.Errorf("count programs of cgroups: %w", err)
			return unseen
		}
		unknown := len(slices.DeleteFunc(here.ids, func(id ebpf.ProgramID) bool { return known[id] }))
		used += min(unknown, 1)
		likely = likely && unknown > ofDatagrams(int(dir.Fd()), a.attach)
	}
	if used == 0 {
		return nil
	}
	unseen.Likely = likely
	unseen.Err = fmt.Errorf("%d of its %d places have programs of somebody", used, len(attachments[k.family]))
	return unseen
}

// ofDatagrams returns how many programs are where this layer has none, and load balancers
// of others that have programs at a place have one, too: they serve UDP.
func ofDatagrams(cgroup int, place ebpf.AttachType) int {
	beside := map[ebpf.AttachType]ebpf.AttachType{
		ebpf.AttachCGroupInet4Connect: ebpf.AttachCGroupUDP4Sendmsg, ebpf.AttachCgroupInet4GetPeername: ebpf.AttachCGroupUDP4Sendmsg,
		ebpf.AttachCGroupInet6Connect: ebpf.AttachCGroupUDP6Sendmsg, ebpf.AttachCgroupInet6GetPeername: ebpf.AttachCGroupUDP6Sendmsg,
	}
	there, _ := programsAt(cgroup, beside[place], unix.BPF_F_QUERY_EFFECTIVE) // the place itself was answered
	return len(there.ids)
}

// Evict implements Driver.
func (k *kernel) Evict() error {
	err := k.strays(func(l link.Link) error { return l.Detach() })
	if errors.Is(err, errHidden) {
		return nil
	}
	return err
}

// strays calls fn for each link that attaches a program of this layer and that this process
// does not have: an earlier one pinned it in a BPF file system that is not to be seen here.
func (k *kernel) strays(fn func(link.Link) error) error {
	kept := map[link.ID]bool{}
	k.mu.Lock()
	for _, l := range k.links {
		if info, err := l.Info(); err == nil {
			kept[info.ID] = true
		}
	}
	k.mu.Unlock()
	return k.attached(func(l link.Link) error {
		if info, err := l.Info(); err != nil || kept[info.ID] {
			return err
		}
		return fn(l)
	})
}

// Others implements Driver. A process that may not list links knows the numbers of all
// programs at a place, and those of the programs that are pinned here, also by other
// proxies.
func (k *kernel) Others() (o Others, err error) {
	err = k.strays(func(link.Link) error {
		o.Strays++
		return nil
	})
	if o.Strays > 0 {
		o.Text = fmt.Sprintf("programs of an earlier process are attached, too, and decide first, with old lists: %d", o.Strays)
		return o, nil
	}
	if errors.Is(err, errHidden) {
		o.Text, err = k.unknown()
	}
	return o, err
}

// unknown names programs that nobody pinned here, and that may decide first.
func (k *kernel) unknown() (string, error) {
	dir, err := os.Open(k.cgroup)
	if err != nil {
		return "", err
	}
	defer dir.Close()
	known := k.pinnedPrograms()
	var unknown []string
	for _, a := range attachments[k.family] {
		there, err := programsAt(int(dir.Fd()), a.attach, 0)
		if err != nil {
			return "", fmt.Errorf("ask for the programs of cgroup %s: %w", k.cgroup, err)
		}
		for _, id := range there.ids {
			if !known[id] && connects(a.attach) {
				unknown = append(unknown, strconv.Itoa(int(id)))
			}
		}
	}
	if unknown == nil {
		return "", nil
	}
	return fmt.Sprintf("programs with the ids %s are attached to cgroup %s, too; if an earlier process left them in another BPF file system, "+
		"they decide first, with old lists: a process with the capability SYS_ADMIN finds and removes such programs", strings.Join(unknown, ", "), k.cgroup), nil
}

// connects reports whether programs at a place give sockets their endpoint.
func connects(at ebpf.AttachType) bool {
	return at == ebpf.AttachCGroupInet4Connect || at == ebpf.AttachCGroupInet6Connect
}

// pinnedPrograms returns the programs of this layer that are attached or pinned, of all
// families, network namespaces and proxies.
func (k *kernel) pinnedPrograms() map[ebpf.ProgramID]bool {
	known := map[ebpf.ProgramID]bool{}
	k.mu.Lock()
	for _, id := range k.ids {
		known[id] = true
	}
	k.mu.Unlock()
	paths, _ := filepath.Glob(filepath.Join(k.mount, Name+"*", "netns-*", "*", tablesPrefix+"*", "*"))
	for _, path := range paths {
		p, err := ebpf.LoadPinnedProgram(path, nil)
		if err != nil {
			continue // it is a map, or went meanwhile
		}
		if info, err := p.Info(); err == nil {
			if id, ok := info.ID(); ok {
				known[id] = true
			}
		}
		p.Close()
	}
	return known
}

// exclusive says which programs let no other be attached at a place of a cgroup, nil if none
// do. The kernel answers EPERM, as to a process without rights (kernel: kernel/bpf/cgroup.c,
// hierarchy_allows_attach and __cgroup_bpf_attach).
func exclusive(cgroup int, at ebpf.AttachType) error {
	here, err := programsAt(cgroup, at, 0)
	if err != nil || len(here.ids) > 0 && here.flags&unix.BPF_F_ALLOW_MULTI != 0 {
		return nil
	}
	where := "there"
	if len(here.ids) == 0 {
		where = "to a cgroup above it"
		if here, err = programsAt(cgroup, at, unix.BPF_F_QUERY_EFFECTIVE); err != nil || len(here.ids) == 0 {
			return nil
		}
	}
	return fmt.Errorf("program %d of somebody is attached %s exclusively, without BPF_F_ALLOW_MULTI; bpftool prog show id %[1]d names it", here.ids[0], where)
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
