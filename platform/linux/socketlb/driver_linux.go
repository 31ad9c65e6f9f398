// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package socketlb

import (
	"bytes"
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
	"strings"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
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

// NewDriver returns this system's Driver for family f. Build tells what the system lacks.
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

// ownerOf distinguishes layers in one network namespace, by the name of their folders.
func ownerOf(folder string) uint64 { return digest([]byte(folder)) }

func digest(b []byte) uint64 {
	sum := sha256.Sum256(b)
	return binary.LittleEndian.Uint64(sum[:])
}

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
	if err := k.openTables(folder); err != nil {
		return nil, err
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

// openTables opens the maps that are pinned in a folder.
func (k *kernel) openTables(folder string) error {
	for _, name := range []string{"scope", "frontends", "slots"} {
		m, err := ebpf.LoadPinnedMap(filepath.Join(folder, name), nil)
		if err != nil {
			return fmt.Errorf("open map %s: %w", name, err)
		}
		k.maps[name] = m
	}
	return nil
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

func (u *unpinned) Remove() error {
	if u.kernel.netns == 0 { // nothing was found
		return nil
	}
	return u.kernel.Remove()
}

// load loads the maps and programs of the family.
func (k *kernel) load(frontends, slots int) error {
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(object))
	if err != nil {
		return fmt.Errorf("read the programs of socket acceleration: %w", err)
	}
	d := digits[k.family]
	spec.Maps["frontends"+d].MaxEntries = uint32(frontends)
	spec.Maps["slots"+d].MaxEntries = uint32(slots)
	part := &ebpf.CollectionSpec{Maps: map[string]*ebpf.MapSpec{}, Programs: map[string]*ebpf.ProgramSpec{}, ByteOrder: spec.ByteOrder, Types: spec.Types}
	for _, name := range []string{"scope", "taken", "frontends" + d, "slots" + d, "sockets" + d, "recent" + d} {
		part.Maps[name] = spec.Maps[name]
	}
	for _, a := range attachments[k.family] {
		part.Programs[a.program] = spec.Programs[a.program]
	}
	pinned := map[string]*ebpf.Map{}
	kept := map[string]bool{}
	for pin, name := range map[string]string{"sockets": "sockets" + d, "recent": "recent" + d, "taken": "taken"} {
		m, err := ebpf.LoadPinnedMap(filepath.Join(k.dir, pin), nil)
		if err != nil {
			continue // there is none
		}
		defer m.Close()
		if spec.Maps[name].Compatible(m) == nil {
			pinned[name], kept[pin] = m, true
		}
	}
	o := ebpf.CollectionOptions{MapReplacements: pinned}
	c, err := ebpf.NewCollectionWithOptions(part, o)
	if err != nil {
		return fmt.Errorf("load the programs of socket acceleration: %w", k.firstRefusal(part, o, err))
	}
	for _, name := range []string{"frontends", "slots", "sockets", "recent"} {
		c.Maps[name] = c.Maps[name+d]
		delete(c.Maps, name+d)
	}
	k.built = built{Collection: c, kept: kept}
	return nil
}

// firstRefusal returns why the kernel refuses the first of the programs that it refuses. A
// collection is loaded in any order, and an error that changes would be logged anew.
func (k *kernel) firstRefusal(all *ebpf.CollectionSpec, o ebpf.CollectionOptions, err error) error {
	for _, a := range attachments[k.family] {
		one := *all
		one.Programs = map[string]*ebpf.ProgramSpec{a.program: all.Programs[a.program]}
		c, err := ebpf.NewCollectionWithOptions(&one, o)
		if err != nil {
			return err
		}
		c.Close()
	}
	return err
}

// checkRights returns an error that names the capabilities which this process lacks. The
// kernel says only that it refuses a program, or which of its steps could speculate.
func checkRights() error {
	self := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var rights [2]unix.CapUserData
	if err := unix.Capget(&self, &rights[0]); err != nil {
		return fmt.Errorf("ask for the capabilities: %w", err)
	}
	has := func(right int) bool { return rights[right/32].Effective&(1<<(right%32)) != 0 }
	var lacks []string
	for _, r := range []struct {
		name   string
		number int
	}{{"CAP_BPF", unix.CAP_BPF}, {"CAP_PERFMON", unix.CAP_PERFMON}} {
		if !has(r.number) && !has(unix.CAP_SYS_ADMIN) {
			lacks = append(lacks, r.name)
		}
	}
	if !has(unix.CAP_NET_ADMIN) {
		lacks = append(lacks, "CAP_NET_ADMIN")
	}
	if len(lacks) > 0 {
		return fmt.Errorf("more rights are needed: %s", strings.Join(lacks, ", "))
	}
	return nil
}

// allowMaps checks the rights, and lifts the limit that kernels before 5.11 set to the memory
// of maps, see https://pkg.go.dev/github.com/cilium/ebpf/rlimit.
func allowMaps() error {
	if err := checkRights(); err != nil {
		return err
	}
	err := rlimit.RemoveMemlock()
	if errors.Is(err, unix.EPERM) {
		return errors.New("the kernel lets this process make no maps: the right CAP_BPF of the host is needed, before Linux 5.11 CAP_SYS_RESOURCE, too")
	}
	if err != nil {
		return fmt.Errorf("allow memory for maps: %w", err)
	}
	return nil
}
