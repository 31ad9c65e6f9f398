// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"encoding/binary"
	"net"
	"net/netip"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

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

// datagramHops returns the hop limit in the control messages of a datagram, 0 if there
// is none.
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
