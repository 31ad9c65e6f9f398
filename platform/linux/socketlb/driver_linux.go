// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package socketlb

import (
	"cmp"
	"crypto/sha256"
	_ "embed" // the programs
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2" // seeded by the kernel
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
)

// object is bpf/socketlb.c, compiled by make bpf.
//
//go:embed bpf/socketlb.o
var object []byte

// attachment is a program and its place in a cgroup.
type attachment struct {
	program string
	attach  ebpf.AttachType
}

// attachments are the programs of a family. An IPv6 socket reaches IPv4 by an IPv4-mapped
// address. The getpeername programs come first: a socket that was taken always finds one.
var attachments = [...][]attachment{
	service.IPv4: {
		{"getpeername4", ebpf.AttachCgroupInet4GetPeername},
		{"getpeername4_mapped", ebpf.AttachCgroupInet6GetPeername},
		{"connect4", ebpf.AttachCGroupInet4Connect},
		{"connect4_mapped", ebpf.AttachCGroupInet6Connect},
	},
	service.IPv6: {
		{"getpeername6", ebpf.AttachCgroupInet6GetPeername},
		{"connect6", ebpf.AttachCGroupInet6Connect},
	},
}

// digits ends the names of maps of a family.
var digits = [...]string{service.IPv4: "4", service.IPv6: "6"}

// kernel is the Driver of Linux. What is pinned below dir stays when the process ends:
//
//	DIR/PROGRAM        a link, which attaches a program to the cgroup
//	DIR/sockets, recent, taken
//	                   maps that follow each other's programs
//	DIR/tables-N/...   the other maps and the programs of one Build
//
// While Activate runs there are two folders of tables. Links may then lead to programs of
// either, so Adopt wants to see one.
type kernel struct {
	family service.Family
	mount  string // where the BPF file system is mounted
	dir    string
	cgroup string
	netns  uint64 // cookie
	owner  uint64
	pods   func() string // the cgroup of all pods that are taken
	scope  func() (scope, error)

	mu    sync.Mutex // guards links, ids and place
	links map[string]link.Link
	ids   map[string]ebpf.ProgramID // of the programs that should be attached
	place uint64                    // id of the cgroup

	built  built // by Build, until Activate
	maps   map[string]*ebpf.Map
	mapped [][]byte
	fence  fence
}

// built is what Build made.
type built struct {
	*ebpf.Collection
	kept   map[string]bool // the maps that were pinned before
	mapped [][]byte
}

// NewDriver returns the Driver of this system for family f. It changes nothing. If the
// system lacks something, Build returns what.
func NewDriver(f service.Family, o Options) Driver {
	pins, folder, cgroup := cmp.Or(o.Pins, bpffs), cmp.Or(o.Name, Name), o.Cgroup
	if _, err := os.Stat(filepath.Join(pins, folder)); o.Off && err != nil {
		return &unpinned{unavailable{fmt.Errorf("socket acceleration is off, and nothing is left of it: %w", err)}, kernel{family: f, mount: pins, dir: filepath.Join(pins, folder), cgroup: cgroup, owner: ownerOf(folder)}}
	}
	cookie, err := netnsCookie()
	if err != nil {
		return unavailable{err}
	}
	check := func() error { return nil }
	own := sync.OnceValue(func() place { return findPlace(cgroup) }) // it may read every cgroup
	pods := func() string { return own().pods() }
	if o.NodeOnly {
		pods = func() string { return "" }
	}
	if cgroup == "" {
		if cgroup, err = UnifiedRoot(); err != nil {
			return unavailable{err}
		}
		check = func() error { return checkRoot(cgroup, own().pods()) }
	}
	return &kernel{
		family: f, cgroup: cgroup, mount: pins, netns: cookie, owner: ownerOf(folder),
		dir:  filepath.Join(pins, folder, "netns-"+strconv.FormatUint(cookie, 10), labels[f]),
		pods: pods,
		scope: func() (scope, error) {
			s, err := findScope(pods())
			s.Netns, s.Owner = cookie, ownerOf(folder)
			return s, cmp.Or(err, check())
		},
		links: map[string]link.Link{}, ids: map[string]ebpf.ProgramID{}, maps: map[string]*ebpf.Map{},
	}
}

// version distinguishes programs. Tables are adopted by the same program only.
func version() uint64 { return digest(object) }

// ownerOf distinguishes the layers of proxies in one network namespace, by the name
// of their folders.
func ownerOf(folder string) uint64 { return digest([]byte(folder)) }

func digest(b []byte) uint64 {
	sum := sha256.Sum256(b)
	return binary.LittleEndian.Uint64(sum[:])
}

// Adopt implements Driver.
func (k *kernel) Adopt() (*Memory, error) {
	numbers, err := k.folders()
	if err != nil || len(numbers) != 1 {
		return nil, err // none, or an Activate that did not end
	}
	m, err := k.adopt(k.folder(numbers[0]))
	if err != nil || m == nil {
		k.Release()
	}
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil // a Remove or an Activate that did not end
	}
	return m, err
}

func (k *kernel) adopt(folder string) (*Memory, error) {
	for _, name := range []string{"scope", "frontends", "slots"} {
		m, err := ebpf.LoadPinnedMap(filepath.Join(folder, name), nil)
		if err != nil {
			return nil, err
		}
		k.maps[name] = m
	}
	taken, err := ebpf.LoadPinnedMap(filepath.Join(k.dir, "taken"), nil)
	if err != nil {
		return nil, err
	}
	k.maps["taken"] = taken
	s, err := k.readScope()
	if err != nil || s.Program != version() {
		return nil, err
	}
	for _, a := range attachments[k.family] {
		if err := k.adoptLink(folder, a); err != nil {
			return nil, err
		}
	}
	if err := k.Attached(); err != nil {
		return nil, nil // as good as none
	}
	return k.memory(s.Seed, k.maps, &k.mapped)
}

func (k *kernel) adoptLink(folder string, a attachment) error {
	p, err := ebpf.LoadPinnedProgram(filepath.Join(folder, a.program), nil)
	if err != nil {
		return err
	}
	defer p.Close()
	l, err := link.LoadPinnedLink(filepath.Join(k.dir, a.program), nil)
	if err != nil {
		return err
	}
	return k.remember(a.program, l, p)
}

// remember keeps l, which should attach p.
func (k *kernel) remember(name string, l link.Link, p *ebpf.Program) error {
	info, err := p.Info()
	if err != nil {
		return err
	}
	id, _ := info.ID()
	cgroup, err := cgroupID(k.cgroup)
	k.mu.Lock()
	defer k.mu.Unlock()
	if old := k.links[name]; old != nil {
		old.Close()
	}
	k.links[name], k.ids[name], k.place = l, id, cgroup
	return err
}

// Build implements Driver.
func (k *kernel) Build(frontends, slots int) (*Memory, error) {
	if err := k.checkFileSystem(); err != nil {
		return nil, err
	}
	if err := allowMaps(); err != nil {
		return nil, err
	}
	k.discard()
	if err := k.load(frontends, slots); err != nil {
		return nil, err
	}
	s, err := k.scope()
	if err != nil {
		return nil, err
	}
	s.Mask, s.Program, s.Seed = uint64(frontends-1), version(), rand.Uint64()
	if err := k.built.Maps["scope"].Put(uint32(0), &s); err != nil {
		return nil, fmt.Errorf("write scope: %w", err)
	}
	return k.memory(s.Seed, k.built.Maps, &k.built.mapped)
}

// Activate implements Driver.
func (k *kernel) Activate() error {
	before, err := k.folders()
	if err != nil {
		return err
	}
	number := 1
	for _, n := range before {
		number = max(number, n+1)
	}
	if err := k.pinTables(k.folder(number)); err != nil {
		return err
	}
	for _, a := range attachments[k.family] {
		if err := k.attach(a, k.built.Programs[a.program]); err != nil {
			return fmt.Errorf("attach %s to cgroup %s: %w", a.program, k.cgroup, err)
		}
	}
	for _, n := range before {
		if err := os.RemoveAll(k.folder(n)); err != nil {
			return fmt.Errorf("remove old tables: %w", err)
		}
	}
	for name, m := range k.built.Maps {
		if old := k.maps[name]; old != nil {
			old.Close()
		}
		k.maps[name] = m
	}
	k.built.Maps = nil
	unmap(k.mapped)
	k.mapped, k.built.mapped = k.built.mapped, nil
	k.discard()
	return nil
}

func (k *kernel) pinTables(folder string) error {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return err
	}
	for name, m := range k.built.Maps {
		path := filepath.Join(folder, name)
		if k.built.kept[name] {
			continue
		}
		if name == "sockets" || name == "recent" || name == "taken" {
			path = filepath.Join(k.dir, name)
			if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
		}
		if err := m.Pin(path); err != nil {
			return fmt.Errorf("pin map %s: %w", name, err)
		}
	}
	for name, p := range k.built.Programs {
		if err := p.Pin(filepath.Join(folder, name)); err != nil {
			return fmt.Errorf("pin program %s: %w", name, err)
		}
	}
	return nil
}

// attach runs p in the cgroup, in place of the program that the same link attached before.
func (k *kernel) attach(a attachment, p *ebpf.Program) error {
	path := filepath.Join(k.dir, a.program)
	l, err := link.LoadPinnedLink(path, nil)
	if err == nil && k.isHere(l) {
		if err := l.Update(p); err != nil {
			return err
		}
		return k.remember(a.program, l, p)
	}
	if err == nil { // it is of a cgroup that is gone
		l.Close()
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := k.pinLink(a, p, path); err != nil {
		return err
	}
	if l, err = link.LoadPinnedLink(path, nil); err != nil { // a raw link does not know its cgroup
		return err
	}
	return k.remember(a.program, l, p)
}

// pinLink pins a link that runs p in the cgroup. A link that this process has is used
// again: its pin is gone, or another BPF file system hides it. A second link would leave
// that one in force, with old lists, before the new one.
func (k *kernel) pinLink(a attachment, p *ebpf.Program, path string) error {
	if held := k.links[a.program]; held != nil && k.isHere(held) {
		if err := held.Update(p); err != nil {
			return err
		}
		_ = held.Unpin() // a link takes the pin that it knows of for granted
		return held.Pin(path)
	}
	dir, err := os.Open(k.cgroup)
	if err != nil {
		return err
	}
	defer dir.Close()
	raw, err := link.AttachRawLink(link.RawLinkOptions{Target: int(dir.Fd()), Program: p, Attach: a.attach})
	if errors.Is(err, unix.EPERM) {
		return errors.Join(exclusive(int(dir.Fd()), a.attach), err)
	}
	if err != nil {
		return err
	}
	defer raw.Close()
	return raw.Pin(path)
}

// isHere reports whether l attaches something to the cgroup.
func (k *kernel) isHere(l link.Link) bool {
	info, err := l.Info()
	if err != nil || info.Cgroup() == nil {
		return false
	}
	id, err := cgroupID(k.cgroup)
	return err == nil && info.Cgroup().CgroupId == id
}

// Attached implements Driver.
func (k *kernel) Attached() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	for name, l := range k.links {
		info, err := l.Info()
		switch {
		case err != nil:
			return fmt.Errorf("ask for the link of program %s: %w", name, err)
		case info.Cgroup() == nil || info.Cgroup().CgroupId != k.place:
			return fmt.Errorf("program %s was detached from cgroup %s", name, k.cgroup)
		case info.Program != k.ids[name]:
			return fmt.Errorf("program %s was replaced", name)
		}
		if _, err := os.Stat(filepath.Join(k.dir, name)); err != nil {
			return fmt.Errorf("the pin of program %s is gone: %w", name, err)
		}
	}
	return nil
}

// unpinned is the Driver of a layer that is switched off, and of which no pins are here.
type unpinned struct {
	unavailable
	kernel kernel
}

// Installed implements Driver.
func (u *unpinned) Installed() (bool, error) {
	k := &u.kernel
	all, err := k.candidates()
	for _, c := range all {
		c.link.Close()
	}
	if k.cgroup == "" {
		k.cgroup, _ = UnifiedRoot() // without one, nobody may look
	}
	if errors.Is(err, errHidden) {
		return false, k.exclude(err)
	}
	if len(all) == 0 || err != nil {
		return false, err
	}
	if k.netns, err = netnsCookie(); err != nil {
		return false, err
	}
	return k.Installed()
}

// Remove implements Driver.
func (u *unpinned) Remove() error {
	if u.kernel.netns == 0 { // nothing was found
		return nil
	}
	return u.kernel.Remove()
}
