// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// cgroup is the cgroup of a Host. It is a threaded one, see cgroups(7): threads of this
// process enter it one by one.
type cgroup struct {
	home, own *os.File // cgroup.threads of this process's cgroup, and of the Host's
}

// ErrNoCgroups means that this process may not make cgroups.
var ErrNoCgroups = errors.New("making cgroups needs root, and a cgroup hierarchy of version 2 that is mounted read-write")

// addCgroups gives node-a and its pods the cgroups that a kubelet would make, and what is
// started on node-a a view of them and a BPF file system of its own.
func (l *Lab) addCgroups(pods []string) error {
	mounted, home, err := ownCgroup()
	if err != nil {
		return err
	}
	if l.Cgroup, err = os.MkdirTemp(home, "netlab-"); errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EROFS) {
		return fmt.Errorf("%w: %w", ErrNoCgroups, err)
	}
	if err != nil {
		return fmt.Errorf("make a cgroup: %w", err)
	}
	if err := thread(l.Cgroup); err != nil {
		return err
	}
	if err := l.Node.addCgroup(home, l.Cgroup, "system"); err != nil {
		return err
	}
	for _, name := range pods {
		if err := l.hosts[name].addCgroup(home, l.Cgroup, "kubepods", "pod-"+name, "container"); err != nil {
			return err
		}
	}
	return l.Node.onWorker(func() error {
		// This thread lives as long as the Host.
		l.Root = fmt.Sprintf("/proc/self/task/%d/root", unix.Gettid())
		return mountView(mounted, l.Cgroup)
	})
}

// removeCgroups removes the cgroups, once the processes in them have ended.
func (l *Lab) removeCgroups() error {
	if l.Cgroup == "" {
		return nil
	}
	var all []string
	_ = filepath.WalkDir(l.Cgroup, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			all = append(all, path)
		}
		return nil
	})
	for i := len(all) - 1; i >= 0; i-- {
		err := os.Remove(all[i])
		for deadline := time.Now().Add(linkTimeout); errors.Is(err, unix.EBUSY) && time.Now().Before(deadline); err = os.Remove(all[i]) {
			time.Sleep(5 * time.Millisecond)
		}
		if err != nil {
			return fmt.Errorf("remove a cgroup: %w", err)
		}
	}
	return nil
}

// ownCgroup returns where the hierarchy of version 2 is mounted, and the cgroup of this
// process there.
func ownCgroup() (mounted, own string, err error) {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return "", "", err
	}
	for line := range strings.Lines(string(mounts)) {
		if field := strings.Fields(line); len(field) > 2 && field[2] == "cgroup2" {
			mounted = field[1]
			break
		}
	}
	if mounted == "" {
		return "", "", fmt.Errorf("no cgroup hierarchy of version 2 is mounted: %w", ErrNoCgroups)
	}
	groups, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", "", err
	}
	for line := range strings.Lines(string(groups)) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			return mounted, filepath.Join(mounted, path), nil
		}
	}
	return "", "", fmt.Errorf("this process is in no cgroup of version 2: %w", ErrNoCgroups)
}

// thread makes a cgroup a threaded one.
func thread(cgroup string) error {
	if err := os.WriteFile(filepath.Join(cgroup, "cgroup.type"), []byte("threaded"), 0); err != nil {
		return fmt.Errorf("let threads enter a cgroup: %w", err)
	}
	return nil
}

// addCgroup makes a cgroup for h, one folder at a time, and moves its worker there.
func (h *Host) addCgroup(home, below string, names ...string) error {
	for _, name := range names {
		below = filepath.Join(below, name)
		if err := os.Mkdir(below, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("make a cgroup: %w", err)
		}
		if err := thread(below); err != nil {
			return err
		}
	}
	homeFile, err := os.OpenFile(filepath.Join(home, "cgroup.threads"), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	own, err := os.OpenFile(filepath.Join(below, "cgroup.threads"), os.O_WRONLY, 0)
	if err != nil {
		return errors.Join(err, homeFile.Close())
	}
	h.cgroup = &cgroup{homeFile, own}
	return h.onWorker(h.cgroup.enter)
}

// enter moves the calling thread into the cgroup.
func (g *cgroup) enter() error {
	if g == nil {
		return nil
	}
	_, err := g.own.WriteString("0")
	return err
}

// leave moves the calling thread back.
func (g *cgroup) leave() error {
	if g == nil {
		return nil
	}
	_, err := g.home.WriteString("0")
	return err
}

func (g *cgroup) close() error {
	if g == nil {
		return nil
	}
	return errors.Join(g.home.Close(), g.own.Close())
}

// onWorker runs fn on the worker of h.
func (h *Host) onWorker(fn func() error) error {
	done := make(chan error)
	h.worker <- func() { done <- fn() }
	return <-done
}

// mountView moves the calling thread into a mount namespace of its own, where the hierarchy
// of version 2 is the part at cgroup. A program would prefer the whole one.
func mountView(mounted, cgroup string) error {
	stage, err := os.MkdirTemp("", "netlab-")
	if err != nil {
		return err
	}
	defer os.Remove(stage)
	type mount struct {
		from, to, kind string
		flags          uintptr
	}
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("make a mount namespace: %w: %w", ErrNotAllowed, err)
	}
	for _, m := range []mount{
		{"", "/", "", unix.MS_REC | unix.MS_PRIVATE},
		{cgroup, stage, "", unix.MS_BIND},
		{"", mounted, "", 0},
		{stage, mounted, "", unix.MS_MOVE},
		{"bpf", "/sys/fs/bpf", "bpf", 0},
	} {
		if m.from == "" && m.flags == 0 {
			err = unix.Unmount(m.to, unix.MNT_DETACH)
		} else {
			err = unix.Mount(m.from, m.to, m.kind, m.flags, "")
		}
		if err != nil {
			return fmt.Errorf("mount %s %s: %w", m.to, m.kind, err)
		}
	}
	return nil
}
