// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"golang.org/x/sys/windows"

	"kubeproxy/common/service"
)

// acquireReservation is SIO_ACQUIRE_PORT_RESERVATION of mstcpip.h. Closing the socket
// releases the reservation, see
// https://learn.microsoft.com/windows/win32/winsock/sio-acquire-port-reservation.
const acquireReservation = 0x98000064

// portRange is INET_PORT_RANGE. If start is 0, Windows chooses one.
type portRange struct{ start, number uint16 }

// portReservation is INET_PORT_RESERVATION_INSTANCE.
type portReservation struct {
	ports portRange
	_     uint32
	token uint64
}

// nonPortErrors are errors of a reservation that do not concern ports, according to the
// documentation of Winsock, and the error for missing permission.
var nonPortErrors = []error{
	windows.WSAEINVAL, windows.WSAEOPNOTSUPP, windows.WSAEFAULT, windows.WSAENETDOWN, windows.WSAEINTR,
	windows.ERROR_OPERATION_ABORTED, windows.WSAEINPROGRESS, windows.WSAENOTSOCK, windows.WSAEACCES,
}

// PortsLeft implements Driver. It reserves a block of ports as HNS does, and releases it
// at once.
func (driver) PortsLeft(_ context.Context, k Key) (bool, error) {
	var data windows.WSAData
	if err := windows.WSAStartup(0x202, &data); err != nil {
		return false, fmt.Errorf("start Winsock: %w", err)
	}
	defer func() { _ = windows.WSACleanup() }()
	family, kind, protocol := windows.AF_INET, windows.SOCK_STREAM, windows.IPPROTO_TCP
	if k.Family == service.IPv6 {
		family = windows.AF_INET6
	}
	if k.Protocol == service.UDP {
		kind, protocol = windows.SOCK_DGRAM, windows.IPPROTO_UDP
	}
	s, err := windows.Socket(family, kind, protocol)
	if err != nil {
		return false, fmt.Errorf("open a socket to look for dynamic ports: %w", err)
	}
	defer func() { _ = windows.Closesocket(s) }()
	in, out, n := portRange{number: PortBlockSize}, portReservation{}, uint32(0)
	err = windows.WSAIoctl(s, acquireReservation, (*byte)(unsafe.Pointer(&in)), uint32(unsafe.Sizeof(in)),
		(*byte)(unsafe.Pointer(&out)), uint32(unsafe.Sizeof(out)), &n, nil, 0)
	if slices.ContainsFunc(nonPortErrors, func(e error) bool { return errors.Is(err, e) }) {
		return false, fmt.Errorf("look for dynamic ports: %w", err)
	}
	return err == nil, nil
}
