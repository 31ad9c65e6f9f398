// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package netlink

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Socket is a netlink socket. Only Wait may run beside another method.
type Socket struct {
	fd      int
	portID  uint32
	buf     []byte
	timeout time.Duration
}

// Options are what a Socket needs. The zero value is for short answers.
type Options struct {
	// Buffer is requested for both directions, 0 means the default of the system. Without
	// CAP_NET_ADMIN a limit of the system applies, see socket(7).
	Buffer int
	// Datagram bounds a datagram of the kernel. Dumps come in parts as large as the receive
	// buffer, at most 32 KiB (kernel: net/netlink/af_netlink.c, netlink_recvmsg and
	// netlink_dump), and all other messages are smaller. 0 means 32 KiB.
	Datagram int
	// Timeout limits the wait for an answer, 0 means none.
	Timeout time.Duration
}

const defaultDatagram = 32 << 10

// Dial opens a socket to a subsystem, such as unix.NETLINK_NETFILTER, in the network
// namespace of the calling thread.
func Dial(protocol int, o Options) (*Socket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	s := &Socket{fd: fd, timeout: o.Timeout}
	if err := s.setUp(o.Buffer); err != nil {
		s.Close()
		return nil, fmt.Errorf("set up netlink socket: %w", err)
	}
	if o.Datagram == 0 {
		o.Datagram = defaultDatagram
	}
	s.buf = make([]byte, o.Datagram)
	return s, nil
}

func (s *Socket) setUp(buffer int) error {
	if err := unix.Bind(s.fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	addr, err := unix.Getsockname(s.fd)
	if err != nil {
		return err
	}
	s.portID = addr.(*unix.SockaddrNetlink).Pid
	for forced, plain := range map[int]int{unix.SO_SNDBUFFORCE: unix.SO_SNDBUF, unix.SO_RCVBUFFORCE: unix.SO_RCVBUF} {
		if buffer != 0 && unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, forced, buffer) != nil {
			// Best effort: the system's limit may be sufficient.
			_ = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, plain, buffer)
		}
	}
	// Both make answers shorter or clearer. They are older than every supported kernel.
	_ = unix.SetsockoptInt(s.fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1)
	_ = unix.SetsockoptInt(s.fd, unix.SOL_NETLINK, unix.NETLINK_EXT_ACK, 1)
	return nil
}

// Close closes s.
func (s *Socket) Close() { _ = unix.Close(s.fd) }

// PortID returns the port of s, which notifications about its changes contain.
func (s *Socket) PortID() uint32 { return s.portID }

// Join makes s receive the notifications of a group.
func (s *Socket) Join(group int) error {
	return unix.SetsockoptInt(s.fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, group)
}

// Send sends messages as one datagram.
func (s *Socket) Send(b []byte) error {
	err := unix.Sendto(s.fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	for errors.Is(err, unix.EINTR) {
		err = unix.Sendto(s.fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	}
	return err
}

// Poll returns a datagram that is queued. It is valid until the next one is received. If
// there is none, the error is unix.EAGAIN. If the kernel had to drop some, it is
// unix.ENOBUFS.
func (s *Socket) Poll() ([]byte, error) {
	for {
		n, _, err := unix.Recvfrom(s.fd, s.buf, unix.MSG_DONTWAIT|unix.MSG_TRUNC)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return nil, err
		case n > len(s.buf):
			return nil, fmt.Errorf("netlink answer of %d bytes", n)
		}
		return s.buf[:n], nil
	}
}

// Receive calls each for every message until it returns false or an error, or ctx ends.
func (s *Socket) Receive(ctx context.Context, each func(Message) (more bool, err error)) error {
	for {
		b, err := s.next(ctx)
		if err != nil {
			return fmt.Errorf("read netlink socket: %w", err)
		}
		for m, err := range Messages(b) {
			if err != nil {
				return err
			}
			if more, err := each(m); err != nil || !more {
				return err
			}
		}
	}
}

// next waits for a datagram.
func (s *Socket) next(ctx context.Context) ([]byte, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		b, err := s.Poll()
		if !errors.Is(err, unix.EAGAIN) {
			return b, err
		}
		if err := s.Wait(ctx); err != nil {
			return nil, err
		}
	}
}

// Wait waits until a datagram is queued. It returns the error of ctx when that ends.
func (s *Socket) Wait(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	fds := []unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLIN}}
	if ctx.Done() != nil {
		wake, release, err := wakeAtEnd(ctx)
		if err != nil {
			return err
		}
		defer release()
		fds = append(fds, unix.PollFd{Fd: int32(wake), Events: unix.POLLIN})
	}
	limit := -1
	if s.timeout != 0 {
		limit = int(s.timeout.Milliseconds())
	}
	n, err := unix.Poll(fds, limit)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil && !errors.Is(err, unix.EINTR):
		return err
	case err == nil && n == 0:
		return fmt.Errorf("no answer of the kernel in %s: %w", s.timeout, os.ErrDeadlineExceeded)
	}
	return nil
}

// wakeAtEnd returns a file descriptor that becomes readable when ctx ends.
func wakeAtEnd(ctx context.Context) (fd int, release func(), err error) {
	fd, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return 0, nil, err
	}
	woke := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(woke)
		_, _ = unix.Write(fd, []byte{1, 0, 0, 0, 0, 0, 0, 1})
	})
	return fd, func() {
		if !stop() {
			<-woke // otherwise it could write to a reused file descriptor
		}
		_ = unix.Close(fd)
	}, nil
}
