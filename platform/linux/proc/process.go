// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package proc reads /proc and /sys of a node: its processes, the sockets that they listen
// on, and how much memory this process may use. The file systems are given, so that tests
// can have others. It also has the socket by which processes agree who programs the node.
package proc

import (
	"bufio"
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// Process describes a process. All fields come from outside and are not trustworthy.
type Process struct {
	PID       int
	Command   string // its command line, or its name
	Pod       string // the UID of its pod
	Container string // the ID of its container
}

// WithDetails returns p with the details in /proc, if the process there has the same
// name. p may have ended, or its PID may belong to another PID namespace.
func (p Process) WithDetails() Process {
	proc := os.DirFS("/proc")
	name, err := fs.ReadFile(proc, path.Join(strconv.Itoa(p.PID), "comm"))
	if err != nil || strings.TrimSpace(string(name)) != p.Command {
		return p
	}
	return Describe(proc, p.PID)
}

// String returns one line.
func (p Process) String() string {
	text := fmt.Sprintf("process %d", p.PID)
	if p.Command != "" {
		text += " (" + p.Command + ")"
	}
	if p.Pod != "" {
		text += ", pod " + p.Pod
	}
	if p.Container != "" {
		text += ", container " + p.Container[:min(12, len(p.Container))]
	}
	return text
}

// State returns a process's state, as T for stopped, 0 if unknown (proc_pid_stat(5)).
func State(proc fs.FS, pid int) byte {
	text, _ := fs.ReadFile(proc, path.Join(strconv.Itoa(pid), "stat"))
	if i := bytes.LastIndex(text, []byte(") ")); i >= 0 && i+2 < len(text) {
		return text[i+2]
	}
	return 0
}

// maxCommandLength bounds the characters of a command line.
const maxCommandLength = 200

// Describe returns the details of a process. proc is the file system at /proc.
func Describe(proc fs.FS, pid int) Process {
	p := Process{PID: pid}
	dir := strconv.Itoa(pid)
	command, err := fs.ReadFile(proc, path.Join(dir, "cmdline"))
	if err != nil || len(command) == 0 {
		command, _ = fs.ReadFile(proc, path.Join(dir, "comm"))
	}
	p.Command = printable(string(bytes.TrimRight(command, "\x00\n")))
	if groups, err := fs.ReadFile(proc, path.Join(dir, "cgroup")); err == nil {
		p.Pod, p.Container = PodUID(string(groups)), containerID.FindString(string(groups))
	}
	if p.Pod == "" { // a cgroup namespace hides the pod, see cgroup_namespaces(7)
		p.Pod = podFromMounts(proc, dir)
	}
	return p
}

func printable(s string) string {
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, s)
	if r := []rune(s); len(r) > maxCommandLength {
		return string(r[:maxCommandLength]) + " ..."
	}
	return s
}

var (
	podInCgroup = regexp.MustCompile(`pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}|[0-9a-f]{32})`)
	podInVolume = regexp.MustCompile(`/pods/([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{32})/`)
	containerID = regexp.MustCompile(`[0-9a-f]{64}`)
	socketLink  = regexp.MustCompile(`^socket:\[(\d+)\]$`)
)

// PodUID returns a pod's UID in cgroups, where systemd's driver has underscores, or "".
func PodUID(groups string) string {
	if m := podInCgroup.FindStringSubmatch(groups); m != nil {
		return strings.ReplaceAll(m[1], "_", "-")
	}
	return ""
}

// podFromMounts returns the pod whose volumes the process has mounted, or "".
func podFromMounts(proc fs.FS, dir string) string {
	f, err := proc.Open(path.Join(dir, "mountinfo"))
	if err != nil {
		return ""
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		const root, point = 3, 4
		fields := strings.Fields(lines.Text())
		if len(fields) <= point || strings.HasPrefix(fields[point], "/var/lib/kubelet") {
			continue // of the kubelet, or of the whole node
		}
		if m := podInVolume.FindStringSubmatch(fields[root]); m != nil {
			return m[1]
		}
	}
	return ""
}

// BySocketInode returns the visible process that has the socket with this inode open, if any.
func BySocketInode(proc fs.FS, inode uint64) (Process, bool) {
	all, err := fs.ReadDir(proc, ".")
	if err != nil {
		return Process{}, false
	}
	for _, e := range all {
		pid, err := strconv.Atoi(e.Name())
		if err == nil && hasSocket(proc, pid, inode) {
			return Describe(proc, pid), true
		}
	}
	return Process{}, false
}

func hasSocket(proc fs.FS, pid int, inode uint64) bool {
	dir := path.Join(strconv.Itoa(pid), "fd")
	files, err := fs.ReadDir(proc, dir)
	if err != nil {
		return false
	}
	for _, f := range files {
		to, err := fs.ReadLink(proc, path.Join(dir, f.Name()))
		if m := socketLink.FindStringSubmatch(to); err == nil && m != nil && m[1] == strconv.FormatUint(inode, 10) {
			return true
		}
	}
	return false
}

// ByName returns other processes of this name in this process's network namespace.
func ByName(proc fs.FS, name string) []Process {
	own, err := fs.ReadLink(proc, "self/ns/net")
	all, err2 := fs.ReadDir(proc, ".")
	if err != nil || err2 != nil {
		return nil
	}
	var found []Process
	for _, e := range all {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		comm, err := fs.ReadFile(proc, path.Join(e.Name(), "comm"))
		if err != nil || strings.TrimSpace(string(comm)) != name {
			continue
		}
		if ns, err := fs.ReadLink(proc, path.Join(e.Name(), "ns/net")); err == nil && ns == own {
			found = append(found, Describe(proc, pid))
		}
	}
	return found
}

// hierarchy is a mounted cgroup hierarchy with a memory controller, of version 1 or 2.
type hierarchy struct {
	version    int
	dir        string // of the process's own cgroup, at or below mount
	mount      string
	limitFile  string
	controller string // in /proc/self/cgroup, empty for version 2
}

// unlimited is the lowest value that means no limit in version 1.
const unlimited = 1 << 60

// MemoryLimit returns the lowest limit of this process's cgroup and its visible ancestors, 0 for
// none, and the cgroup version. root is the file system at "/" (cgroups(7)).
func MemoryLimit(root fs.FS) (limit int64, version int) {
	for _, h := range hierarchies(root) {
		for dir := h.dir; ; dir = path.Dir(dir) {
			if n := readLimit(root, path.Join(dir, h.limitFile)); n > 0 && (limit == 0 || n < limit) {
				limit, version = n, h.version
			}
			if dir == h.mount || !strings.HasPrefix(dir, h.mount+"/") {
				break
			}
		}
	}
	return limit, version
}

// readLimit returns the limit in a file, 0 for no limit.
func readLimit(root fs.FS, name string) int64 {
	text, err := fs.ReadFile(root, name)
	if err != nil {
		return 0
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64) // the value may be "max"
	if err != nil || n >= unlimited {
		return 0
	}
	return n
}

// hierarchies returns the hierarchies that this process belongs to.
func hierarchies(root fs.FS) []hierarchy {
	own, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return nil
	}
	mounts, err := fs.ReadFile(root, "proc/self/mountinfo")
	if err != nil {
		return nil
	}
	var all []hierarchy
	for line := range strings.Lines(string(mounts)) {
		h, at, ok := parseMount(line)
		if !ok {
			continue
		}
		if in, ok := ownCgroup(string(own), h.controller); ok {
			h.dir = cgroupDir(h.mount, at, in)
			all = append(all, h)
		}
	}
	return all
}

// parseMount parses a line of mountinfo. at is the cgroup that is mounted there.
func parseMount(line string) (h hierarchy, at string, ok bool) {
	const root, point, fixed = 3, 4, 6
	front, back, _ := strings.Cut(line, " - ")
	fields, kind := strings.Fields(front), strings.Fields(back)
	if len(fields) < fixed || len(kind) < 3 {
		return h, "", false
	}
	h.mount = strings.TrimPrefix(fields[point], "/")
	switch {
	case kind[0] == "cgroup2":
		h.version, h.limitFile = 2, "memory.max"
	case kind[0] == "cgroup" && listContains(kind[2], "memory"):
		h.version, h.limitFile, h.controller = 1, "memory.limit_in_bytes", "memory"
	default:
		return h, "", false
	}
	return h, fields[root], true
}

// ownCgroup returns the cgroup for a controller, "" in version 2, from /proc/self/cgroup.
func ownCgroup(lines, controller string) (string, bool) {
	for line := range strings.Lines(lines) {
		_, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		controllers, in, found := strings.Cut(rest, ":")
		if found && (controllers == controller || controller != "" && listContains(controllers, controller)) {
			return in, true
		}
	}
	return "", false
}

// cgroupDir returns the directory of cgroup in, given that at is mounted at mount: a container
// often has its own there, while in is outside of it.
func cgroupDir(mount, at, in string) string {
	at = strings.TrimSuffix(at, "/")
	if rest, ok := strings.CutPrefix(in, at+"/"); ok && !strings.HasPrefix(path.Clean(rest), "..") {
		return path.Join(mount, rest)
	}
	return mount
}

func listContains(list, word string) bool { return slices.Contains(strings.Split(list, ","), word) }
