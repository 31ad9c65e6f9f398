// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// An idle connection holds neither a pipe nor a buffer. Data moves by splice(2) through
// a pipe, without a copy to user space. The pipe returns to its pool when there is
// nothing more to read. If no pipe is available, data moves through a buffer.
const (
	pipeSize   = 1 << 20 // the default maximum for unprivileged processes (pipe(7))
	bufferSize = 32 << 10
)

// copier copies data between sockets. It keeps a pool of pipes.
type copier struct {
	limits  *Limits   // nil for no limits
	buffers sync.Pool // of *[bufferSize]byte

	mu        sync.Mutex
	openPipes int
	free      []pipe
}

type pipe struct{ r, w int }

func (co *copier) getPipe() (pipe, bool) {
	co.mu.Lock()
	defer co.mu.Unlock()
	if n := len(co.free); n > 0 {
		x := co.free[n-1]
		co.free = co.free[:n-1]
		return x, true
	}
	var fd [2]int
	if co.openPipes == maxPipes || co.limits != nil && !co.limits.acquirePipe() {
		return pipe{}, false
	}
	if unix.Pipe2(fd[:], unix.O_NONBLOCK|unix.O_CLOEXEC) != nil {
		co.releasePipe()
		return pipe{}, false
	}
	co.openPipes++
	_, _ = unix.FcntlInt(uintptr(fd[0]), unix.F_SETPIPE_SZ, pipeSize) // or the default size
	return pipe{fd[0], fd[1]}, true
}

func (co *copier) putPipe(x pipe) {
	co.mu.Lock()
	defer co.mu.Unlock()
	co.free = append(co.free, x)
}

// discardPipe closes a pipe that still contains data.
func (co *copier) discardPipe(x pipe) {
	co.mu.Lock()
	defer co.mu.Unlock()
	co.openPipes--
	_ = unix.Close(x.r)
	_ = unix.Close(x.w)
	co.releasePipe()
}

func (co *copier) releasePipe() {
	if co.limits != nil {
		co.limits.releasePipe()
	}
}

func (co *copier) buffer() *[bufferSize]byte {
	if b, ok := co.buffers.Get().(*[bufferSize]byte); ok {
		return b
	}
	return new([bufferSize]byte)
}

// pump copies from src to dst until its end, which is no error, and counts bytes in copied, if set.
func (co *copier) pump(dst, src *net.TCPConn, copied *atomic.Uint64) error {
	to, err := dst.SyscallConn()
	if err != nil {
		return err
	}
	from, err := src.SyscallConn()
	if err != nil {
		return err
	}
	if err := to.Control(limitUnsent); err != nil {
		return err
	}
	for {
		c := chunk{copier: co, from: from, to: to, dst: dst, copied: copied}
		if more, err := c.move(); err != nil || !more {
			return err
		}
	}
}

// chunk is one step of a copy.
type chunk struct {
	copier   *copier
	from, to syscall.RawConn
	dst      *net.TCPConn
	copied   *atomic.Uint64
	n        int
	err      error
	pipe     pipe
	piped    bool
	buffer   *[bufferSize]byte
}

// move waits for data and copies it. It returns false at the end of the data.
func (c *chunk) move() (more bool, err error) {
	if err := c.from.Read(c.read); err != nil {
		return false, err
	}
	if c.err != nil || c.n == 0 {
		c.release()
		return false, c.err
	}
	add(c.copied, c.n)
	if c.buffer != nil {
		_, err := c.dst.Write(c.buffer[:c.n])
		c.release()
		return true, err
	}
	if err := c.to.Write(c.write); err != nil || c.err != nil {
		c.copier.discardPipe(c.pipe)
		return false, errors.Join(err, c.err)
	}
	c.release()
	return true, nil
}

// read reads what is available, and returns false if nothing is.
func (c *chunk) read(fd uintptr) bool {
	if c.pipe, c.piped = c.copier.getPipe(); c.piped {
		n, err := splice(int(fd), c.pipe.w, pipeSize)
		c.n, c.err = n, err
	} else {
		c.buffer = c.copier.buffer()
		c.n, c.err = unix.Read(int(fd), c.buffer[:])
	}
	if errors.Is(c.err, unix.EAGAIN) || errors.Is(c.err, unix.EINTR) {
		c.err = nil
		c.release()
		return false
	}
	return true
}

// write writes the contents of the pipe, and returns false while dst accepts no more.
func (c *chunk) write(fd uintptr) bool {
	for c.n > 0 {
		n, err := splice(c.pipe.r, int(fd), c.n)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return false
		case err != nil:
			c.err = err
			return true
		case n == 0:
			c.err = io.ErrUnexpectedEOF
			return true
		}
		c.n -= n
	}
	return true
}

func (c *chunk) release() {
	if c.piped {
		c.copier.putPipe(c.pipe)
	}
	if c.buffer != nil {
		c.copier.buffers.Put(c.buffer)
	}
	c.piped, c.buffer = false, nil
}

// splice calls splice(2) without telling the Go scheduler. With SPLICE_F_NONBLOCK the
// call never waits. But a large one takes longer than the 20 us after which the scheduler
// would wake another thread to continue (https://go.dev/src/runtime/proc.go, sysmon).
func splice(from, to, most int) (int, error) {
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_SPLICE, uintptr(from), 0, uintptr(to), 0, uintptr(most), unix.SPLICE_F_MOVE|unix.SPLICE_F_NONBLOCK)
		switch errno {
		case 0:
			return int(n), nil
		case unix.EINTR:
		default:
			return 0, errno
		}
	}
}

// awaitPacket waits until c has a packet or an error.
func awaitPacket(c syscall.RawConn) error { return c.Read(readable) }

// hasPacket reports whether a datagram is waiting.
func hasPacket(c syscall.RawConn) (ready bool) {
	_ = c.Control(func(fd uintptr) { ready = readable(fd) }) // a closed socket has none
	return ready
}

func readable(fd uintptr) bool {
	ready := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(ready, 0)
	return n > 0 || err != nil && !errors.Is(err, unix.EINTR)
}

// maxUnsent limits a socket's unsent bytes: the kernel would take megabytes, which leave the
// processor's caches before they are sent.
const maxUnsent = 512 << 10

// limitUnsent limits unsent bytes (TCP_NOTSENT_LOWAT, see tcp_notsent_lowat in
// docs.kernel.org/networking/ip-sysctl.html), if it can.
func limitUnsent(fd uintptr) {
	_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, maxUnsent)
}

// congestionControl is the system's default congestion control if that uses pacing, otherwise "".
// BBR delays packets to keep remote queues short. Over short distances that costs half of a relay's
// throughput: paced client and paced relay never measure the path's capacity. A socket that was
// paced stays so (kernel: net/ipv4/tcp_bbr.c, bbr_init sets sk_pacing_status). So the relay
// replaces BBR before it connects, and restores the default for remote peers.
type congestionControl string

// avoidPacing must be called before a socket connects. Accepted sockets inherit the setting.
func (cc *congestionControl) avoidPacing(fd uintptr) {
	name, err := unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION)
	if err == nil && strings.HasPrefix(name, "bbr") {
		cc.replace(fd, name)
	}
}

// replace sets a congestion control that every kernel has and all processes may use.
func (cc *congestionControl) replace(fd uintptr, name string) {
	if unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, "reno") == nil {
		*cc = congestionControl(name)
	}
}

// avoidPacingOn calls avoidPacing for a listener.
func avoidPacingOn(l *net.TCPListener) congestionControl {
	var p congestionControl
	if raw, err := l.SyscallConn(); err == nil {
		_ = raw.Control(p.avoidPacing)
	}
	return p
}

// restoreIfFar restores a connected socket's default, unless the round-trip time is below near.
func (cc congestionControl) restoreIfFar(c syscall.Conn, near time.Duration) {
	if cc == "" {
		return
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil || time.Duration(info.Min_rtt)*time.Microsecond >= near {
			_ = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, string(cc))
		}
	})
}

// overdue is how often data was sent again in vain, after 1.4 s or more.
const overdue = 3

// waits reports whether the peer of c owes an acknowledgement.
func waits(c *net.TCPConn) (owes bool) {
	onSocket(c, func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		owes = err == nil && info.Unacked > 0 && info.Retransmits >= overdue
	})
	return owes
}

// saveSYN makes the kernel keep the first packet of each connection for synHops. See
// TCP_SAVE_SYN in linux/tcp.h, kernel commit cd8ae85299d5.
func saveSYN(l *net.TCPListener) {
	onSocket(l, func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_SAVE_SYN, 1) })
}

// synHops returns the hop limit of the first packet of c. It returns 0 if the kernel did
// not keep the packet, for example because it used SYN cookies.
func synHops(c *net.TCPConn) (hops int) {
	onSocket(c, func(fd uintptr) {
		var b [128]byte
		n := uint32(len(b))
		// The call fails if the buffer is too small. The headers have at most 120 bytes.
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.IPPROTO_TCP, unix.TCP_SAVED_SYN,
			uintptr(unsafe.Pointer(&b)), uintptr(unsafe.Pointer(&n)), 0)
		if errno == 0 {
			hops = parseHops(b[:n])
		}
	})
	return hops
}

// parseHops returns the hop limit in an IP header, 0 if b does not begin with one.
func parseHops(b []byte) int {
	const inIPv4, inIPv6, header = 8, 7, 20
	switch {
	case len(b) < header:
	case b[0]>>4 == 4:
		return int(b[inIPv4])
	case b[0]>>4 == 6:
		return int(b[inIPv6])
	}
	return 0
}

// receiveHops makes the kernel pass the hop limit with each datagram of c.
func receiveHops(c *net.UDPConn) {
	four := c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Is4()
	onSocket(c, func(fd uintptr) {
		if four {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_RECVTTL, 1)
		} else {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_RECVHOPLIMIT, 1)
		}
	})
}

// datagramHops returns the hop limit in a datagram's control messages, 0 if there is none.
func datagramHops(control []byte) int {
	for len(control) > 0 {
		h, data, rest, err := unix.ParseOneSocketControlMessage(control)
		if err != nil {
			return 0
		}
		four := h.Level == unix.IPPROTO_IP && h.Type == unix.IP_TTL
		if (four || h.Level == unix.IPPROTO_IPV6 && h.Type == unix.IPV6_HOPLIMIT) && len(data) >= 4 {
			return int(binary.NativeEndian.Uint32(data))
		}
		control = rest
	}
	return 0
}

// kernelDefaultHops selects the system's default hop limit.
const kernelDefaultHops = -1

// sendHops sets the hop limit of a socket that sends to an address.
func sendHops(fd uintptr, to netip.Addr, hops int) error {
	if to.Unmap().Is4() {
		return unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_TTL, hops)
	}
	return unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, hops)
}

func onSocket(c syscall.Conn, do func(fd uintptr)) {
	if raw, err := c.SyscallConn(); err == nil {
		_ = raw.Control(do)
	}
}
