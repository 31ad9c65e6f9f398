// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"

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

func (m *copier) getPipe() (pipe, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if n := len(m.free); n > 0 {
		x := m.free[n-1]
		m.free = m.free[:n-1]
		return x, true
	}
	var fd [2]int
	if m.openPipes == maxPipes || m.limits != nil && !m.limits.acquirePipe() {
		return pipe{}, false
	}
	if unix.Pipe2(fd[:], unix.O_NONBLOCK|unix.O_CLOEXEC) != nil {
		m.releasePipe()
		return pipe{}, false
	}
	m.openPipes++
	_, _ = unix.FcntlInt(uintptr(fd[0]), unix.F_SETPIPE_SZ, pipeSize) // or the default size
	return pipe{fd[0], fd[1]}, true
}

func (m *copier) putPipe(x pipe) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.free = append(m.free, x)
}

// discardPipe closes a pipe that still contains data.
func (m *copier) discardPipe(x pipe) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.openPipes--
	_ = unix.Close(x.r)
	_ = unix.Close(x.w)
	m.releasePipe()
}

func (m *copier) releasePipe() {
	if m.limits != nil {
		m.limits.releasePipe()
	}
}

func (m *copier) buffer() *[bufferSize]byte {
	if b, ok := m.buffers.Get().(*[bufferSize]byte); ok {
		return b
	}
	return new([bufferSize]byte)
}

// pump copies from src to dst until the end of src, which is no error. It adds the number
// of bytes to copied, unless that is nil.
func (m *copier) pump(dst, src *net.TCPConn, copied *atomic.Uint64) error {
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
		c := chunk{copier: m, from: from, to: to, dst: dst, copied: copied}
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
func awaitPacket(c syscall.RawConn) error {
	return c.Read(readable)
}

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
