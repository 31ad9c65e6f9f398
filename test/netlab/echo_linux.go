// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Echo is a server on TCP, UDP and, where SCTP reports true, SCTP. It answers each line
// with one line: the request, the server's name, its own address, and the client's
// address as the server saw it.
type Echo struct {
	name      string
	listeners []net.Listener
	packets   []net.PacketConn
	serving   sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]bool // nil once closed
}

// Echo starts an echo server on both of h's addresses. An empty name stands for h's own.
func (h *Host) Echo(name string, port uint16) (*Echo, error) {
	if name == "" {
		name = h.Name
	}
	e := &Echo{name: name, conns: map[net.Conn]bool{}}
	for _, addr := range []netip.Addr{h.IPv4, h.IPv6} {
		if err := e.listen(h, netip.AddrPortFrom(addr, port)); err != nil {
			return nil, errors.Join(fmt.Errorf("start echo server %s on %s: %w", name, h.Name, err), e.Close())
		}
	}
	h.atClose(e.Close)
	return e, nil
}

func (e *Echo) listen(h *Host, at netip.AddrPort) error {
	l, err := h.Listen(context.Background(), "tcp", at.String())
	if err != nil {
		return err
	}
	e.serve(l)
	if SCTP() {
		if l, err = h.listenSCTP(at); err != nil {
			return err
		}
		e.serve(l)
	}
	c, err := h.ListenPacket(context.Background(), "udp", at.String())
	if err != nil {
		return err
	}
	e.packets = append(e.packets, c)
	e.serving.Go(func() { e.answerPackets(c) })
	return nil
}

func (e *Echo) serve(l net.Listener) {
	e.listeners = append(e.listeners, l)
	e.serving.Go(func() { e.accept(l) })
}

// Close stops the server: new connections are refused, open ones end.
func (e *Echo) Close() error {
	e.mu.Lock()
	conns := e.conns
	e.conns = nil
	e.mu.Unlock()
	if conns == nil {
		return nil
	}
	var errs []error
	for _, l := range e.listeners {
		errs = append(errs, l.Close())
	}
	for _, c := range e.packets {
		errs = append(errs, c.Close())
	}
	for c := range conns {
		c.Close() // its goroutine may have closed it already
	}
	e.serving.Wait()
	return errors.Join(errs...)
}

func (e *Echo) accept(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		if !e.track(c) {
			c.Close()
			return
		}
		e.serving.Go(func() { e.answerLines(c) })
	}
}

// track records c for Close. It returns false if Close has begun.
func (e *Echo) track(c net.Conn) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.conns == nil {
		return false
	}
	e.conns[c] = true
	return true
}

func (e *Echo) answerLines(c net.Conn) {
	defer func() {
		e.mu.Lock()
		delete(e.conns, c)
		e.mu.Unlock()
		c.Close()
	}()
	lines := bufio.NewScanner(c)
	for lines.Scan() {
		if _, err := fmt.Fprintf(c, "%s\n", e.answer(lines.Text(), c.LocalAddr(), c.RemoteAddr())); err != nil {
			return
		}
	}
}

func (e *Echo) answerPackets(c net.PacketConn) {
	buf := make([]byte, 2048)
	for {
		n, from, err := c.ReadFrom(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // an ICMP message about an earlier answer
		}
		line := e.answer(strings.TrimSpace(string(buf[:n])), c.LocalAddr(), from)
		// A client that has gone is not an error of the server.
		_, _ = c.WriteTo([]byte(line+"\n"), from)
	}
}

func (e *Echo) answer(request string, local, remote net.Addr) string {
	return fmt.Sprintf("%s %s %s %s", request, e.name, local, remote)
}

// parseAnswer parses the part of an echo line after the request.
func parseAnswer(request, line string) (Answer, error) {
	fields := strings.Fields(line)
	if len(fields) != 4 || fields[0] != request {
		return Answer{}, fmt.Errorf("answer %q: not one of an echo server to %q", line, request)
	}
	at, err := netip.ParseAddrPort(fields[2])
	if err != nil {
		return Answer{}, fmt.Errorf("answer %q: %w", line, err)
	}
	client, err := netip.ParseAddrPort(fields[3])
	if err != nil {
		return Answer{}, fmt.Errorf("answer %q: %w", line, err)
	}
	return Answer{Outcome: Answered, Backend: fields[1], At: at, Client: client}, nil
}

// SCTP returns whether this kernel has sockets for SCTP, which are optional, see sctp(7).
func SCTP() bool {
	fd, err := sctpSocket(netip.IPv4Unspecified())
	if err != nil {
		return false
	}
	return unix.Close(fd) == nil
}

// sctpSocket returns a one-to-one style socket, which behaves like one for TCP. Package
// net can use it as a TCP socket once it listens or is connected.
func sctpSocket(like netip.Addr) (int, error) {
	family := unix.AF_INET6
	if like.Is4() {
		family = unix.AF_INET
	}
	return unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

// listenSCTP listens on h for SCTP.
func (h *Host) listenSCTP(at netip.AddrPort) (net.Listener, error) {
	var fd int
	err := h.Do(func() (err error) {
		fd, err = sctpSocket(at.Addr())
		return err
	})
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "sctp")
	defer f.Close()
	if err := errors.Join(unix.Bind(fd, sockaddr(at)), unix.Listen(fd, 128)); err != nil {
		return nil, err
	}
	return net.FileListener(f)
}

// dialSCTP connects as q describes. It binds the socket to the one address that packets
// leave with, as it would offer all addresses of h to the server otherwise. It also
// enables the reporting of refusals, which the kernel hides by default.
func (h *Host) dialSCTP(ctx context.Context, q Query) (net.Conn, error) {
	from, err := h.source(ctx, q)
	if err != nil {
		return nil, err
	}
	var fd int
	err = h.Do(func() (err error) {
		fd, err = sctpSocket(from.Addr())
		return err
	})
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "sctp")
	defer f.Close()
	level, option := unix.SOL_IPV6, unix.IPV6_RECVERR
	if from.Addr().Is4() {
		level, option = unix.SOL_IP, unix.IP_RECVERR
	}
	err = errors.Join(unix.SetsockoptInt(fd, level, option, 1), unix.Bind(fd, sockaddr(from)))
	if err != nil {
		return nil, err
	}
	if err := unix.Connect(fd, sockaddr(q.To)); err != nil && !errors.Is(err, unix.EINPROGRESS) {
		return nil, err
	}
	if err := connected(ctx, f, time.Now().Add(q.Timeout)); err != nil {
		return nil, err
	}
	return net.FileConn(f)
}

// source is the address from which h reaches the server of q according to the routes.
func (h *Host) source(ctx context.Context, q Query) (netip.AddrPort, error) {
	if q.From.Addr().IsValid() {
		return q.From, nil
	}
	c, err := h.dial(ctx, &net.Dialer{Timeout: q.Timeout}, "udp", q.To.String())
	if err != nil {
		return netip.AddrPort{}, err
	}
	defer c.Close()
	from, err := netip.ParseAddrPort(c.LocalAddr().String())
	return netip.AddrPortFrom(from.Addr(), q.From.Port()), err
}

// connected waits until the socket f is connected.
func connected(ctx context.Context, f *os.File, deadline time.Time) error {
	if err := f.SetDeadline(deadline); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = f.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Write(func(fd uintptr) bool {
		code, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
		if err == nil && code != 0 {
			err = unix.Errno(code)
		}
		if failed = err; failed != nil {
			return true
		}
		_, err = unix.Getpeername(int(fd))
		return err == nil
	})
	return errors.Join(failed, err)
}

// RefusesSCTP sends the first packet of an SCTP association to a loopback address, in the
// network namespace of the calling thread, and returns whether it was refused as a closed
// port. The kernel needs no SCTP for that: the packet comes from a raw socket, which
// receives it, too, unless rules take it (raw(7)).
func RefusesSCTP(to netip.AddrPort) (bool, error) {
	network := "ip6:132"
	if to.Addr().Is4() {
		network = "ip4:132"
	}
	c, err := net.Dial(network, to.Addr().String())
	if err != nil {
		return false, err
	}
	defer c.Close()
	packet := make([]byte, 32) // INIT, see RFC 9260, sections 3.1 and 3.3.2
	binary.BigEndian.PutUint16(packet, uint16(firstPort+rand.IntN(lastPort-firstPort)))
	binary.BigEndian.PutUint16(packet[2:], to.Port())
	copy(packet[12:], []byte{1, 0, 0, 20, 0, 0, 0, 7, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 9})
	binary.LittleEndian.PutUint32(packet[8:], crc32.Checksum(packet, crc32.MakeTable(crc32.Castagnoli)))
	// A rule that refuses the packet makes the call fail as well.
	if _, err := c.Write(packet); err != nil && !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.ECONNREFUSED) {
		return false, err
	}
	if err := c.SetReadDeadline(time.Now().Add(DefaultTimeout)); err != nil {
		return false, err
	}
	_, err = c.Read(packet)
	if errors.Is(err, unix.ECONNREFUSED) {
		return true, nil
	}
	return false, err
}

// pauseTimeout is how long a process may take to stop on a very busy machine.
const pauseTimeout = 2 * time.Minute

// Pause stops a process without ending it, and returns when it has stopped. The kernel
// still accepts its connections and data for it, but the process does not answer. SIGCONT
// resumes it.
func Pause(pid int) error {
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return fmt.Errorf("halt process %d: %w", pid, err)
	}
	for deadline := time.Now().Add(pauseTimeout); !paused(pid); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			return fmt.Errorf("halt process %d: it does not stop", pid)
		}
	}
	return nil
}

// paused returns whether every thread of a process has stopped. The signal reaches
// threads one after the other.
func paused(pid int) bool {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil || len(tasks) == 0 {
		return false
	}
	for _, path := range tasks {
		text, err := os.ReadFile(path)
		if err != nil {
			return false
		}
		// The command name before the state may contain any character, see
		// proc_pid_stat(5).
		i := bytes.LastIndexByte(text, ')')
		if i < 0 || !bytes.HasPrefix(text[i+1:], []byte(" T")) {
			return false
		}
	}
	return true
}

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
