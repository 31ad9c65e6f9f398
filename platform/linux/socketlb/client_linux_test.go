// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package socketlb

import (
	"bufio"
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"kubeproxy/test/kit"
)

// dialVariable makes the test program a client, which dials what it reads.
const dialVariable = "SOCKETLB_CLIENT"

func TestMain(m *testing.M) {
	if os.Getenv(dialVariable) != "" {
		serveClient()
		return
	}
	if pins := os.Getenv(deniedVariable); pins != "" {
		lookForLayer(pins)
		return
	}
	if family := os.Getenv(writerVariable); family != "" {
		writeForever(family)
	}
	if where := os.Getenv(proxyVariable); where != "" {
		proxyForever(where)
	}
	if os.Getenv(crowdVariable) != "" {
		connectForever()
		return
	}
	os.Exit(m.Run())
}

// call is a connection that a client makes.
type call struct {
	To       string
	By       string // one of ways
	Family   int    // of the socket
	Protocol int
	Bind     string // an address, if not empty
	Reuse    bool   // with SO_REUSEADDR and SO_REUSEPORT
	Cgroup   string // to which the client moves when it has made the socket
	Between  string // one of ways, before Then
	Then     string // a second address, which the same socket dials after the first
	Mount    string // where to mount the cgroups instead
}

// answer is what came of a call.
type answer struct {
	Greeting, Peer, Err string
}

// serveClient makes the calls that it reads.
func serveClient() {
	_ = raiseLoopback() // it may be raised already
	out := json.NewEncoder(os.Stdout)
	for in := json.NewDecoder(os.Stdin); ; {
		var c call
		if in.Decode(&c) != nil {
			return
		}
		a, err := c.make()
		if err != nil {
			a.Err = err.Error()
		}
		_ = out.Encode(a)
	}
}

func (c call) make() (a answer, err error) {
	if c.Mount != "" {
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return a, err
		}
		return a, unix.Mount("cgroup2", c.Mount, "cgroup2", 0, "")
	}
	fd, err := unix.Socket(c.Family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, c.Protocol)
	if err != nil {
		return a, err
	}
	defer unix.Close(fd)
	if err := c.prepare(fd); err != nil {
		return a, err
	}
	err = ways[c.By](fd, netip.MustParseAddrPort(c.To))
	if c.Between != "" {
		err = ways[c.Between](fd, netip.AddrPort{})
	}
	if c.Then != "" {
		err = ways[c.By](fd, netip.MustParseAddrPort(c.Then))
	}
	if err != nil {
		return a, err
	}
	b := make([]byte, 100)
	n, err := unix.Read(fd, b)
	a.Greeting = strings.TrimSpace(string(b[:max(n, 0)]))
	peer, err2 := unix.Getpeername(fd)
	if err == nil {
		err = err2
	}
	if peer != nil {
		a.Peer = textOf(peer)
	}
	return a, err
}

// textOf writes an address and port.
func textOf(a unix.Sockaddr) string {
	switch a := a.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port)).String()
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr), uint16(a.Port)).String()
	}
	return ""
}

// prepare does with a socket what comes before it is connected.
func (c call) prepare(fd int) error {
	if c.Reuse {
		err := errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1))
		if err != nil {
			return err
		}
	}
	if c.Cgroup != "" {
		if err := os.WriteFile(filepath.Join(c.Cgroup, "cgroup.procs"), []byte("0"), 0); err != nil {
			return err
		}
	}
	if c.Bind == "" {
		return nil
	}
	return unix.Bind(fd, sockaddr(fd, netip.MustParseAddrPort(c.Bind)))
}

// client is a process in a cgroup.
type client struct {
	pid int
	in  *json.Encoder
	out *json.Decoder
}

// startClient starts a client in a cgroup. Its network namespace is that of the thread, or
// a new one with the flag CLONE_NEWNET.
func startClient(t *testing.T, cgroup string, flags uintptr) *client {
	t.Helper()
	dir, err := os.Open(cgroup)
	kit.Must(t, err)
	defer dir.Close()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), dialVariable+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd()), Cloneflags: flags}
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	kit.Must(t, err)
	out, err := cmd.StdoutPipe()
	kit.Must(t, err)
	kit.Must(t, cmd.Start())
	t.Cleanup(func() {
		in.Close()
		_ = cmd.Wait()
	})
	return &client{cmd.Process.Pid, json.NewEncoder(in), json.NewDecoder(bufio.NewReader(out))}
}

func (c *client) call(t *testing.T, x call) answer {
	t.Helper()
	if x.Family == 0 && x.To != "" {
		x.Family = unix.AF_INET
		if !netip.MustParseAddrPort(x.To).Addr().Is4() {
			x.Family = unix.AF_INET6
		}
	}
	var a answer
	kit.Must(t, c.in.Encode(x))
	kit.Must(t, c.out.Decode(&a))
	return a
}

// newCgroup returns a cgroup of its own for the test.
func newCgroup(t testing.TB) string {
	t.Helper()
	root, err := UnifiedRoot()
	if err != nil {
		t.Skip(err)
	}
	dir, err := os.MkdirTemp(root, "socketlb-test-")
	if err != nil {
		t.Skipf("make a cgroup: %v", err)
	}
	t.Cleanup(func() { removeCgroup(t, dir) })
	return dir
}

// mountPins mounts a BPF file system for the test.
func mountPins(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("bpf", dir, "bpf", 0, ""); err != nil {
		t.Skipf("mount a BPF file system: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	return dir
}

func removeCgroup(t testing.TB, dir string) {
	t.Helper()
	var all []string
	_ = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			all = append(all, path)
		}
		return nil
	})
	for i := len(all) - 1; i >= 0; i-- {
		if err := os.Remove(all[i]); err != nil {
			t.Errorf("remove cgroup: %v", err)
		}
	}
}

// subgroup makes a cgroup below dir.
func subgroup(t *testing.T, dir, below string) string {
	t.Helper()
	path := filepath.Join(dir, below)
	kit.Must(t, os.MkdirAll(path, 0o755))
	return path
}
