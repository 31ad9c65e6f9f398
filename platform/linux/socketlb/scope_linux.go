// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package socketlb

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// scope selects the sockets that are taken, in the form that the programs read.
type scope struct {
	Netns   uint64
	Pods    uint64
	Nested  [2]uint64
	Level   uint32
	Mask    uint32
	Program uint64
}

func (k *kernel) readScope() (s scope, err error) {
	return s, k.maps["scope"].Lookup(uint32(0), &s)
}

// UnifiedRoot returns where the cgroup hierarchy of version 2 is mounted.
func UnifiedRoot() (string, error) {
	f, err := os.Open("/proc/self/mounts")
	if err != nil {
		return "", err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if field := strings.Fields(lines.Text()); len(field) > 2 && field[2] == "cgroup2" {
			return field[1], nil
		}
	}
	return "", errors.New("no cgroup hierarchy of version 2 is mounted")
}

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

// podsDepth bounds how deep the cgroup of all pods is looked for.
const podsDepth = 3

// findScope returns whose sockets are taken: those of the network namespace with this
// cookie, and those of the containers of pods below cgroup. The kubelet makes a cgroup of
// all pods, in it one for each pod, those of two classes of service one level further
// down, and in these one for each container. Its drivers name the cgroups differently,
// see pkg/kubelet/cm/cgroup_manager_linux.go of kubernetes/kubernetes.
func findScope(cgroup string, cookie uint64) (scope, error) {
	s := scope{Netns: cookie}
	root, level, err := levelOf(cgroup)
	if err != nil || !root {
		return s, err
	}
	pods, err := findPods(cgroup)
	if err != nil || pods == "" {
		return s, err
	}
	if s.Pods, err = cgroupID(pods); err != nil {
		return s, err
	}
	below, _ := filepath.Rel(cgroup, pods)
	s.Level = level + uint32(strings.Count(below, "/")) + 1
	prefix, suffix, systemd := filepath.Base(pods), "", false
	if prefix, systemd = strings.CutSuffix(prefix, ".slice"); systemd {
		prefix, suffix = prefix+"-", ".slice"
	} else {
		prefix = ""
	}
	for i, class := range []string{"burstable", "besteffort"} {
		if s.Nested[i], err = cgroupID(filepath.Join(pods, prefix+class+suffix)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return s, err
		}
	}
	return s, nil
}

// levelOf returns how far path is below the root of all cgroups. known is false if that
// is unknown, because a cgroup namespace hides the root.
func levelOf(path string) (known bool, level uint32, err error) {
	for p := path; ; p = filepath.Dir(p) {
		id, err := cgroupID(p)
		if err != nil {
			return false, 0, err
		}
		var s unix.Statfs_t
		if err := unix.Statfs(p, &s); err != nil || s.Type != unix.CGROUP2_SUPER_MAGIC {
			return false, 0, err
		}
		if id == rootID {
			return true, level, nil
		}
		level++
	}
}

// findPods returns the cgroup of all pods below cgroup, or none.
func findPods(cgroup string) (string, error) {
	found := ""
	err := filepath.WalkDir(cgroup, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() || found != "" {
			return nil // a cgroup may go at any time
		}
		base := d.Name()
		if base == "kubepods" || base == "kubepods.slice" || strings.HasSuffix(base, "-kubepods.slice") {
			found = path
			return fs.SkipAll
		}
		if rel, _ := filepath.Rel(cgroup, path); rel != "." && strings.Count(rel, "/") >= podsDepth-1 {
			return fs.SkipDir
		}
		return nil
	})
	return found, err
}
