// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

const cgroupRoot = "/sys/fs/cgroup"

// besideV1 is where the tree of v2 is mounted on a system that mixes v1 and v2. runc puts
// containers there, too: opencontainers/cgroups, IsCgroup2HybridMode.
const besideV1 = cgroupRoot + "/unified"

// hierarchy is a tree of cgroups: that of cgroup v2, or of some controllers of v1.
type hierarchy struct {
	controllers string // as in the options of mount(8); empty for v2
	path        string // of this process, as in /proc/self/cgroup
	root        string // where v2 is mounted
}

// hierarchies returns those of this process.
func hierarchies() ([]hierarchy, error) {
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	var all []hierarchy
	for line := range strings.Lines(string(text)) {
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(fields) != 3 {
			return nil, fmt.Errorf("/proc/self/cgroup: %q: want three fields", line)
		}
		all = append(all, hierarchy{controllers: fields[1], path: fields[2]})
	}
	v2 := slices.IndexFunc(all, func(h hierarchy) bool { return h.controllers == "" })
	switch {
	case v2 < 0:
	case len(all) == 1:
		all[v2].root = cgroupRoot
	case isUnified(besideV1):
		all[v2].root = besideV1
	default:
		all = slices.Delete(all, v2, v2+1)
	}
	return all, nil
}

// isUnified reports whether v2 is mounted at a folder.
func isUnified(dir string) bool {
	var s unix.Statfs_t
	return unix.Statfs(dir, &s) == nil && s.Type == unix.CGROUP2_SUPER_MAGIC
}

// folder returns the folder in which a machine's cgroup is made. In v2 that is the root:
// other cgroups with processes cannot give controllers to their children, see cgroups(7).
func (h hierarchy) folder() string {
	if h.controllers == "" {
		return h.root
	}
	return filepath.Join(cgroupRoot, strings.TrimPrefix(h.controllers, "name="), h.path)
}

// enterCgroups makes the machine's cgroups and moves this process there.
func (m *Machine) enterCgroups() error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	for _, h := range all {
		parent := h.folder()
		own := filepath.Join(parent, m.namespace())
		if h.controllers == "" {
			giveControllers(parent)
		}
		if err := os.Mkdir(own, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if h.controllers == "cpuset" {
			if err := inheritProcessors(parent, own); err != nil {
				return err
			}
		}
		h.prefer(own)
		if err := os.WriteFile(filepath.Join(own, "cgroup.procs"), []byte("0"), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// prefer gives a machine ten times the processor time of a process outside of it, as all
// of its processes together have the weight of one otherwise: clients lost connections to
// pods that did not run for seconds while others compiled on the host. A kernel without
// such weights shares as it likes.
func (h hierarchy) prefer(own string) {
	file, weight := "cpu.weight", "1000" // of v2, where others have 100
	if h.controllers != "" {
		file, weight = "cpu.shares", "10240" // of v1, where others have 1024
	}
	if _, err := os.Stat(filepath.Join(own, file)); err == nil {
		_ = os.WriteFile(filepath.Join(own, file), []byte(weight), 0o644) // see above
	}
}

// inheritProcessors gives a cgroup of v1 the processors of its parent. Without, it takes no
// process, see cpuset(7).
func inheritProcessors(parent, own string) error {
	for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
		text, err := os.ReadFile(filepath.Join(parent, name))
		if err == nil {
			err = os.WriteFile(filepath.Join(own, name), text, 0o644)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// giveControllers lets the children of a cgroup of v2 have all controllers. kubelet says
// which ones it misses. Nobody takes them back from the children of the root: the kernel only
// refuses that while a grandchild has them, and a child that limits itself meanwhile would
// lose its limits, see "Controlling Controllers" in Documentation/admin-guide/cgroup-v2.rst.
func giveControllers(dir string) {
	text, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return
	}
	for _, c := range strings.Fields(string(text)) {
		_ = os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+c), 0o644) // kubelet complains
	}
}

// mountCgroups mounts trees of cgroups, in which this process is at the root.
func mountCgroups(all []hierarchy) error {
	for _, h := range all {
		switch {
		case h.controllers == "" && h.root == besideV1:
			if err := errors.Join(os.MkdirAll(besideV1, 0o755), unix.Mount("cgroup2", besideV1, "cgroup2", 0, "")); err != nil {
				return fmt.Errorf("mount cgroups beside v1: %w", err)
			}
			continue
		case h.controllers == "":
			return mountUnified()
		}
		at := filepath.Join(cgroupRoot, strings.TrimPrefix(h.controllers, "name="))
		data := h.controllers
		if strings.HasPrefix(data, "name=") {
			data = "none," + data
		}
		if err := os.MkdirAll(at, 0o755); err != nil {
			return err
		}
		if err := unix.Mount("cgroup", at, "cgroup", 0, data); err != nil {
			return fmt.Errorf("mount cgroups of %s: %w", h.controllers, err)
		}
		for _, one := range strings.Split(h.controllers, ",") { // cpu,cpuacct is found as cpu, too
			if err := os.Symlink(filepath.Base(at), filepath.Join(cgroupRoot, one)); err != nil && !errors.Is(err, fs.ErrExist) && !strings.HasPrefix(one, "name=") {
				return err
			}
		}
	}
	return nil
}

// mountUnified mounts the tree of v2, and moves this process out of its root, which could
// not give controllers to its children otherwise.
func mountUnified() error {
	if err := unix.Mount("cgroup2", cgroupRoot, "cgroup2", 0, ""); err != nil {
		return fmt.Errorf("mount cgroups: %w", err)
	}
	own := filepath.Join(cgroupRoot, "machine")
	if err := os.Mkdir(own, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := os.WriteFile(filepath.Join(own, "cgroup.procs"), []byte("0"), 0o644); err != nil {
		return err
	}
	giveControllers(cgroupRoot)
	return nil
}

// removeCgroups removes the machine's cgroups, innermost first. The kernel takes a moment
// to end processes, and until then they are busy.
func (m *Machine) removeCgroups() error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	for _, h := range all {
		// The caller may be in another cgroup than the one that booted the machine.
		for dir := h.folder(); ; dir = filepath.Dir(dir) {
			own := filepath.Join(dir, m.namespace())
			if err := poll(context.Background(), stopTimeout, func() (bool, error) { return removeTree(own) }); err != nil {
				return fmt.Errorf("remove cgroup %s: %w", own, err)
			}
			if dir == cgroupRoot || filepath.Dir(dir) == cgroupRoot {
				break
			}
		}
	}
	return nil
}

// removeTree removes the folders of a cgroup, and returns whether it is gone.
func removeTree(dir string) (bool, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	for _, e := range entries {
		if e.IsDir() {
			if gone, err := removeTree(filepath.Join(dir, e.Name())); !gone {
				return false, err
			}
		}
	}
	err = os.Remove(dir)
	switch {
	case err == nil, errors.Is(err, fs.ErrNotExist):
		return true, nil
	case errors.Is(err, syscall.EBUSY):
		return false, nil
	}
	return false, err
}
