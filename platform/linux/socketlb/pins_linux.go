// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package socketlb

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// checkFileSystem returns what the node lacks for pins. Without them the layer would leave
// the kernel with each stop of the process.
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

// Release implements Driver.
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

// Barrier implements Driver.
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

// Taken implements Driver.
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
