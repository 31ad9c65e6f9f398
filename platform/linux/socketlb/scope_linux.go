// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package socketlb

import (
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
)

// scope selects the sockets that are taken, in the form that the programs read.
type scope struct {
	Netns   uint64
	Owner   uint64
	Pods    uint64
	Nested  [2]uint64
	Mask    uint64
	Program uint64
	Seed    uint64
}

// readScope returns the scope of the tables, none if they are of a program with another one.
func (k *kernel) readScope() (s scope, err error) {
	m := k.maps["scope"]
	if m.ValueSize() != uint32(unsafe.Sizeof(s)) {
		return s, nil
	}
	return s, m.Lookup(uint32(0), &s)
}

// UnifiedRoot returns where the hierarchy of cgroups v2 is mounted: the last place, which nothing
// hides, and rather one that begins at the root of the node.
func UnifiedRoot() (string, error) {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return "", err
	}
	return unifiedRoot(string(mounts))
}

func unifiedRoot(mounts string) (string, error) {
	root, whole := "", false
	err := errNoHierarchy
	for line := range strings.Lines(mounts) {
		field := strings.Fields(line)
		if len(field) < 3 || field[2] != "cgroup2" {
			continue
		}
		var s unix.Statfs_t
		if e := unix.Statfs(field[1], &s); e != nil || s.Type != unix.CGROUP2_SUPER_MAGIC {
			err = fmt.Errorf("the cgroup hierarchy of version 2 at %s cannot be reached, or something is mounted over it: %w", field[1], cmp.Or(e, error(unix.ENOENT)))
			continue
		}
		if id, e := cgroupID(field[1]); e == nil && (id == rootID || !whole) {
			root, whole = field[1], id == rootID
		}
	}
	if root == "" {
		return "", err
	}
	return root, nil
}

var errNoHierarchy = errors.New("no cgroup hierarchy of version 2 is mounted")

// cgroupID returns the number of a cgroup that programs see. It is the inode of its
// folder, see https://git.kernel.org/linus/743210386c03.
func cgroupID(path string) (uint64, error) {
	var s unix.Stat_t
	if err := unix.Stat(path, &s); err != nil {
		return 0, fmt.Errorf("look at cgroup %s: %w", path, err)
	}
	return s.Ino, nil
}

// rootID is the number of the cgroup that contains all.
const rootID = 1

// findScope returns the pods whose sockets are taken: those below pods, if there are any. The kubelet makes a cgroup of
// all pods, in it one for each pod, those of two classes of service one level further
// down, and in these one for each container. Its drivers name the cgroups differently,
// see pkg/kubelet/cm/cgroup_manager_linux.go of kubernetes/kubernetes.
func findScope(pods string) (scope, error) {
	var s scope
	if pods == "" {
		return s, nil
	}
	classes := classes(pods)
	for path, id := range map[string]*uint64{
		pods: &s.Pods, classes[0]: &s.Nested[0], classes[1]: &s.Nested[1],
	} {
		var err error
		if *id, err = cgroupID(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return s, err // a cgroup may go at any time
		}
	}
	return s, nil
}

// checkRoot returns an error if the hierarchy below cgroup has no process but those of
// this container. A cgroup namespace hides the others, and then the folder of the host has
// to be mounted. A node that is a container has a root of its own, but pods in it.
func checkRoot(cgroup, pods string) error {
	id, err := cgroupID(cgroup)
	if err != nil {
		return err
	}
	if id == rootID || pods != "" {
		return nil
	}
	return fmt.Errorf("the cgroup hierarchy at %s begins below the root of the node, and no pods are in it: mount the folder /sys/fs/cgroup of the host into the container", cgroup)
}

// scopes returns the scope of the tables, and what it should be.
func (k *kernel) scopes() (have, want scope, err error) {
	if have, err = k.readScope(); err != nil {
		return have, want, fmt.Errorf("read scope: %w", err)
	}
	want, err = k.scope()
	want.Mask, want.Program, want.Seed = have.Mask, have.Program, have.Seed
	return have, want, err
}

func (k *kernel) Moved() (string, error) {
	switch have, want, err := k.scopes(); {
	case err != nil:
		return "", err
	case want == have:
		return "", nil
	case want.Pods == 0:
		return "the cgroup of all pods is gone", nil
	case want.Pods == have.Pods:
		return "classes of pods have other cgroups", nil
	}
	return "the cgroup of all pods is " + k.pods(), nil
}

// Follow implements Driver. Programs that run meanwhile see parts of both scopes. Then they
// may leave a pod to the rules, and take none that they should not.
func (k *kernel) Follow() error {
	_, want, err := k.scopes()
	if err != nil {
		return err
	}
	if err := k.maps["scope"].Put(uint32(0), &want); err != nil {
		return fmt.Errorf("write scope: %w", err)
	}
	return nil
}

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

// programsAt returns what is attached at a place of a cgroup, with BPF_F_QUERY_EFFECTIVE at those
// above it, too. link.QueryPrograms takes missing rights for a missing feature.
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

// mostPrograms bounds the programs at a place of a cgroup and those above (kernel:
// include/linux/bpf-cgroup-defs.h and kernel/bpf/cgroup.c, BPF_CGROUP_MAX_PROGS).
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

// podsDepth bounds how deep the cgroup of all pods is looked for.
const podsDepth = 3

// place is where a process is among the cgroups.
type place struct {
	root string // where the hierarchy is mounted
	own  string // the cgroup of the process below root, empty if it is not there
	// machine is whether the process has the machine's network, if that is known.
	machine, known bool
}

// findPlace returns the place of this process.
func findPlace(root string) place {
	p := place{root: root, own: cgroupOf(root, os.Getpid())}
	first := cgroupOf(root, 1)
	if first == "" || inContainer(root, first) {
		return p
	}
	own, err := os.Readlink("/proc/self/ns/net")
	its, err2 := os.Readlink("/proc/1/ns/net")
	p.known = err == nil && err2 == nil
	p.machine = p.known && own == its
	return p
}

// cgroupOf returns the cgroup of a process below root, or none. /proc names it from the root
// of a cgroup namespace, which may be another one. So the processes of the cgroup decide.
func cgroupOf(root string, pid int) string {
	wanted := strconv.Itoa(pid)
	has := func(dir string) bool {
		text, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		return err == nil && slices.Contains(strings.Fields(string(text)), wanted)
	}
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	for line := range strings.Lines(string(text)) {
		if path, is := strings.CutPrefix(strings.TrimSpace(line), "0::"); is && has(filepath.Join(root, path)) {
			return filepath.Join(root, path)
		}
	}
	found := ""
	_ = filepath.WalkDir(root, func(dir string, d os.DirEntry, err error) error {
		switch {
		case err != nil || !d.IsDir(): // it may go at any time
			return nil
		case has(dir):
			found = dir
			return filepath.SkipAll
		}
		return nil
	})
	return found
}

// pods returns the cgroup of all pods of this process's node, or none. Pods of another cluster may
// be on the machine, if nodes are containers. A process in a container is in that of a node, of a
// pod, or of neither: then it has pods only on the network of the machine.
func (p place) pods() string {
	container, above := p.ancestor(containers), p.ancestor(hasPods)
	if container == "" {
		if p.known && !p.machine && p.whole() {
			return "" // it was started in another network namespace, to try it
		}
		return highestPods(p.root)
	}
	if inside := highestPods(container); inside != "" {
		return inside
	}
	switch {
	case above != "" && holdsContainer(above, p.own):
		return above
	case above == "" && p.machine:
		return highestPods(p.root)
	}
	return ""
}

func (p place) whole() bool {
	id, err := cgroupID(p.root)
	return err == nil && id == rootID
}

// ancestor returns the deepest cgroup above the process, or its own, that is so, or none.
func (p place) ancestor(is func(string) bool) string {
	for dir := p.own; len(dir) > len(p.root); dir = filepath.Dir(dir) {
		if is(dir) {
			return dir
		}
	}
	return ""
}

func inContainer(root, cgroup string) bool {
	return place{root: root, own: cgroup}.ancestor(containers) != ""
}

// holdsContainer reports whether cgroup is a container's in pods, as bpf/socketlb.c has it.
func holdsContainer(pods, cgroup string) bool {
	rel, err := filepath.Rel(pods, cgroup)
	if err != nil {
		return false
	}
	below := strings.Split(rel, "/")
	if slices.Contains(classes(pods), filepath.Join(pods, below[0])) {
		below = below[1:]
	}
	return len(below) == 2 || len(below) == 3
}

// classes returns the cgroups below that of all pods which hold pods of a class of service.
func classes(pods string) []string {
	prefix, suffix, systemd := filepath.Base(pods), ".slice", false
	if prefix, systemd = strings.CutSuffix(prefix, suffix); systemd {
		prefix += "-"
	} else {
		prefix, suffix = "", ""
	}
	return []string{filepath.Join(pods, prefix+"burstable"+suffix), filepath.Join(pods, prefix+"besteffort"+suffix)}
}

// highestPods returns the cgroup of all pods in the upper levels below cgroup, or none. Those
// in containers belong to other clusters. A kubelet whose driver was changed leaves the
// cgroup of the other driver, often empty. So one with processes comes first, then a higher
// one, then one with cgroups of pods, then the one that was made last.
func highestPods(cgroup string) string {
	var empty string
	level := []string{cgroup}
	for range podsDepth {
		var next []string
		for _, dir := range level {
			next = append(next, below(dir)...)
		}
		all := slices.DeleteFunc(slices.Clone(next), func(dir string) bool { return !hasPods(dir) })
		slices.SortFunc(all, func(a, b string) int { return cmp.Or(podsIn(b)-podsIn(a), cmp.Compare(idOf(b), idOf(a))) })
		if i := slices.IndexFunc(all, populated); i >= 0 {
			return all[i]
		}
		if len(all) > 0 {
			empty = cmp.Or(empty, all[0])
		}
		level = next
	}
	return empty
}

// podsIn returns 1 if a cgroup of all pods holds that of one, else 0.
func podsIn(pods string) int {
	classes := classes(pods)
	for _, dir := range append([]string{pods}, classes...) {
		if slices.ContainsFunc(below(dir), func(pod string) bool { return !slices.Contains(classes, pod) }) {
			return 1
		}
	}
	return 0
}

// idOf returns the number of a cgroup. Later ones have higher numbers.
func idOf(cgroup string) uint64 {
	id, _ := cgroupID(cgroup) // it may go at any time
	return id
}

// populated reports whether a cgroup, or one below it, has processes, see
// https://docs.kernel.org/admin-guide/cgroup-v2.html#un-populated-notification.
func populated(cgroup string) bool {
	text, err := os.ReadFile(filepath.Join(cgroup, "cgroup.events"))
	return err == nil && strings.Contains(string(text), "populated 1")
}

func hasPods(cgroup string) bool {
	base := filepath.Base(cgroup)
	return base == "kubepods" || base == "kubepods.slice" || strings.HasSuffix(base, "-kubepods.slice")
}

// below returns the cgroups directly below one, but those of containers.
func below(cgroup string) []string {
	entries, _ := os.ReadDir(cgroup) // it may go at any time
	var all []string
	for _, e := range entries {
		if e.IsDir() && !containers(e.Name()) {
			all = append(all, filepath.Join(cgroup, e.Name()))
		}
	}
	return all
}

func containers(cgroup string) bool { return container.MatchString(filepath.Base(cgroup)) }

// container matches what Docker, containerd, CRI-O, Podman, LXC and systemd-machined name the
// cgroup of a container: by its id, or as lxc.payload.NAME and machine-NAME.scope.
var container = regexp.MustCompile(`[0-9a-f]{64}|^lxc\.payload|^machine-.*\.scope$|^systemd-nspawn@`)

func (k *kernel) Inspect() (*State, error) {
	numbers, err := k.folders()
	if err != nil || len(numbers) == 0 {
		return nil, err
	}
	folder := k.folder(slices.Max(numbers)) // an Activate may run
	if err := k.openTables(folder); err != nil {
		k.Release()
		return nil, err
	}
	s, err := k.readScope()
	if err != nil {
		return nil, err
	}
	found := &State{Pods: s.Pods != 0}
	for _, a := range attachments[k.family] {
		switch err := k.adoptLink(folder, a); {
		case errors.Is(err, os.ErrNotExist):
			found.Fault = fmt.Sprintf("the pin of program %s is gone", a.program)
		case err != nil:
			return nil, err
		}
	}
	if err := k.Attached(); err != nil && found.Fault == "" {
		found.Fault = err.Error()
	}
	if found.Fault == "" { // else the programs of a process that runs may count as others
		others, err := k.Others()
		if err != nil {
			return nil, err
		}
		found.Others = others.Text
	}
	found.Memory, err = k.memory(s.Seed, k.maps, &k.mapped)
	return found, err
}

// netnsCookie returns this thread's network namespace as programs see it. Before Linux 5.14 with
// SO_NETNS_COOKIE only they can ask, see https://git.kernel.org/linus/f318903c0bf4.
func netnsCookie() (uint64, error) {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("open a socket: %w", err)
	}
	defer unix.Close(s)
	cookie, err := unix.GetsockoptUint64(s, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if errors.Is(err, unix.ENOPROTOOPT) {
		cookie, err = askProgram(s)
	}
	if err != nil {
		return 0, fmt.Errorf("ask for the cookie of the network namespace: %w", err)
	}
	return cookie, nil
}

// askProgram lets a program, for a moment at the root of all cgroups, read the namespace of a UDP
// socket that connects to an address nobody else can know. It lets all others pass.
func askProgram(socket int) (uint64, error) {
	root, err := UnifiedRoot()
	if err != nil {
		return 0, err
	}
	if err := allowMaps(); err != nil {
		return 0, err
	}
	answer, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		return 0, fmt.Errorf("make a map: %w", err)
	}
	defer answer.Close()
	var nonce [8]byte
	rand.Read(nonce[:])
	to := unix.SockaddrInet4{Addr: [4]byte{127, nonce[0], nonce[1], nonce[2]}, Port: 1 + int(binary.BigEndian.Uint16(nonce[3:]))%65535}
	l, err := attachQuestion(root, to, answer)
	if err != nil {
		return 0, err
	}
	defer l.Close()
	var cookie uint64
	if err := unix.Connect(socket, &to); !errors.Is(err, unix.EPERM) {
		return 0, fmt.Errorf("the program saw nothing: the cgroup of this process is not below %s (%v)", root, err)
	}
	return cookie, answer.Lookup(uint32(0), &cookie)
}

// questionName is what bpftool-prog(8) says of the program of askProgram.
const questionName = "ask_netns"

// attachQuestion attaches the program of askProgram to a cgroup.
func attachQuestion(cgroup string, to unix.SockaddrInet4, answer *ebpf.Map) (*link.RawLink, error) {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: questionName, Type: ebpf.CGroupSockAddr, AttachType: ebpf.AttachCGroupInet4Connect, License: "Apache-2.0",
		Instructions: answerTo(to, answer.FD()),
	})
	if err != nil {
		return nil, fmt.Errorf("load a program: %w", err)
	}
	defer p.Close()
	dir, err := os.Open(cgroup)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	l, err := link.AttachRawLink(link.RawLinkOptions{Target: int(dir.Fd()), Program: p, Attach: ebpf.AttachCGroupInet4Connect})
	if err != nil {
		return nil, fmt.Errorf("attach a program to cgroup %s: %w", cgroup, err)
	}
	return l, nil
}

// Offsets in struct bpf_sock_addr of linux/bpf.h.
const (
	offsetIP4      = 4
	offsetPort     = 24
	offsetProtocol = 36
)

// answerTo returns a program that writes the cookie of the network namespace into a map, and
// refuses the connection, if it is one over UDP to this address.
func answerTo(to unix.SockaddrInet4, answer int) asm.Instructions {
	port := binary.BigEndian.AppendUint16(nil, uint16(to.Port))
	return asm.Instructions{
		asm.LoadMem(asm.R2, asm.R1, offsetProtocol, asm.Word),
		asm.JNE.Imm32(asm.R2, unix.IPPROTO_UDP, "pass"),
		asm.LoadMem(asm.R2, asm.R1, offsetIP4, asm.Word),
		asm.JNE.Imm32(asm.R2, int32(binary.NativeEndian.Uint32(to.Addr[:])), "pass"),
		asm.LoadMem(asm.R2, asm.R1, offsetPort, asm.Word),
		asm.JNE.Imm32(asm.R2, int32(binary.NativeEndian.Uint16(port)), "pass"),
		asm.FnGetNetnsCookie.Call(),
		asm.LoadMapValue(asm.R1, answer, 0),
		asm.StoreMem(asm.R1, 0, asm.R0, asm.DWord),
		asm.Mov.Imm(asm.R0, 0),
		asm.Return(),
		asm.Mov.Imm(asm.R0, 1).WithSymbol("pass"),
		asm.Return(),
	}
}
