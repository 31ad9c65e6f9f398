// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package proc finds the process that listens on a TCP port of a Windows node, in the
// tables of GetExtendedTcpTable, and has the pipe by which processes agree who programs
// the node. Only files ending in _windows.go call Windows.
package proc

import (
	"encoding/binary"
	"net/netip"
)

// Listener is a socket that waits for connections.
type Listener struct {
	Addr netip.AddrPort
	PID  uint32
}

// Keeps reports whether l prevents other programs from listening at the address. A socket
// of all IPv6 addresses may be one of all IPv4 addresses, too.
func (l Listener) Keeps(at netip.AddrPort) bool {
	if l.Addr.Port() != at.Port() {
		return false
	}
	a, b := l.Addr.Addr(), at.Addr().Unmap()
	switch {
	case a == b, a == netip.IPv6Unspecified(), b == netip.IPv6Unspecified():
		return true
	}
	return a.Is4() == b.Is4() && (a.IsUnspecified() || b.IsUnspecified())
}

// row has the offsets of the fields in a table's rows, in bytes. All fields except the
// address have 32 bits. See MIB_TCPROW_OWNER_PID and MIB_TCP6ROW_OWNER_PID,
// https://learn.microsoft.com/windows/win32/api/tcpmib/ns-tcpmib-mib_tcprow_owner_pid.
type row struct{ size, addr, bytes, port, pid int }

var (
	rowIPv4 = row{size: 24, addr: 4, bytes: 4, port: 8, pid: 20}
	rowIPv6 = row{size: 56, addr: 0, bytes: 16, port: 20, pid: 52}
)

// parse reads a table: the number of rows, and the rows. It leaves out incomplete rows.
func parse(table []byte, r row) []Listener {
	const head = 4
	if len(table) < head {
		return nil
	}
	n := min(int(binary.LittleEndian.Uint32(table)), (len(table)-head)/r.size)
	all := make([]Listener, 0, n)
	for i := range n {
		b := table[head+i*r.size:][:r.size]
		addr, ok := netip.AddrFromSlice(b[r.addr:][:r.bytes])
		if !ok {
			continue
		}
		// The port is in network order in the first two bytes.
		port := binary.BigEndian.Uint16(b[r.port:])
		all = append(all, Listener{netip.AddrPortFrom(addr.Unmap(), port), binary.LittleEndian.Uint32(b[r.pid:])})
	}
	return all
}
