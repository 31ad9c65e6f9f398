// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
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
	if j.CPUs > 1 || j.RealTime {
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
