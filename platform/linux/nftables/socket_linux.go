// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// socket is a netlink socket to netfilter, see netlink(7). Unlike a general library it
// requests one acknowledgement per transaction, not per message. It reads all queued
// answers before it reports success, because the kernel reports a failed commit in
// addition to the answers to messages.
type socket struct {
	fd     int
	portID uint32
	buf    []byte
}

// bufferSize is requested for both directions. Without CAP_NET_ADMIN the system's limit
// applies, see socket(7), and large transactions are split.
const bufferSize = 64 << 20

// maxDatagram bounds a datagram from the kernel. Dumps come in parts as large as the
// receive buffer, at most 32 KiB (kernel: net/netlink/af_netlink.c, netlink_recvmsg and
// netlink_dump), and all other messages are smaller. Smaller parts would cost time, see
// README.md.
const maxDatagram = 64 << 10

func dial() (*socket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket to netfilter: %w", err)
	}
	s := &socket{fd: fd, buf: make([]byte, maxDatagram)}
	if err := s.setUp(); err != nil {
		s.close()
		return nil, fmt.Errorf("set up netlink socket to netfilter: %w", err)
	}
	return s, nil
}

func (s *socket) setUp() error {
	if err := unix.Bind(s.fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	addr, err := unix.Getsockname(s.fd)
	if err != nil {
		return err
	}
	s.portID = addr.(*unix.SockaddrNetlink).Pid
	for forced, plain := range map[int]int{unix.SO_SNDBUFFORCE: unix.SO_SNDBUF, unix.SO_RCVBUFFORCE: unix.SO_RCVBUF} {
		if unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, forced, bufferSize) != nil {
			// Best effort: the system's limit may be sufficient.
			_ = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, plain, bufferSize)
		}
	}
	// Both make answers shorter or clearer. They are older than every supported kernel.
	_ = unix.SetsockoptInt(s.fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1)
	_ = unix.SetsockoptInt(s.fd, unix.SOL_NETLINK, unix.NETLINK_EXT_ACK, 1)
	return nil
}

func (s *socket) close() { _ = unix.Close(s.fd) }

// receive returns the next datagram, which is valid until the next call. wait is 0 or
// unix.MSG_DONTWAIT.
func (s *socket) receive(wait int) ([]byte, error) {
	for {
		n, _, err := unix.Recvfrom(s.fd, s.buf, wait|unix.MSG_TRUNC)
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

func (s *socket) send(b []byte) error {
	err := unix.Sendto(s.fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	for errors.Is(err, unix.EINTR) {
		err = unix.Sendto(s.fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	}
	return err
}

// drain discards what is left of an earlier exchange.
func (s *socket) drain() {
	for {
		if _, err := s.receive(unix.MSG_DONTWAIT); err != nil {
			return
		}
	}
}

// transact sends one batch, whose last inner message requests an acknowledgement. The
// kernel processes the batch within sendto, so all answers are queued when it returns.
func (s *socket) transact(batch []byte) error {
	s.drain()
	if err := s.send(batch); err != nil {
		return fmt.Errorf("send a transaction of %d bytes: %w", len(batch), err)
	}
	answers := 0
	var first error
	for {
		b, err := s.receive(unix.MSG_DONTWAIT)
		if errors.Is(err, unix.EAGAIN) {
			break
		}
		if err != nil {
			return fmt.Errorf("read the answer to a transaction: %w", err)
		}
		for r, err := range replies(b) {
			if err == nil && r.typ == unix.NLMSG_ERROR {
				answers++
				err = errnoOf(r)
			}
			if first == nil {
				first = err
			}
		}
	}
	if answers == 0 {
		return errors.New("the kernel did not answer a transaction")
	}
	return first
}

// dump sends a request and calls each for every answer. The answer's body is valid until
// each returns.
func (s *socket) dump(request []byte, each func(reply) error) error {
	s.drain()
	if err := s.send(request); err != nil {
		return err
	}
	for {
		b, err := s.receive(0)
		if err != nil {
			return err
		}
		for r, err := range replies(b) {
			if err != nil {
				return err
			}
			if r.flags&unix.NLM_F_DUMP_INTR != 0 {
				return errInterrupted
			}
			switch r.typ {
			case unix.NLMSG_DONE:
				return nil
			case unix.NLMSG_ERROR:
				return errnoOf(r)
			}
			if err := each(r); err != nil {
				return err
			}
			if r.flags&unix.NLM_F_MULTI == 0 {
				return nil
			}
		}
	}
}

// errInterrupted means that the table changed during the dump.
var errInterrupted = errors.New("the table changed while it was read")

// errnoOf returns the error of an answer, nil for an acknowledgement. It includes the
// kernel's message if there is one.
func errnoOf(r reply) error {
	if len(r.body) < 4 {
		return errors.New("short netlink error")
	}
	code := int32(binary.NativeEndian.Uint32(r.body))
	if code == 0 {
		return nil
	}
	err := error(unix.Errno(-code))
	const header = 4 + unix.SizeofNlMsghdr
	if len(r.body) > header {
		if text := attribute(r.body[header:], unix.NLMSGERR_ATTR_MSG); text != nil {
			err = fmt.Errorf("%w (%s)", err, stringOf(text))
		}
	}
	return err
}
