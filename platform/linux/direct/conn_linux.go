// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package direct

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"kubeproxy/common/peers"
)

// conn leads datagrams through the tunnel. It implements peers.Conn.
type conn struct {
	*net.UDPConn
	road    func(netip.Addr) uint32
	marking sync.Mutex
}

// Open returns the way to other nodes from an address of this one. road returns the mark for an
// address, 0 for none.
func Open(own netip.Addr, road func(netip.Addr) uint32) (peers.Conn, error) {
	network, level, option := "udp4", unix.IPPROTO_IP, unix.IP_RECVERR
	if own.Is6() {
		network, level, option = "udp6", unix.IPPROTO_IPV6, unix.IPV6_RECVERR
	}
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) (err error) {
		controlErr := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), level, option, 1) })
		return errors.Join(err, controlErr)
	}}
	c, err := config.ListenPacket(context.Background(), network, netip.AddrPortFrom(own, Probe).String())
	if err != nil {
		return nil, err
	}
	return &conn{UDPConn: c.(*net.UDPConn), road: road}, nil
}

// Send implements peers.Conn.
func (c *conn) Send(b []byte, to netip.AddrPort, tunnel peers.Through) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	mark := c.road(to.Addr())
	if mark == 0 && tunnel {
		return fmt.Errorf("there is no road to %s yet", to.Addr())
	}
	c.marking.Lock()
	defer c.marking.Unlock()
	controlErr := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, int(mark)) })
	if err := errors.Join(err, controlErr); err != nil {
		return err
	}
	for range 3 { // it may return the errors of two earlier datagrams
		if _, err = c.WriteToUDPAddrPort(b, to); err == nil {
			break
		}
	}
	return err
}

// Receive implements peers.Conn. An error of the network is not the end.
func (c *conn) Receive(b []byte) (size int, from netip.AddrPort, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, from, err
	}
	control := make([]byte, unix.CmsgSpace(64))
	readErr := raw.Read(func(fd uintptr) bool {
		for {
			n, m, _, at, bounced := unix.Recvmsg(int(fd), b, control, unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT)
			if bounced == nil && isRefused(control[:m]) {
				size, from, err = n, addrPort(at), peers.ErrRefused
				return true
			}
			n, _, _, at, received := unix.Recvmsg(int(fd), b, nil, unix.MSG_DONTWAIT)
			if received == nil {
				size, from = n, addrPort(at)
				return true
			}
			if received == unix.EAGAIN && bounced != nil {
				return false
			}
		}
	})
	return size, from, cmp.Or(readErr, err)
}

// isRefused reports whether a datagram came back because nobody listens, see IP_RECVERR in ip(7).
func isRefused(control []byte) bool {
	all, err := unix.ParseSocketControlMessage(control)
	return err == nil && slices.ContainsFunc(all, func(m unix.SocketControlMessage) bool {
		return len(m.Data) >= 4 && unix.Errno(binary.NativeEndian.Uint32(m.Data)) == unix.ECONNREFUSED
	})
}

func addrPort(at unix.Sockaddr) netip.AddrPort {
	switch a := at.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr), uint16(a.Port))
	}
	return netip.AddrPort{}
}
