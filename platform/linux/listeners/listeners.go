// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package listeners finds the ports of a node that programs on it listen on.
// What that means for NodePorts is left to others.
package listeners

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"strconv"
	"strings"

	"kubeproxy/common/service"
)

// Listener is a socket that takes what is sent to it from anywhere.
type Listener struct {
	Protocol service.Protocol
	// Addr is unspecified for all addresses; that of IPv6 usually stands for
	// those of IPv4, too.
	Addr netip.AddrPort
	// Inode is the socket's, by which process.BySocketInode finds whose it is.
	Inode uint64
}

// tables are the kernel's lists of sockets and the state in which one of
// them listens.
var tables = []struct {
	name     string
	protocol service.Protocol
	state    string
	// first means that those which listen stand before all others, of which
	// there may be very many.
	first bool
}{
	{"tcp", service.TCP, "0A", true},
	{"tcp6", service.TCP, "0A", true},
	{"udp", service.UDP, "07", false},
	{"udp6", service.UDP, "07", false},
}

// List returns the listeners in net, a network namespace's directory as in
// /proc/self/net. A table that is not there, for a kernel without IPv6, is
// empty. SCTP is not looked at.
func List(net fs.FS) ([]Listener, error) {
	var all []Listener
	for _, t := range tables {
		f, err := net.Open(t.name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list sockets: %w", err)
		}
		found, err := read(f, t.state, t.first)
		if err = errors.Join(err, f.Close()); err != nil {
			return nil, fmt.Errorf("list sockets of %s: %w", t.name, err)
		}
		for _, l := range found {
			l.Protocol = t.protocol
			all = append(all, l)
		}
	}
	return all, nil
}

// read returns the sockets in a state.
func read(r io.Reader, state string, listenersFirst bool) ([]Listener, error) {
	var all []Listener
	lines := bufio.NewScanner(r)
	lines.Scan() // the heading
	for lines.Scan() {
		const local, st, inode = 1, 3, 9
		fields := strings.Fields(lines.Text())
		if len(fields) <= inode {
			return nil, fmt.Errorf("unexpected line %q", lines.Text())
		}
		if fields[st] != state {
			if listenersFirst {
				break
			}
			continue
		}
		a, err := parse(fields[local])
		if err != nil {
			return nil, err
		}
		n, err := strconv.ParseUint(fields[inode], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("unexpected line %q", lines.Text())
		}
		all = append(all, Listener{Addr: a, Inode: n})
	}
	return all, lines.Err()
}

// ConflictsWith reports that l keeps others from listening on a with its protocol.
func (l Listener) ConflictsWith(a netip.AddrPort) bool {
	own, addr := l.Addr.Addr(), a.Addr()
	if l.Addr.Port() != a.Port() {
		return false
	}
	return own == addr || own.IsUnspecified() && (own.Is6() || addr.Is4()) || addr.IsUnspecified() && (addr.Is6() || own.Is4())
}

// parse reads "0100007F:1F90": words of four bytes in the machine's order,
// and a port.
func parse(s string) (netip.AddrPort, error) {
	text, port, _ := strings.Cut(s, ":")
	raw, err := hex.DecodeString(text)
	n, err2 := strconv.ParseUint(port, 16, 16)
	if errors.Join(err, err2) != nil || len(raw)%4 != 0 {
		return netip.AddrPort{}, fmt.Errorf("unexpected address %q", s)
	}
	for i := 0; i < len(raw); i += 4 {
		binary.NativeEndian.PutUint32(raw[i:], binary.BigEndian.Uint32(raw[i:]))
	}
	a, ok := netip.AddrFromSlice(raw)
	if !ok {
		return netip.AddrPort{}, fmt.Errorf("unexpected address %q", s)
	}
	return netip.AddrPortFrom(a, uint16(n)), nil
}
