// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"kubeproxy/platform/linux/netlink"
)

// socketBuffer holds the kernel's answers until they are read.
const socketBuffer = 1 << 20

func dial(ctx context.Context) (*netlink.Socket, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s, err := netlink.Dial(unix.NETLINK_NETFILTER, netlink.Options{Buffer: socketBuffer})
	return s, missingSocket(err)
}

// missingSocket names the module that a kernel lacks which knows no such sockets.
func missingSocket(err error) error {
	if errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EAFNOSUPPORT) {
		return fmt.Errorf("open netlink socket: %w", &MissingModuleError{"nfnetlink", err})
	}
	return err
}

// send sends all payloads in one datagram, numbered from 1. The last message gets the flags
// last.
func send(s *netlink.Socket, payloads [][]byte, typ, last uint16) error {
	var e netlink.Encoder
	for _, p := range payloads {
		e.Message(subsystem|typ, 0)
		e.Buf = append(e.Buf, p...)
		e.EndMessage()
	}
	e.AddFlags(last)
	return s.Send(e.Buf)
}

// encodeRoute returns a request for the route to addr: a struct rtmsg and the address, see
// rtnetlink(7).
func encodeRoute(addr netip.Addr) []byte {
	rtmsg := make([]byte, unix.SizeofRtMsg)
	rtmsg[0], rtmsg[1] = unix.AF_INET, byte(addr.BitLen())
	if !addr.Is4() {
		rtmsg[0] = unix.AF_INET6
	}
	var e netlink.Encoder
	e.Message(unix.RTM_GETROUTE, 0)
	e.Buf = append(e.Buf, rtmsg...)
	e.Bytes(unix.RTA_DST, addr.AsSlice())
	e.EndMessage()
	return e.Buf
}

// routeType returns the route type in a struct rtmsg, or RTN_UNSPEC if b is too short.
func routeType(b []byte) byte {
	if len(b) < unix.SizeofRtMsg {
		return unix.RTN_UNSPEC
	}
	return b[7]
}
