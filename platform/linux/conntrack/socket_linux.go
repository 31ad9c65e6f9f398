// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// socket exchanges ctnetlink messages. It reads into one buffer. netlink.Conn would
// allocate memory for each message.
type socket struct {
	ctx    context.Context
	conn   *netlink.Conn
	raw    syscall.RawConn
	unbind func()
}

const (
	// readSize is the maximum size of a dump's datagram (kernel:
	// net/netlink/af_netlink.c, netlink_dump).
	readSize = 32 << 10
	// socketBuffer holds the kernel's answers until they are read.
	socketBuffer = 1 << 20
)

func dial(ctx context.Context) (*socket, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		if errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EAFNOSUPPORT) {
			err = &MissingModuleError{"nfnetlink", err}
		}
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	// Best effort: both only speed up reads or shorten errors, see netlink(7).
	_ = conn.SetReadBuffer(socketBuffer)
	_ = conn.SetOption(netlink.CapAcknowledge, true)
	return &socket{ctx, conn, raw, bindContext(ctx, conn)}, nil
}

func (s *socket) close() {
	s.unbind()
	s.conn.Close()
}

// bindContext makes reads from c fail once ctx ends. The returned function stops that.
func bindContext(ctx context.Context, c *netlink.Conn) func() {
	stop := context.AfterFunc(ctx, func() { _ = c.SetReadDeadline(time.Unix(1, 0)) })
	return func() { stop() }
}

// send sends all requests in one datagram, numbered from 1.
func (s *socket) send(requests [][]byte, typ netlink.HeaderType, last netlink.HeaderFlags) error {
	ms := make([]netlink.Message, len(requests))
	for i, data := range requests {
		ms[i] = netlink.Message{
			Header: netlink.Header{Type: subsystem | typ, Flags: netlink.Request, Sequence: uint32(i + 1)},
			Data:   data,
		}
	}
	ms[len(ms)-1].Header.Flags |= last
	_, err := s.conn.SendMessages(ms)
	return err
}

// receive calls each for every message until it returns false or an error.
func (s *socket) receive(each func(message) (more bool, err error)) error {
	buf := make([]byte, readSize)
	for {
		n, err := s.read(buf)
		if err != nil {
			return cmp.Or(s.ctx.Err(), err)
		}
		for m := range messages(buf[:n]) {
			if more, err := each(m); err != nil || !more {
				return err
			}
		}
	}
}

func (s *socket) read(buf []byte) (int, error) {
	var (
		n   int
		err error
	)
	wait := s.raw.Read(func(fd uintptr) bool {
		n, _, err = unix.Recvfrom(int(fd), buf, unix.MSG_TRUNC)
		return err != unix.EAGAIN
	})
	switch {
	case wait != nil:
		return 0, fmt.Errorf("read netlink socket: %w", wait)
	case err != nil:
		return 0, fmt.Errorf("read netlink socket: %w", err)
	case n > len(buf):
		return 0, fmt.Errorf("read netlink socket: %d bytes: %w", n, errShort)
	}
	return n, nil
}

// err returns the error in a Done or Error message.
func (m message) err() error {
	if len(m.data) < 4 {
		return nil
	}
	if code := int32(binary.NativeEndian.Uint32(m.data)); code < 0 {
		return unix.Errno(-code)
	}
	return nil
}

// encodeRoute returns the payload of a request for the route to addr: a struct rtmsg and
// the address, see rtnetlink(7).
func encodeRoute(addr netip.Addr) ([]byte, error) {
	ae := netlink.NewAttributeEncoder()
	ae.Bytes(unix.RTA_DST, addr.AsSlice())
	attrs, err := ae.Encode()
	if err != nil {
		return nil, fmt.Errorf("encode route request: %w", err)
	}
	b := make([]byte, unix.SizeofRtMsg)
	b[0], b[1] = unix.AF_INET, byte(addr.BitLen())
	if !addr.Is4() {
		b[0] = unix.AF_INET6
	}
	return append(b, attrs...), nil
}

// routeType returns the route type in a struct rtmsg, or RTN_UNSPEC if b is too short.
func routeType(b []byte) byte {
	if len(b) < unix.SizeofRtMsg {
		return unix.RTN_UNSPEC
	}
	return b[7]
}
