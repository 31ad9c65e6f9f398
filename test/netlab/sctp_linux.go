// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

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
