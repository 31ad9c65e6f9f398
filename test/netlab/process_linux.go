// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ErrNotAllowed means that this process may not create network namespaces.
var ErrNotAllowed = errors.New("making network namespaces needs root, or a system that lets users make namespaces " +
	"(sysctls user.max_user_namespaces, kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns)")

// reexecVariable marks a program that Enter has started again.
const reexecVariable = "NETLAB_INSIDE"

// Enter makes sure that this process may create network namespaces. Root may. For another
// user, it starts the program again, with the same arguments, as root of a user
// namespace, see user_namespaces(7). Enter does not return in that case: the process
// exits with the exit code of the second one. Call it first in main.
func Enter() error {
	err := Allowed()
	if err == nil || os.Getenv(reexecVariable) != "" {
		return err
	}
	code, err := reexec()
	if err != nil {
		return err
	}
	os.Exit(code)
	return nil
}

// Main is Enter for a TestMain: it runs the tests, in a user namespace if necessary, and
// returns the exit code. If namespaces are not allowed, the tests run all the same and
// Start skips the live ones.
func Main(run func() int) int {
	if err := Enter(); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return run()
}

// Allowed returns nil if this process may create network namespaces, else ErrNotAllowed.
func Allowed() error {
	result := make(chan error)
	go onThread(func() bool {
		err := unix.Unshare(unix.CLONE_NEWNET)
		if errors.Is(err, unix.EPERM) {
			err = ErrNotAllowed
		}
		result <- err
		return err != nil
	})
	return <-result
}

// reexec runs this program in a new user namespace and returns its exit code. The child
// dies with the parent; interrupts from the terminal reach both.
func reexec() (int, error) {
	// The path of the program may be inaccessible for this user.
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), reexecVariable+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
		Pdeathsig:   syscall.SIGKILL,
	}
	// A handler, as the child would inherit an ignored signal, see signal(7).
	interrupts := make(chan os.Signal, 1)
	signal.Notify(interrupts, os.Interrupt)
	defer signal.Stop(interrupts)
	result := make(chan error)
	go onThread(func() bool { // stays until the child has ended, see Host.worker
		err := cmd.Start()
		if err != nil {
			err = fmt.Errorf("%w: %w", ErrNotAllowed, err)
		} else if err = cmd.Wait(); errors.As(err, new(*exec.ExitError)) {
			err = nil // the exit code is the result
		}
		result <- err
		return true
	})
	if err := <-result; err != nil {
		return 0, err
	}
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal()), nil
	}
	return cmd.ProcessState.ExitCode(), nil
}

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
