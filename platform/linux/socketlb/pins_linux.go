// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package socketlb

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
	"kubeproxy/common/takeover"
)

// checkFileSystem returns what the node lacks for pins, by which the layer outlives the process.
func (k *kernel) checkFileSystem() error {
	var s unix.Statfs_t
	if err := unix.Statfs(k.mount, &s); err != nil {
		return fmt.Errorf("ask for the file system of %s: %w", k.mount, err)
	}
	if s.Type != unix.BPF_FS_MAGIC {
		return fmt.Errorf("no BPF file system is mounted at %s: run mount -t bpf bpf %s, or mount that folder of the host into the container", k.mount, k.mount)
	}
	return nil
}

const tablesPrefix = "tables-"

func (k *kernel) folder(n int) string { return filepath.Join(k.dir, tablesPrefix+strconv.Itoa(n)) }

// folders lists the numbers of the folders of tables.
func (k *kernel) folders() ([]int, error) {
	entries, err := os.ReadDir(k.dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	var all []int
	for _, e := range entries {
		if rest, ok := strings.CutPrefix(e.Name(), tablesPrefix); ok {
			if n, err := strconv.Atoi(rest); err == nil {
				all = append(all, n)
			}
		}
	}
	return all, err
}

// Installed implements Driver. The BPF file system of the node may not be mounted here, so
// the kernel is asked, too.
func (k *kernel) Installed() (bool, error) {
	if here, err := k.pinned(); here || err != nil {
		return here, err
	}
	found := false
	err := k.attached(func(link.Link) error {
		found = true
		return nil
	})
	if !found && errors.Is(err, errHidden) {
		err = k.exclude(err)
	}
	return found, err
}

// pinned reports whether this process sees pins of the layer.
func (k *kernel) pinned() (bool, error) {
	_, err := os.Stat(k.dir)
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// Remove implements Driver. Detaching is what counts, so it comes first, and it does not
// wait until other processes close what they have open.
func (k *kernel) Remove() error {
	var errs []error
	err := k.attached(func(l link.Link) error { return l.Detach() })
	if !errors.Is(err, errHidden) {
		errs = append(errs, err)
	}
	here, pinErr := k.pinned()
	if here {
		errs = append(errs, k.detachPinned())
	}
	k.mu.Lock()
	for _, l := range k.links { // their pins may be gone
		if err := l.Detach(); err != nil && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, err)
		}
	}
	k.mu.Unlock()
	k.Release()
	if errs = append(errs, pinErr); here && errors.Join(errs...) == nil {
		errs = append(errs, os.RemoveAll(k.dir))
		os.Remove(filepath.Dir(k.dir))               // unless the other family is there
		os.Remove(filepath.Dir(filepath.Dir(k.dir))) // unless another node is there
	}
	if errors.Is(err, errHidden) {
		errs = append(errs, k.exclude(errHidden))
	}
	return errors.Join(errs...)
}

func (k *kernel) detachPinned() error {
	var errs []error
	for _, a := range attachments[k.family] {
		l, err := link.LoadPinnedLink(filepath.Join(k.dir, a.program), nil)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err == nil {
			err = l.Detach()
			l.Close()
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("detach program %s: %w", a.program, err))
		}
	}
	return errors.Join(errs...)
}

func (k *kernel) Release() {
	k.mu.Lock()
	for _, l := range k.links {
		l.Close()
	}
	clear(k.links)
	clear(k.ids)
	k.mu.Unlock()
	unmap(k.mapped)
	k.mapped = nil
	for _, m := range k.maps {
		m.Close()
	}
	clear(k.maps)
	k.discard()
}

// discard closes what Build left.
func (k *kernel) discard() {
	if k.built.Collection != nil {
		k.built.Close()
	}
	unmap(k.built.mapped)
	k.built = built{}
}

func unmap(all [][]byte) {
	for _, b := range all {
		_ = unix.Munmap(b) // fails only for what was never mapped
	}
}

// memory maps the tables of maps into this process, and adds that to mapped.
func (k *kernel) memory(seed uint64, maps map[string]*ebpf.Map, mapped *[][]byte) (*Memory, error) {
	m := &Memory{family: k.family, seed: seed}
	for name, table := range map[string]*[]uint64{"frontends": &m.frontends, "slots": &m.slots} {
		m := maps[name]
		size := int(m.MaxEntries()) * int(m.ValueSize()) // of a value, too, a multiple of eight
		b, err := unix.Mmap(m.FD(), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			return nil, fmt.Errorf("map %s into memory: %w", name, err)
		}
		*mapped = append(*mapped, b)
		*table = unsafe.Slice((*uint64)(unsafe.Pointer(&b[0])), size/8)
	}
	return m, nil
}

// fence waits for programs. A change of a map of maps returns when each program that runs
// has ended, see https://git.kernel.org/linus/1ae80cf31938.
type fence struct{ outer, inner *ebpf.Map }

func (k *kernel) Barrier() error {
	f := &k.fence
	if f.outer == nil {
		inner := &ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1}
		outer := &ebpf.MapSpec{Type: ebpf.ArrayOfMaps, KeySize: 4, ValueSize: 4, MaxEntries: 1, InnerMap: inner}
		in, err := ebpf.NewMap(inner)
		if err != nil {
			return fmt.Errorf("make a map to wait for programs: %w", err)
		}
		out, err := ebpf.NewMap(outer)
		if err != nil {
			in.Close()
			return fmt.Errorf("make a map of maps to wait for programs: %w", err)
		}
		*f = fence{out, in}
	}
	if err := f.outer.Put(uint32(0), f.inner); err != nil {
		return fmt.Errorf("wait for programs: %w", err)
	}
	return nil
}

func (k *kernel) Taken() (t Taken, err error) {
	m, err := ebpf.LoadPinnedMap(filepath.Join(k.dir, "taken"), &ebpf.LoadPinOptions{ReadOnly: true})
	if errors.Is(err, os.ErrNotExist) {
		return t, nil
	}
	if err != nil {
		return t, err
	}
	defer m.Close()
	for i, sum := range []*uint64{&t.Node, &t.Pods}[:min(m.MaxEntries(), 2)] { // an older program has one
		var each []uint64
		if err := m.Lookup(uint32(i), &each); err != nil {
			return t, err
		}
		for _, n := range each {
			*sum += n
		}
	}
	return t, nil
}

// Leftovers is the layer that an earlier process may have left in the kernel.
type Leftovers struct {
	Family  service.Family
	Options Options
	// Wanted is whether the configuration has the layer, and so suspects it where it may not look.
	Wanted bool
}

// String names the layer.
func (l Leftovers) String() string { return "socket acceleration of " + l.Family.String() }

// Find returns a description of what exists, or "" if there is no layer. The error is a
// takeover.UncheckedError if this process may not look.
func (l Leftovers) Find(context.Context) (string, error) {
	k, err := l.search()
	if err != nil || k == nil {
		return "", l.unchecked(err)
	}
	found, err := k.Installed()
	switch {
	case err != nil:
		return "", l.unchecked(fmt.Errorf("look for %s: %w", l, err))
	case found:
		return "programs", nil
	}
	return "", nil
}

// Remove takes the layer out of the kernel, if it is there. It may fail as Find does.
func (l Leftovers) Remove(context.Context) error {
	k, err := l.search()
	if err != nil || k == nil {
		return l.unchecked(err)
	}
	defer k.Release()
	if err := k.Remove(); err != nil {
		return l.unchecked(fmt.Errorf("remove %s: %w", l, err))
	}
	return nil
}

// Evict detaches what earlier processes attached and what is not pinned here, where the layer
// is on: those pins are in a BPF file system that another one hides.
func (l Leftovers) Evict() error {
	k, err := l.search()
	if err != nil || k == nil || k.checkFileSystem() != nil { // else all would count
		return known(err)
	}
	defer k.Release()
	k.links = map[string]link.Link{}
	for _, a := range attachments[l.Family] {
		if pinned, err := link.LoadPinnedLink(filepath.Join(k.dir, a.program), nil); err == nil {
			k.links[a.program] = pinned
		}
	}
	if err := k.Evict(); err != nil {
		return fmt.Errorf("detach programs of %s that an earlier process left: %w", l, err)
	}
	return nil
}

func (l Leftovers) unchecked(err error) error {
	if unseen, is := errors.AsType[*UnseenError](err); is {
		return &takeover.UncheckedError{Err: unseen, Suspected: unseen.Likely || l.Wanted}
	}
	return err
}

// search returns a kernel that can find and remove the layer, which needs less than to run it, such
// as no cgroups. It is nil if nothing of the layer can be in this kernel.
func (l Leftovers) search() (*kernel, error) {
	o := l.Options
	folder := cmp.Or(o.Name, Name)
	k := &kernel{family: l.Family, mount: cmp.Or(o.Pins, bpffs), cgroup: o.Cgroup, owner: ownerOf(folder)}
	var err error
	if k.cgroup == "" {
		k.cgroup, err = UnifiedRoot()
	}
	if errors.Is(err, errNoHierarchy) {
		used, readErr := hierarchyUsed()
		if err = readErr; err == nil && !used {
			return nil, nil
		}
	}
	if err != nil {
		return nil, err
	}
	k.netns, err = netnsCookie()
	switch {
	case err != nil && lacking(err):
		return nil, nil
	case err != nil:
		return nil, k.exclude(err)
	}
	k.dir = filepath.Join(k.mount, folder, "netns-"+strconv.FormatUint(k.netns, 10), labels[l.Family])
	return k, nil
}

// hierarchyUsed reports whether the cgroup hierarchy of version 2 is or was mounted somewhere
// on this machine: only then it is in this file, see proc_cgroup_show of
// kernel/cgroup/cgroup.c. A container beside version 1 may not see it mounted.
func hierarchyUsed() (bool, error) {
	text, err := os.ReadFile("/proc/self/cgroup")
	return bytes.HasPrefix(text, []byte("0::")) || bytes.Contains(text, []byte("\n0::")), err
}

// kernelName returns how much of a program's name the kernel keeps in any case (kernel:
// include/uapi/linux/bpf.h, BPF_OBJ_NAME_LEN). With type information it has all.
func kernelName(program string) string { return program[:min(len(program), 15)] }

// errHidden is why links cannot be listed. Only a process with CAP_SYS_ADMIN may (kernel:
// kernel/bpf/syscall.c, bpf_obj_get_next_id).
var errHidden = errors.New("permission denied")

// attached calls fn for each link, wherever pinned, that attaches a program of this layer, family
// and network namespace. If there may be others, the error is errHidden.
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

// Others implements Driver. Who may not list links knows the numbers of all programs at a place,
// and those that are pinned here, also by other proxies.
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

// pinnedPrograms returns attached or pinned programs of any layer, family and namespace.
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

// exclusive says which programs let no other be attached at a place. The kernel answers EPERM, as
// without rights (kernel: kernel/bpf/cgroup.c, hierarchy_allows_attach and __cgroup_bpf_attach).
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

// isScope reports whether a map is this layer's scope, by namespace and owner, its first words.
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
