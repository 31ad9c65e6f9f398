// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Machine is one host of a cluster. What it runs is written to a file, which its process 1
// reads.
type Machine struct {
	Name string
	// Cluster distinguishes machines of several clusters that have the same name.
	Cluster string
	Folder  string // has its files, and its log files in log
	// Path is where its programs are found.
	Path string
	// Forward is an address in the machine that connections to its listener go to.
	Forward string
	Steps   []Step
}

// Step is a program that a machine runs at its start, in order.
type Step struct {
	Name string // of its log
	Args []string
	// Kind says when the next step begins.
	Kind StepKind
}

// StepKind is how a Step runs.
type StepKind string

// A Once step ends before the next one begins, and is tried until it succeeds. A Forever
// step goes on, and starts again when it ends. It is what systemd would do.
const (
	Once    StepKind = "once"
	Forever StepKind = "forever"
)

// namespace is the name of the machine's network namespace, see ip-netns(8), and of its
// cgroups.
func (m *Machine) namespace() string {
	if m.Cluster != "" {
		return "kubeproxy-" + m.Cluster + "-" + m.Name
	}
	return "kubeproxy-" + m.Name
}

func (m *Machine) path(name string) string { return filepath.Join(m.Folder, name) }

// Log returns the file that has the output of a step.
func (m *Machine) Log(step string) string { return filepath.Join(m.Folder, "log", step+".log") }

// boot starts the machine. Its network namespace must exist. A listener, if it has one,
// becomes that of the machine.
func (m *Machine) boot(l *net.TCPListener) error {
	text, err := json.MarshalIndent(m, "", "  ")
	if err == nil {
		err = errors.Join(os.MkdirAll(filepath.Join(m.Folder, "log"), 0o755), os.WriteFile(m.path("machine.json"), text, 0o600))
	}
	if err != nil {
		return fmt.Errorf("describe %s: %w", m.Name, err)
	}
	cmd := exec.Command("/proc/self/exe", BootCommand, m.path("machine.json"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl+C ends it before it has written the number of process 1
	if l != nil {
		f, err := l.File()
		if err != nil {
			return err
		}
		defer f.Close()
		cmd.ExtraFiles = []*os.File{f}
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("boot %s: %w\n%s", m.Name, err, out)
	}
	return nil
}

// process returns the number of the machine's process 1 in the namespace of the host, 0 if
// the machine does not run. A file says it, and if that is wrong, all processes are searched:
// what boots a machine can end before it has written the file, and the file can be lost.
func (m *Machine) process() int {
	text, _ := os.ReadFile(m.path("pid"))
	if pid, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && m.isFirst(pid) {
		return pid
	}
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return 0
	}
	for _, folder := range all {
		if pid, err := strconv.Atoi(filepath.Base(folder)); err == nil && m.isFirst(pid) {
			return pid
		}
	}
	return 0
}

// isFirst returns whether a process is the machine's process 1.
func (m *Machine) isFirst(pid int) bool {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return err == nil && strings.HasSuffix(string(line), "\x00"+initCommand+"\x00"+m.path("machine.json")+"\x00")
}

// stopTimeout is how long the kernel may take to end a machine.
const stopTimeout = 30 * time.Second

// kill ends all processes of the machine at once, as a power failure does, and removes
// its cgroups.
func (m *Machine) kill() error {
	if pid := m.process(); pid != 0 {
		if err := unix.Kill(pid, syscall.SIGKILL); err != nil {
			return fmt.Errorf("end %s: %w", m.Name, err)
		}
		if err := poll(context.Background(), stopTimeout, func() (bool, error) { return !m.isFirst(pid), nil }); err != nil {
			return fmt.Errorf("end %s: %w", m.Name, err)
		}
	}
	return m.removeCgroups()
}

// remove is kill, and takes the machine's network away.
func (m *Machine) remove() error { return errors.Join(m.kill(), m.removeNamespace()) }

// Command returns a command that runs in the machine as if somebody had logged in there. With
// ctx ends its process group: nsenter(1) only waits for the command, as a process does not
// enter a namespace of processes itself.
func (m *Machine) Command(ctx context.Context, args ...string) (*exec.Cmd, error) {
	cmd, err := m.command(ctx, args)
	if err != nil {
		return nil, err
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error {
		err := unix.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		if errors.Is(err, unix.ESRCH) {
			return os.ErrProcessDone
		}
		return err
	}
	return cmd, nil
}

// Enter is Command for somebody at a terminal, which sends Ctrl+C to the command: it stays in
// the process group of this program.
func (m *Machine) Enter(args ...string) (*exec.Cmd, error) {
	return m.command(context.Background(), args)
}

func (m *Machine) command(ctx context.Context, args []string) (*exec.Cmd, error) {
	pid := m.process()
	if pid == 0 {
		return nil, fmt.Errorf("%s does not run", m.Name)
	}
	cmd := exec.CommandContext(ctx, "nsenter", append([]string{"--target=" + strconv.Itoa(pid), "--all", "--wdns=/", "--"}, args...)...)
	cmd.Env = append(os.Environ(), "PATH="+m.Path)
	return cmd, nil
}

// poll asks done until it says so, the time is over or ctx ends. An error of done is the
// reason why it is not done yet.
func poll(ctx context.Context, limit time.Duration, done func() (bool, error)) error {
	deadline := time.Now().Add(limit)
	for {
		ok, err := done()
		switch {
		case ok:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case time.Now().After(deadline) && err != nil:
			return fmt.Errorf("not done after %s: %w", limit, err)
		case time.Now().After(deadline):
			return fmt.Errorf("not done after %s", limit)
		}
		pause(ctx, 50*time.Millisecond)
	}
}

// program returns the number of a program of a step, in the numbers of the host. The
// machine knows it by another number, see pid_namespaces(7).
func (m *Machine) program(step string) (int, error) {
	own := m.process()
	if own == 0 {
		return 0, fmt.Errorf("%s does not run", m.Name)
	}
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", own)) // each thread has its own
	if err != nil {
		return 0, err
	}
	for _, list := range lists {
		text, _ := os.ReadFile(list) // the thread may end meanwhile
		for _, child := range strings.Fields(string(text)) {
			name, err := os.ReadFile(filepath.Join("/proc", child, "cmdline"))
			if first, _, _ := strings.Cut(string(name), "\x00"); err == nil && filepath.Base(first) == step {
				return strconv.Atoi(child)
			}
		}
	}
	return 0, fmt.Errorf("%s runs no %s", m.Name, step)
}

// The commands by which a machine starts: BootCommand enters its cgroups and its network,
// and starts initCommand in the other namespaces as process 1. A process sees the cgroup
// that it was in when it got its namespace as the root, so it has to enter that first, see
// cgroup_namespaces(7).
const (
	BootCommand = "machine-boot"
	initCommand = "machine-init"
)

// RunCommand runs BootCommand and what follows from it, and returns whether args are such
// a command. A program that starts machines calls it first in main.
func RunCommand(args []string) (handled bool, err error) {
	if len(args) != 2 {
		return false, nil
	}
	run := map[string]func(*Machine) error{BootCommand: enterMachine, initCommand: runMachine}[args[0]]
	if run == nil {
		return false, nil
	}
	text, err := os.ReadFile(args[1])
	m := &Machine{}
	if err == nil {
		err = json.Unmarshal(text, m)
	}
	if err != nil {
		return true, fmt.Errorf("read the machine's description: %w", err)
	}
	return true, run(m)
}

// listenerFile is the number of the file that a machine's listener is.
const listenerFile = 3

func enterMachine(m *Machine) error {
	if err := m.enterCgroups(); err != nil {
		return fmt.Errorf("enter cgroups: %w", err)
	}
	runtime.LockOSThread() // the process ends here
	ns, err := netns.GetFromName(m.namespace())
	if err != nil {
		return fmt.Errorf("open network namespace %s: %w", m.namespace(), err)
	}
	if err := netns.Set(ns); err != nil {
		return fmt.Errorf("enter network namespace %s: %w", m.namespace(), err)
	}
	log, err := os.OpenFile(m.Log("init"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	cmd := exec.Command("/proc/self/exe", initCommand, m.path("machine.json"))
	cmd.Stdout, cmd.Stderr = log, log
	if m.Forward != "" {
		cmd.ExtraFiles = []*os.File{os.NewFile(listenerFile, "listener")}
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid: true,
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC |
			unix.CLONE_NEWCGROUP,
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start process 1: %w", err)
	}
	pid := []byte(strconv.Itoa(cmd.Process.Pid) + "\n")
	if err := os.WriteFile(m.path("pid"), pid, 0o644); err != nil {
		return errors.Join(err, cmd.Process.Kill())
	}
	return nil
}

// runMachine is process 1 of a machine. It returns only if the machine cannot start.
func runMachine(m *Machine) error {
	if err := m.mountAll(); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(m.Name)); err != nil {
		return fmt.Errorf("set the host name: %w", err)
	}
	if err := os.Setenv("PATH", m.Path); err != nil {
		return err
	}
	if err := m.forward(); err != nil {
		return err
	}
	p := &processes{machine: m, running: map[int]Step{}, ended: make(chan ended)}
	go p.reap()
	return p.run()
}

// forward sends connections to the machine's listener on to an address in the machine.
func (m *Machine) forward() error {
	if m.Forward == "" {
		return nil
	}
	l, err := net.FileListener(os.NewFile(listenerFile, "listener"))
	if err != nil {
		return fmt.Errorf("take over the listener: %w", err)
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				fmt.Fprintln(os.Stderr, "accept:", err)
				return
			}
			go m.join(c)
		}
	}()
	return nil
}

// join copies between a connection and one to the address that it is for.
func (m *Machine) join(c net.Conn) {
	defer c.Close()
	to, err := net.Dial("tcp", m.Forward)
	if err != nil {
		return // the client sees its connection end
	}
	defer to.Close()
	done := make(chan struct{}, 2)
	pass := func(to, from net.Conn) {
		_, _ = io.Copy(to, from)           // a broken connection ends both ways
		_ = to.(*net.TCPConn).CloseWrite() // fails if that side is gone already
		done <- struct{}{}
	}
	go pass(to, c)
	go pass(c, to)
	<-done
	<-done
}

// processes are the children of process 1, and the orphans that the kernel gives it.
type processes struct {
	machine *Machine
	running map[int]Step
	ended   chan ended
}

type ended struct {
	pid    int
	status syscall.WaitStatus
}

// reap waits for all children, as nobody else does for orphans.
func (p *processes) reap() {
	for {
		var e ended
		pid, err := syscall.Wait4(-1, &e.status, 0, nil)
		switch {
		case errors.Is(err, syscall.ECHILD):
			time.Sleep(20 * time.Millisecond) // there is none
		case err == nil:
			e.pid = pid
			p.ended <- e
		}
	}
}

// retryPause is between the end of a program and its next start.
const retryPause = 500 * time.Millisecond

// run starts the steps one after the other, and again what ended too early.
func (p *processes) run() error {
	waiting, blocked := p.machine.Steps, false
	for {
		for len(waiting) > 0 && !blocked {
			if err := p.start(waiting[0]); err != nil {
				return err
			}
			blocked, waiting = waiting[0].Kind == Once, waiting[1:]
		}
		e := <-p.ended
		s, ours := p.running[e.pid]
		if !ours {
			continue // an orphan
		}
		delete(p.running, e.pid)
		if s.Kind == Once && e.status.ExitStatus() == 0 {
			blocked = false
			continue
		}
		time.Sleep(retryPause)
		if err := p.start(s); err != nil {
			return err
		}
	}
}

func (p *processes) start(s Step) error {
	log, err := os.OpenFile(p.machine.Log(s.Name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	path, err := exec.LookPath(s.Args[0])
	if err != nil {
		return err
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer null.Close()
	child, err := os.StartProcess(path, s.Args, &os.ProcAttr{
		Dir: "/", Files: []*os.File{null, log, log}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return fmt.Errorf("start %s: %w", s.Name, err)
	}
	pid := child.Pid
	p.running[pid] = s
	// For those who want to end the program alone.
	return errors.Join(child.Release(), os.WriteFile(filepath.Join("/run", s.Name+".pid"), fmt.Appendln(nil, pid), 0o644))
}

// settings are those of the whole kernel that kubelet insists on, below /proc/sys. In a
// machine they are files, so that those of the host stay as they are.
var settings = []string{
	"kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes",
	"vm/overcommit_memory", "vm/panic_on_oom",
}

// mountAll gives the machine file systems of its own where it is not to share those of
// the host.
func (m *Machine) mountAll() error {
	cgroups, err := hierarchies()
	if err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("keep mounts from the host: %w", err)
	}
	for _, own := range []struct{ kind, to, data string }{
		{"proc", "/proc", ""}, {"sysfs", "/sys", ""}, {"tmpfs", "/run", "mode=755"}, {"tmpfs", cgroupRoot, "mode=755"},
	} {
		if err := unix.Mount(own.kind, own.to, own.kind, 0, own.data); err != nil {
			return fmt.Errorf("mount %s: %w", own.to, err)
		}
	}
	// Socket acceleration says so if there is none.
	_ = unix.Mount("bpf", "/sys/fs/bpf", "bpf", 0, "mode=700")
	if err := errors.Join(mountCgroups(cgroups), protectSettings()); err != nil {
		return err
	}
	if err := m.mountDisk(); err != nil {
		return err
	}
	// The lock of iptables is in /run, which is the machine's own.
	if err := os.WriteFile("/run/xtables.lock", nil, 0o600); err != nil {
		return err
	}
	// Pods get mounts that are made later, such as those of volumes.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("share mounts with pods: %w", err)
	}
	return nil
}

// mountDisk gives the machine a /var of its own, where its programs keep what outlives
// them.
func (m *Machine) mountDisk() error {
	for _, name := range []string{"lib/kubelet", "log/pods", "tmp"} {
		if err := os.MkdirAll(filepath.Join(m.path("var"), name), 0o755); err != nil {
			return err
		}
	}
	if err := os.Symlink("/run", filepath.Join(m.path("var"), "run")); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return errors.Join(bind(m.path("var"), "/var"), os.Setenv("TMPDIR", "/var/tmp"))
}

func bind(from, to string) error {
	if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s on %s: %w", from, to, err)
	}
	return nil
}

// protectSettings makes /proc/sys read-only, but for what belongs to the network
// namespace.
func protectSettings() error {
	const sys = "/proc/sys"
	if err := bind(sys, sys); err != nil {
		return err
	}
	if err := unix.Mount("", sys, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		return fmt.Errorf("make %s read-only: %w", sys, err)
	}
	if err := bind(sys+"/net", sys+"/net"); err != nil {
		return err
	}
	if err := unix.Mount("", sys+"/net", "", unix.MS_BIND|unix.MS_REMOUNT, ""); err != nil {
		return fmt.Errorf("make %s/net writable: %w", sys, err)
	}
	for _, name := range settings {
		at, copied := filepath.Join(sys, name), filepath.Join("/run/settings", name)
		text, err := os.ReadFile(at)
		if err != nil {
			return err
		}
		if err := errors.Join(os.MkdirAll(filepath.Dir(copied), 0o755), os.WriteFile(copied, text, 0o644)); err != nil {
			return err
		}
		if err := bind(copied, at); err != nil {
			return err
		}
	}
	return nil
}

// rootPrograms are Debian's programs in the images of the tests. busybox has the rest.
var rootPrograms = []string{
	"bash", "dash", "wget", "curl", "nc.openbsd", "ss", "ip", "dig", "iperf", "conntrack", "nft", "ipset",
	"xtables-nft-multi", "xtables-legacy-multi",
}

// rootTexts are files of the images. Users and groups are those that the tests ask for.
// GNU wget tries 20 times, and the tests expect one.
var rootTexts = map[string]string{
	"etc/passwd":        "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\nuser-defined-in-image:x:1000:1000::/home:/bin/sh\n",
	"etc/group":         "root:x:0:\nnogroup:x:65534:\nuser-defined-in-image:x:1000:\ngroup-defined-in-image:x:50000:user-defined-in-image\n",
	"etc/wgetrc":        "tries = 1\n",
	"etc/nsswitch.conf": "hosts: files dns\n",
}

// rootLinks are further names of programs. Debian's busybox as a shell runs its own nc
// and wget before any program, so sh is dash. kube-proxy wants iptables by each name.
func rootLinks() map[string]string {
	links := map[string]string{
		"bin/sh": "/usr/bin/dash", "bin/bash": "/usr/bin/bash", "bin/nc": "/usr/bin/nc.openbsd", "usr/local/bin/iperf": "/usr/bin/iperf",
	}
	for _, family := range []string{"", "6"} {
		for _, what := range []string{"", "-restore", "-save"} {
			links["usr/sbin/ip"+family+"tables"+what] = "xtables-nft-multi"
			for _, kind := range []string{"nft", "legacy"} {
				links["usr/sbin/ip"+family+"tables-"+kind+what] = "xtables-" + kind + "-multi"
			}
		}
	}
	return links
}

// makeRoot makes the root that the images of the tests share, from programs of this
// machine.
func makeRoot(root string) error {
	for _, dir := range []string{"bin", "sbin", "usr/bin", "usr/sbin", "usr/local/bin", "root", "proc", "sys", "dev", "run", "var/run", "var/log", "uploads", "home", "usr/lib/x86_64-linux-gnu"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			return err
		}
	}
	for _, dir := range []string{"tmp", "var/tmp"} {
		if err := errors.Join(os.MkdirAll(filepath.Join(root, dir), 0o777), os.Chmod(filepath.Join(root, dir), 0o777|fs.ModeSticky)); err != nil {
			return err
		}
	}
	for _, name := range rootPrograms {
		if err := copyProgram(root, name); err != nil {
			return err
		}
	}
	if err := copyModules(root); err != nil {
		return err
	}
	for to, from := range rootLinks() {
		if err := os.Symlink(from, filepath.Join(root, to)); err != nil {
			return err
		}
	}
	for name, text := range rootTexts {
		if err := errors.Join(os.MkdirAll(filepath.Join(root, filepath.Dir(name)), 0o755), os.WriteFile(filepath.Join(root, name), []byte(text), 0o644)); err != nil {
			return err
		}
	}
	for _, name := range []string{"/etc/protocols", "/etc/services", "/etc/ethertypes", "/etc/ssl/certs/ca-certificates.crt"} {
		if err := copyFile(name, filepath.Join(root, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return addBusybox(root)
}

// find returns where this machine has a program, also where only root looks.
func find(name string) (string, error) {
	for _, dir := range []string{"/usr/bin", "/bin", "/usr/sbin", "/sbin"} {
		file := filepath.Join(dir, name)
		if _, err := os.Stat(file); err == nil {
			return file, nil
		}
	}
	return "", fmt.Errorf("no program %s; build/setup.sh cluster installs it", name)
}

// copyProgram copies a program and the libraries that it needs to where they are here.
func copyProgram(root, name string) error {
	file, err := find(name)
	if err != nil {
		return err
	}
	return copyWithLibraries(root, file, filepath.Join(root, "usr", filepath.Base(filepath.Dir(file)), name))
}

var libraryLine = regexp.MustCompile(`/\S+`)

func copyWithLibraries(root, file, to string) error {
	if err := copyFile(file, to); err != nil {
		return err
	}
	list, err := exec.Command("ldd", file).Output()
	if static := (*exec.ExitError)(nil); errors.As(err, &static) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find the libraries of %s: %w", file, err)
	}
	for _, lib := range libraryLine.FindAllString(string(list), -1) {
		to := filepath.Join(root, lib)
		if _, err := os.Stat(to); err == nil {
			continue
		}
		if err := copyFile(lib, to); err != nil {
			return err
		}
	}
	return nil
}

// copyModules copies what iptables loads at run time, and the C library's ways to resolve
// names.
func copyModules(root string) error {
	for _, pattern := range []string{"/usr/lib/*-linux-gnu/xtables/*.so", "/lib/*-linux-gnu/libnss_files.so.2", "/lib/*-linux-gnu/libnss_dns.so.2"} {
		all, err := filepath.Glob(pattern)
		if err != nil {
			return err
		}
		for _, file := range all {
			if err := copyWithLibraries(root, file, filepath.Join(root, file)); err != nil {
				return err
			}
		}
	}
	return nil
}

// addBusybox gives the root every program of busybox that Debian's own do not cover.
func addBusybox(root string) error {
	file, err := find("busybox")
	if err != nil {
		return err
	}
	if err := copyFile(file, filepath.Join(root, "bin/busybox")); err != nil {
		return err
	}
	list, err := exec.Command(file, "--list").Output()
	if err != nil {
		return err
	}
	for _, name := range strings.Fields(string(list)) {
		if anyHas(root, name) {
			continue
		}
		if err := os.Symlink("busybox", filepath.Join(root, "bin", name)); err != nil {
			return err
		}
	}
	return nil
}

func anyHas(root, name string) bool {
	for _, dir := range []string{"bin", "sbin", "usr/bin", "usr/sbin"} {
		if _, err := os.Lstat(filepath.Join(root, dir, name)); err == nil {
			return true
		}
	}
	return false
}

// copyFile copies a file, or what a link leads to, with its permissions.
func copyFile(from, to string) error {
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	if old, err := os.ReadFile(to); err == nil && bytes.Equal(old, text) {
		return nil
	}
	return os.WriteFile(to, text, info.Mode().Perm())
}
