// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cgroup finds out how much memory the kernel lets this process have. The
// files of /proc and /sys go in, a number of bytes comes out.
package cgroup

import (
	"io/fs"
	"path"
	"strconv"
	"strings"
)

// hierarchy is one of the two versions of cgroups as far as memory is concerned.
type hierarchy struct {
	version    int
	dir        string // of the process's own cgroup, below mount
	mount      string
	limitFile  string
	controller string // in /proc/self/cgroup
}

// unlimited is what version 1 says where there is no limit, and more.
const unlimited = 1 << 60

// MemoryLimit returns the lowest limit of memory among the cgroup of this process and
// those above it that root shows, a file system as below "/". It is 0 if there is none
// or that cannot be read. cgroups(7) has the format of the files.
func MemoryLimit(root fs.FS) (limit int64, version int) {
	for _, h := range hierarchies(root) {
		for dir := h.dir; ; dir = path.Dir(dir) {
			if n := read(root, path.Join(dir, h.limitFile)); n > 0 && (limit == 0 || n < limit) {
				limit, version = n, h.version
			}
			if dir == h.mount || !strings.HasPrefix(dir, h.mount+"/") {
				break
			}
		}
	}
	return limit, version
}

// read returns 0 for what is no limit.
func read(root fs.FS, name string) int64 {
	text, err := fs.ReadFile(root, name)
	if err != nil {
		return 0
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64) // or "max"
	if err != nil || n >= unlimited {
		return 0
	}
	return n
}

// hierarchies returns those that this process is in.
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

// parseMount reads a line of mountinfo. at is the cgroup that is mounted there.
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

// ownCgroup returns in which cgroup of a controller the process is, by the lines of
// /proc/self/cgroup. Version 2 has no controller there.
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

// cgroupDir returns the directory of cgroup in, where cgroup at is mounted. A container
// often sees its own cgroup at the mount point, and a path outside of it.
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
