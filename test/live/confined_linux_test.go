// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"kubeproxy/test/program"
)

// readOnlyRoot is a script that starts its arguments where the root is read-only, and the
// settings of the kernel with it.
const readOnlyRoot = "mount -t tmpfs run /run && mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys && " +
	"mount -o remount,bind,ro / && if touch /root/x 2>/dev/null; then exit 9; fi && exec \"$@\""

// A proxy serves as it does elsewhere where its root is read-only, as the manifests
// in deploy have it, and behind a filter of system calls like containerd's.
func TestConfined(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name, prefix := range map[string][]string{
		"read-only root": {"unshare", "--mount", "sh", "-c", readOnlyRoot, "sh"},
		"seccomp":        {"env", confine + "=1", self},
	} {
		for _, mode := range []string{"nftables", "iptables-nft"} {
			t.Run(name+", "+mode, func(t *testing.T) {
				t.Parallel()
				c := newCluster(t, switchableModes()[mode])
				c.withoutBPF(t)
				web := app{name: "web", number: 10}.on(c.webs()...)
				c.save(t, web)
				c.prepare(t)
				p := c.startBehind(t, prefix...)
				c.check(t, c.want(t), c.cells(c.clientHosts()[:1], web))
				web = web.on(c.webs()[:1]...)
				c.save(t, web)
				c.awaitProgrammed(t)
				c.check(t, c.want(t), c.cells(c.clientHosts()[:1], web))
				if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Pid())); name == "seccomp" && (err != nil || !strings.Contains(string(text), "Seccomp:\t2\n")) {
					t.Errorf("the proxy has no filter: %v", err)
				}
			})
		}
	}
}

// prepare makes the settings of the node, as the privileged part of the manifests does.
func (c *cluster) prepare(t *testing.T) {
	t.Helper()
	out, err := program.Run(t, c.Node, c.command(append([]string{"--init-only"}, c.mode.flags...)...))
	if err != nil {
		t.Fatalf("--init-only: %v\n%s", err, out)
	}
}

// startBehind starts the proxy by another program, and waits until all is programmed.
func (c *cluster) startBehind(t *testing.T, prefix ...string) *program.Proxy {
	t.Helper()
	p := c.launchBehind(t, prefix...)
	c.awaitProgrammed(t)
	return p
}

// launchBehind starts the proxy by another program.
func (c *cluster) launchBehind(t *testing.T, prefix ...string) *program.Proxy {
	t.Helper()
	cmd := c.command(append([]string{"--manifests=" + c.dir, "--iptables-min-sync-period=10ms"}, c.mode.flags...)...)
	path, err := exec.LookPath(prefix[0])
	if err != nil {
		t.Fatal(err)
	}
	cmd.Args = slices.Concat(prefix, []string{cmd.Path}, cmd.Args[1:])
	cmd.Path = path
	return program.Start(t, c.Node, cmd)
}

// confine is the variable for which this program replaces itself by its arguments, behind a
// filter.
const confine = "KUBEPROXY_TEST_CONFINE"

// denied are system calls that the default profile of containerd has fail, for a
// process without capabilities beyond those of the network.
var denied = []uint32{
	unix.SYS_ACCT, unix.SYS_ADD_KEY, unix.SYS_BPF, unix.SYS_CLOCK_SETTIME, unix.SYS_DELETE_MODULE, unix.SYS_FANOTIFY_INIT,
	unix.SYS_FINIT_MODULE, unix.SYS_INIT_MODULE, unix.SYS_IO_URING_SETUP, unix.SYS_KCMP, unix.SYS_KEXEC_FILE_LOAD, unix.SYS_KEXEC_LOAD,
	unix.SYS_KEYCTL, unix.SYS_MOUNT, unix.SYS_MOVE_PAGES, unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_PERF_EVENT_OPEN, unix.SYS_PIVOT_ROOT,
	unix.SYS_PTRACE, unix.SYS_QUOTACTL, unix.SYS_REBOOT, unix.SYS_REQUEST_KEY, unix.SYS_SETNS, unix.SYS_SWAPOFF, unix.SYS_SWAPON,
	unix.SYS_SYSLOG, unix.SYS_UMOUNT2, unix.SYS_UNSHARE, unix.SYS_USERFAULTFD, unix.SYS_VHANGUP,
}

// confined replaces this program, if it is to be.
func confined() {
	if os.Getenv(confine) == "" {
		return
	}
	err := filterCalls(denied)
	if err == nil {
		os.Unsetenv(confine)
		err = unix.Exec(os.Args[1], os.Args[1:], os.Environ())
	}
	fmt.Fprintf(os.Stderr, "%s: %v\n", confine, err)
	os.Exit(1)
}

// filterCalls has system calls of this thread, and of what it executes, fail with EPERM.
func filterCalls(numbers []uint32) error {
	runtime.LockOSThread()
	filter := []unix.SockFilter{{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}} // the call's number is at 0
	for i, n := range numbers {
		filter = append(filter, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: uint8(len(numbers) - i), K: n})
	}
	filter = append(filter,
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)})
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set no_new_privs: %w", err)
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	_, _, e := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&program)))
	if e != 0 {
		return fmt.Errorf("set the filter: %w", e)
	}
	return nil
}
