// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"io/fs"
	"path"
	"strconv"
	"strings"
)

// hierarchy is a mounted cgroup hierarchy with a memory controller, of version 1 or 2.
type hierarchy struct {
	version    int
	dir        string // of the process's own cgroup, at or below mount
	mount      string
	limitFile  string
	controller string // in /proc/self/cgroup, empty for version 2
}

// unlimited is the lowest value that counts as no limit. Version 1 shows a number above
// it if there is no limit.
const unlimited = 1 << 60

// MemoryLimit returns the lowest memory limit of this process's cgroup and of its visible
// ancestors, and the cgroup version. root is the file system at "/". limit is 0 if there
// is no limit or it cannot be read. cgroups(7) describes the files.
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

// ownCgroup returns the process's cgroup for a controller, from the lines of
// /proc/self/cgroup. Version 2 has an empty controller there.
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

// cgroupDir returns the directory of cgroup in, given that cgroup at is mounted at mount.
// A container often has its own cgroup at the mount point, while in is a path outside of
// it.
func cgroupDir(mount, at, in string) string {
	at = strings.TrimSuffix(at, "/")
	if rest, ok := strings.CutPrefix(in, at+"/"); ok && !strings.HasPrefix(path.Clean(rest), "..") {
		return path.Join(mount, rest)
	}
	return mount
}

func listContains(list, word string) bool {
	for w := range strings.SplitSeq(list, ",") {
		if w == word {
			return true
		}
	}
	return false
}
