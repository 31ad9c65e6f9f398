// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package vm runs one command in a virtual machine with a Debian kernel, for tests of
// features that this machine's kernel lacks. Input is a Job, output its exit code, its
// output and files. It needs QEMU and no privileges: the processor is emulated, the
// kernel is downloaded but not installed, and the other programs are copies of this
// machine's. No file system is shared: the command's files go in with the machine's
// image, and its results come back when it has ended. The caller decides what the command
// tests.
package vm

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"kubeproxy/test/cache"
)

// The errors of a machine without a result.
var (
	ErrTimeout = errors.New("the virtual machine took too long")
	ErrDied    = errors.New("the virtual machine ended without a result")
)

// modules are loaded before the command, so that their sysctls and tables exist, as on a
// node that has been up for a while. The kernel loads others on demand.
var modules = []string{
	"veth", "bridge", "br_netfilter", "dummy", "nf_conntrack", "nf_conntrack_netlink", "nf_nat", "nf_tables", "nft_compat",
	"ip_tables", "ip6_tables", "iptable_nat", "iptable_filter", "ip6table_nat", "ip6table_filter",
	"sctp", "ip_vs", "ip_vs_rr",
	"nft_chain_nat", "nft_ct", "nft_fib_ipv4", "nft_fib_ipv6", "nft_masq", "nft_nat", "nft_numgen", "nft_reject_ipv4", "nft_reject_ipv6",
}

// cmdline is that of the kernel. clocksource=hpet, as the time stamp counter of the
// emulated processor drifts. no_timer_check, as a kernel with two processors panics if a
// busy machine delays the emulated timer interrupt. See
// https://docs.kernel.org/admin-guide/kernel-parameters.html
const cmdline = "console=ttyS0 quiet loglevel=4 panic=-1 mitigations=off nokaslr no5lvl clocksource=hpet no_timer_check random.trust_cpu=on " +
	"cryptomgr.notests nowatchdog reboot=t 8250.nr_uarts=1 i8042.noaux i8042.nokbd rcupdate.rcu_expedited=1"

// qemu returns the emulator's command.
func (j Job) qemu(ctx context.Context, k kernel, folder string) *exec.Cmd {
	cpu := "max,la57=off"
	if !j.Cmpxchg16b {
		cpu += ",-cx16"
	}
	args := []string{
		"-M", "pc,usb=off,vmport=off", "-nodefaults", "-no-user-config", "-cpu", cpu,
		"-smp", strconv.Itoa(j.CPUs), "-m", strconv.Itoa(j.Memory), "-display", "none", "-no-reboot",
		"-kernel", k.image(), "-initrd", filepath.Join(folder, "image"), "-append", cmdline,
		"-serial", "file:" + filepath.Join(folder, "console"), "-device", "virtio-serial-pci",
	}
	args = append(args, j.clock()...)
	if j.Disk != "" {
		args = append(args, "-drive", "file="+j.Disk+",format=raw,if=none,id=disk,snapshot=on,cache=unsafe", "-device", "virtio-blk-pci,drive=disk")
	}
	for i, name := range []string{"out", "err", "result"} { // descriptors 3, 4, 5
		args = append(args, "-chardev", fmt.Sprintf("file,id=%s,path=/dev/fd/%d", name, 3+i),
			"-device", fmt.Sprintf("virtserialport,chardev=%s,name=%s", name, name))
	}
	cmd := exec.CommandContext(ctx, emulator, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL, Setpgid: true}
	return cmd
}

// lockedWriter serializes writes.
type lockedWriter struct {
	mu  *sync.Mutex
	out io.Writer
	// text has no zero bytes, except those that init.sh adds.
	text bool
}

// Write implements io.Writer.
func (w *lockedWriter) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n, text := len(b), b
	if w.text {
		text = bytes.ReplaceAll(b, []byte{0}, nil)
	}
	if _, err := w.out.Write(text); err != nil {
		return 0, err
	}
	return n, nil
}

// clock returns the options that derive the time of a machine with one processor from
// instructions, two nanoseconds each or one, and that skip idle time. So tests see a fast and
// idle machine, however slow and busy this one is. See -icount in
// https://www.qemu.org/docs/master/devel/tcg-icount.html
func (j Job) clock() []string {
	if j.CPUs > 1 {
		return []string{"-accel", "tcg,thread=multi"}
	}
	shift := "1"
	if j.Fast {
		shift = "0"
	}
	return []string{"-accel", "tcg,thread=single", "-icount", "shift=" + shift + ",sleep=off"}
}

// boot runs the machine until it ends, and returns the exit code and an archive of files.
func (j Job) boot(ctx context.Context, k kernel, folder string) (code int, files []byte, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, j.Timeout, fmt.Errorf("%w: %s", ErrTimeout, j.Timeout))
	defer cancel()
	cmd := j.qemu(ctx, k, folder)
	var complaints, result bytes.Buffer
	cmd.Stdout, cmd.Stderr = &complaints, &complaints
	done := make(chan error, 3)
	var turn sync.Mutex // j.Stdout and j.Stderr may be the same
	for i, out := range []io.Writer{j.Stdout, j.Stderr, &result} {
		r, w, err := os.Pipe()
		if err != nil {
			return 0, nil, err
		}
		defer r.Close()
		defer w.Close()
		cmd.ExtraFiles = append(cmd.ExtraFiles, w)
		go func() {
			_, err := io.Copy(&lockedWriter{mu: &turn, out: out, text: i < 2}, r)
			done <- err
		}()
	}
	// Pdeathsig kills the emulator when this thread ends, so the thread must not end
	// early, see prctl(2).
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err = cmd.Start()
	for _, w := range cmd.ExtraFiles {
		w.Close() // only the emulator keeps it open now
	}
	if err != nil {
		return 0, nil, fmt.Errorf("start the emulator: %w", err)
	}
	runErr := cmd.Wait()
	for range 3 {
		err = errors.Join(err, <-done)
	}
	if err != nil {
		return 0, nil, fmt.Errorf("pass on the output: %w", err)
	}
	line, files, found := bytes.Cut(result.Bytes(), []byte("\n"))
	code, err = strconv.Atoi(strings.TrimSpace(string(line)))
	switch {
	case found && err == nil:
		return code, files, nil
	case ctx.Err() != nil:
		return 0, nil, fmt.Errorf("%w\n%s", context.Cause(ctx), tail(folder))
	}
	return 0, nil, fmt.Errorf("%w: %v\n%s%s", ErrDied, runErr, complaints.String(), tail(folder))
}

// tail is the end of the kernel's console output.
func tail(folder string) string {
	text, err := os.ReadFile(filepath.Join(folder, "console"))
	if err != nil {
		return ""
	}
	lines := strings.Split(strings.ReplaceAll(strings.TrimSpace(string(text)), "\r", ""), "\n")
	return "the console's last lines:\n" + strings.Join(lines[max(0, len(lines)-50):], "\n")
}

// ErrMissing means that this machine cannot run virtual machines.
var ErrMissing = errors.New("something that virtual machines are made of is missing; on Debian: apt-get install " +
	"qemu-system-x86 iptables ipset ipvsadm nftables conntrack iproute2 kmod busybox-static xz-utils zstd")

// emulator is QEMU.
const emulator = "qemu-system-x86_64"

// Machine is a kernel with the programs that are available to every command.
type Machine struct {
	kernel kernel
	base   string // path of the image's first part
	cache  string
}

// Files in the cache folder that processes lock.
const (
	lockFile  = "lock"
	proxyLock = "proxy.lock"
)

// Prepare returns the Machine with one of the Kernels. The first call for a kernel
// downloads it, which is reported to out; later ones find it in the folder kubeproxy/vm
// of the user's cache.
func Prepare(ctx context.Context, name string, out io.Writer) (Machine, error) {
	if !slices.Contains(Kernels, name) {
		return Machine{}, unknownKernelError(name)
	}
	if runtime.GOARCH != "amd64" {
		return Machine{}, fmt.Errorf("%w: the kernels are for amd64, this machine is %s", ErrMissing, runtime.GOARCH)
	}
	if _, err := locate(emulator); err != nil {
		return Machine{}, err
	}
	folder, err := cache.Folder("vm")
	if err != nil {
		return Machine{}, err
	}
	m := Machine{cache: folder}
	if err := os.MkdirAll(m.cache, 0o755); err != nil {
		return m, err
	}
	unlock, err := cache.Lock(ctx, filepath.Join(m.cache, lockFile), nil)
	if err != nil {
		return m, err
	}
	defer unlock()
	if err := m.fetch(ctx, name, out); err != nil {
		return m, fmt.Errorf("kernel %s: %w", name, err)
	}
	if err := m.build(); err != nil {
		return m, fmt.Errorf("make the image for kernel %s: %w", name, err)
	}
	return m, cache.Prune(m.cache, lockFile, proxyLock)
}

// Release is the kernel's version as uname prints it.
func (m Machine) Release() string { return m.kernel.release }

// fetch finds the kernel, or downloads it.
func (m *Machine) fetch(ctx context.Context, name string, out io.Writer) error {
	folder := filepath.Join(m.cache, "kernel-"+name)
	if !cache.Touch(folder) {
		part, lists := folder+".part", filepath.Join(m.cache, "apt")
		err := errors.Join(os.RemoveAll(part), os.RemoveAll(lists), os.MkdirAll(lists, 0o755))
		if err == nil {
			err = apt{folder: lists, out: out}.fetch(ctx, name, part)
		}
		if err == nil {
			err = os.Rename(part, folder)
			cache.Touch(folder) // its time was that of the package
		}
		if err := errors.Join(err, os.RemoveAll(part), os.RemoveAll(lists)); err != nil {
			return err
		}
	}
	var err error
	m.kernel, err = openKernel(folder)
	return err
}

// build finds the first part of the image, or writes it.
func (m *Machine) build() error {
	t, err := base(m.kernel)
	if err != nil {
		return err
	}
	key, err := t.key()
	if err != nil {
		return err
	}
	m.base = filepath.Join(m.cache, "image-"+m.kernel.release+"-"+key)
	if cache.Touch(m.base) {
		return nil
	}
	part := m.base + ".part"
	f, err := os.Create(part)
	if err != nil {
		return err
	}
	err = errors.Join(t.write(f), f.Close())
	if err == nil {
		err = os.Rename(part, m.base)
	}
	return err
}

// Job is a command to run in a machine.
type Job struct {
	// Command and its arguments. A path is one of this machine, and the program is
	// copied; a name without a slash is looked up in the machine.
	Command []string
	// Dir is where the command runs; the folder is created.
	Dir string
	// Env is added to the environment, NAME=VALUE each.
	Env []string
	// Files are copied in: it maps a path on this machine, which may be a folder, to a
	// path in the machine.
	Files map[string]string
	// Outputs are copied out: it maps a path in the machine to a path on this machine.
	// Files that do not exist when the command has ended are left out.
	Outputs map[string]string
	// Proxy installs kube-proxy, freshly built, for tests that run it. The calling
	// program must run below this module.
	Proxy bool
	// Modules are loaded first, with those that are always loaded.
	Modules []string
	// CPUs are 1 if 0. With one processor, the machine's clock counts instructions and
	// skips pauses, so that no test is too slow. With more, the clock is this machine's.
	CPUs int
	// Fast makes a machine with a clock of its own twice as fast by that clock.
	Fast bool
	// Cmpxchg16b gives the processors that instruction, which QEMU emulates incorrectly:
	// kernel 6.12 crashes. BPF local storage of kernels from 6.19 on works with it alone.
	Cmpxchg16b bool
	// Disk is a file with the image of an ext4 file system, which the machine finds at
	// /disk. What the machine writes there is lost. Nodes of a cluster can run in a machine
	// with a disk, with their files in /root/.cache.
	Disk    string
	Memory  int           // in MB, 0 means 2048
	Timeout time.Duration // in this machine's time, 0 means 10 minutes
	// Stdout and Stderr receive the command's output while it runs. They may be the same
	// writer.
	Stdout, Stderr io.Writer
}

// Run runs j in a new machine and returns the command's exit code. An error means that
// there is none.
func (m Machine) Run(ctx context.Context, j Job) (int, error) {
	if len(j.Command) == 0 {
		return 0, errors.New("no command")
	}
	j = j.complete()
	folder, err := os.MkdirTemp("", "kubeproxy-vm-")
	if err != nil {
		return 0, err
	}
	code, err := m.run(ctx, j, folder)
	return code, errors.Join(err, os.RemoveAll(folder))
}

func (j Job) complete() Job {
	if j.CPUs == 0 {
		j.CPUs = 1
	}
	if j.Memory == 0 {
		j.Memory = 2048
	}
	if j.Timeout == 0 {
		j.Timeout = 10 * time.Minute
	}
	if j.Dir == "" {
		j.Dir = "/root"
	}
	if j.Stdout == nil {
		j.Stdout = io.Discard
	}
	if j.Stderr == nil {
		j.Stderr = io.Discard
	}
	return j
}

func (m Machine) run(ctx context.Context, j Job, folder string) (int, error) {
	if err := m.image(ctx, j, filepath.Join(folder, "image")); err != nil {
		return 0, fmt.Errorf("make the image: %w", err)
	}
	code, files, err := j.boot(ctx, m.kernel, folder)
	if err != nil {
		return 0, err
	}
	if err := j.extract(files); err != nil {
		return 0, fmt.Errorf("fetch the files that the command left, of %d bytes: %w\n%s", len(files), err, tail(folder))
	}
	return code, nil
}

// image writes the base and the files of j, one archive after the other.
func (m Machine) image(ctx context.Context, j Job, file string) error {
	if j.Proxy {
		release, err := m.addProxy(ctx, &j)
		if err != nil {
			return err
		}
		defer release()
	}
	t, err := j.tree()
	if err != nil {
		return err
	}
	base, err := os.Open(m.base)
	if err != nil {
		return err
	}
	defer base.Close()
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	_, err = f.ReadFrom(base)
	return errors.Join(err, t.write(f), f.Close())
}

// tree returns the files of j.
func (j Job) tree() (tree, error) {
	t := tree{j.Dir: entry{dir: true}, "/tmp": entry{dir: true}}
	for from, to := range j.Files {
		if err := t.addProgram(from, to); err != nil {
			return nil, err
		}
	}
	if program := j.Command[0]; strings.Contains(program, "/") {
		file, err := filepath.Abs(program)
		if err == nil {
			err = t.addProgram(file, file)
		}
		if err != nil {
			return nil, err
		}
		j.Command = append([]string{file}, j.Command[1:]...)
	}
	for file, to := range j.Outputs {
		if info, err := os.Stat(to); err != nil || !info.IsDir() {
			file = filepath.Dir(file)
		}
		t[guestPath(file)] = entry{dir: true} // a program may expect it
	}
	disk := ""
	if j.Disk != "" {
		disk = diskInside
	}
	t["/vm/conf"] = entry{text: fmt.Sprintf("DISK=%s\nMODULES=%s\nOUTPUTS=%s\n", disk,
		quote(strings.Join(slices.Concat(modules, j.Modules), " ")),
		quote(strings.Join(slices.Sorted(maps.Keys(j.Outputs)), " ")))}
	var run strings.Builder
	fmt.Fprintf(&run, "cd %s\n", quote(j.Dir))
	for _, e := range j.Env {
		name, value, ok := strings.Cut(e, "=")
		if !ok {
			return nil, fmt.Errorf("variable %q: must be NAME=VALUE", e)
		}
		fmt.Fprintf(&run, "export %s=%s\n", name, quote(value))
	}
	run.WriteString("exec")
	for _, word := range j.Command {
		run.WriteString(" " + quote(word))
	}
	t["/vm/run"] = entry{text: run.String() + "\n"}
	return t, nil
}

// diskInside is where a machine has its disk.
const diskInside = "/disk"

// quote quotes word for a shell.
func quote(word string) string { return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'" }

// extract writes the files of an archive to the paths in j.Outputs.
func (j Job) extract(files []byte) error {
	if len(j.Outputs) == 0 {
		return nil
	}
	for r := tar.NewReader(bytes.NewReader(files)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		to, ok := j.target("/" + h.Name)
		if !ok || h.Typeflag != tar.TypeReg {
			continue
		}
		if err := save(to, r, fs.FileMode(h.Mode).Perm()); err != nil {
			return err
		}
	}
}

// target returns the path on this machine for a file of the machine.
func (j Job) target(name string) (string, bool) {
	name = filepath.Clean(name)
	for from, to := range j.Outputs {
		if rest, err := filepath.Rel(from, name); err == nil && filepath.IsLocal(rest) {
			return filepath.Join(to, rest), true
		}
	}
	return "", false
}

func save(file string, content io.Reader, mode fs.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, mode|0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	return errors.Join(err, f.Close())
}

// Kernels are the names of the available kernels, oldest first.
var Kernels = []string{"5.10", "6.1", "6.12", "newest"}

// DefaultKernel is the kernel for tests that select none.
const DefaultKernel = "6.1"

// releases are the Debian releases with these kernels, and the suites that are searched
// in each.
var releases = map[string][]suite{
	"5.10":   {{main, "bullseye"}, {security, "bullseye-security"}},
	"6.1":    {{main, "bookworm"}, {security, "bookworm-security"}},
	"6.12":   {{main, "trixie"}, {security, "trixie-security"}},
	"newest": {{main, "sid"}},
}

// suite is a part of one of Debian's archives.
type suite struct{ archive, name string }

// The labels of Debian's archives.
const (
	main     = "Debian"
	security = "Debian-Security"
)

// kernel is a kernel that was downloaded.
type kernel struct {
	folder  string
	release string // as uname reports it, such as 6.1.0-56-cloud-amd64
}

// openKernel reads the folder of an unpacked kernel.
func openKernel(folder string) (kernel, error) {
	found, err := filepath.Glob(filepath.Join(folder, "usr/lib/modules/*"))
	if err != nil || len(found) != 1 {
		return kernel{}, errors.Join(fmt.Errorf("%s holds %d kernels, want 1", folder, len(found)), err)
	}
	k := kernel{folder: folder, release: filepath.Base(found[0])}
	_, err = os.Stat(k.image())
	return k, err
}

// modules is the folder of k's modules.
func (k kernel) modules() string { return filepath.Join(k.folder, "usr/lib/modules", k.release) }

// image is the file to boot. Since 7.x Debian installs it beside the modules.
func (k kernel) image() string {
	image := filepath.Join(k.modules(), "vmlinuz")
	if _, err := os.Stat(image); err == nil {
		return image
	}
	return filepath.Join(k.folder, "boot", "vmlinuz-"+k.release)
}

// unknownKernelError is the error for the name of a kernel that does not exist.
func unknownKernelError(name string) error {
	return fmt.Errorf("kernel %q: must be one of %s", name, strings.Join(Kernels, ", "))
}

// Environment variables in a machine.
const (
	Variable      = "KUBEPROXY_VM"      // the name of its kernel
	ProxyVariable = "KUBEPROXY_PROGRAM" // path of the proxy that tests run
	// ControlPlaneVariable is a folder with etcd and kube-apiserver.
	ControlPlaneVariable = "KUBEPROXY_CONTROL_PLANE"
)

// proxyInside is the proxy's path in a machine.
const proxyInside = "/usr/local/bin/kube-proxy"

// addProxy adds the proxy to the files of j, freshly built if its sources changed. After
// release, another process may replace the file.
func (m Machine) addProxy(ctx context.Context, j *Job) (release func(), err error) {
	release, err = cache.Lock(ctx, filepath.Join(m.cache, proxyLock), nil)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(m.cache, "kube-proxy")
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-o", file, "kubeproxy/cmd/kube-proxy")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		release()
		return nil, fmt.Errorf("build the proxy: %w\n%s", err, out)
	}
	files := map[string]string{file: proxyInside}
	for from, to := range j.Files {
		files[from] = to
	}
	j.Files = files
	j.Env = append(j.Env[:len(j.Env):len(j.Env)], ProxyVariable+"="+proxyInside)
	return release, nil
}
