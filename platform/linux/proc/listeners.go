// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package proc

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

// Listener is a socket that accepts packets or connections from any source.
type Listener struct {
	Protocol service.Protocol
	// Addr is unspecified for all addresses, in IPv6 usually with IPv4, see ipv6(7).
	Addr netip.AddrPort
	// Inode identifies the socket. BySocketInode finds its process.
	Inode uint64
}

// socketTables are the kernel's, with its state of listeners (kernel: include/net/tcp_states.h).
var socketTables = []struct {
	name     string
	protocol service.Protocol
	state    string
	// first means that listeners precede the others, which may be very many.
	first bool
}{
	{"tcp", service.TCP, "0A", true},
	{"tcp6", service.TCP, "0A", true},
	{"udp", service.UDP, "07", false},
	{"udp6", service.UDP, "07", false},
}

// Listeners returns the listeners, but of SCTP, in net, a directory such as /proc/self/net. A
// missing table, as without IPv6, counts as empty.
func Listeners(net fs.FS) ([]Listener, error) {
	var all []Listener
	for _, t := range socketTables {
		f, err := net.Open(t.name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list sockets: %w", err)
		}
		found, err := readSockets(f, t.state, t.first)
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

// LeaseName is the name of the socket by which proxies find each other.
const LeaseName = "@kube-services/lease"

// leaseName returns that of proxies for Services labelled with proxyName, or without if it is empty.
func leaseName(proxyName string) string { return strings.TrimSuffix(LeaseName+"/"+proxyName, "/") }

// LeaseHolder returns the process that listens at the socket of proxies for proxyName, even if it
// hangs. net is a directory such as /proc/self/net (kernel: net/unix/af_unix.c, unix_seq_show).
func LeaseHolder(proc, net fs.FS, proxyName string) (Process, bool) {
	const flags, inode, name, listens = 3, 6, 7, "00010000"
	table, _ := fs.ReadFile(net, "unix")
	for line := range strings.Lines(string(table)) {
		fields := strings.Fields(line)
		if len(fields) <= name || fields[flags] != listens || fields[name] != leaseName(proxyName) {
			continue
		}
		if n, err := strconv.ParseUint(fields[inode], 10, 64); err == nil {
			return BySocketInode(proc, n)
		}
	}
	return Process{}, false
}

func readSockets(r io.Reader, state string, listenersFirst bool) ([]Listener, error) {
	var all []Listener
	lines := bufio.NewScanner(r)
	lines.Scan() // the header
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
		a, err := parseSocket(fields[local])
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

// ConflictsWith reports whether l prevents others from listening on a with its protocol.
func (l Listener) ConflictsWith(a netip.AddrPort) bool {
	own, addr := l.Addr.Addr(), a.Addr()
	if l.Addr.Port() != a.Port() {
		return false
	}
	return own == addr || own.IsUnspecified() && (own.Is6() || addr.Is4()) || addr.IsUnspecified() && (addr.Is6() || own.Is4())
}

// parseSocket parses "0100007F:1F90": words of four bytes in host byte order, and a port.
func parseSocket(s string) (netip.AddrPort, error) {
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

// Hidden is a listener that a NodePort hides: its clients reach the Service.
type Hidden struct {
	Port     *service.Port
	NodePort uint16
	Listener Listener
}

// HiddenBy returns those of found that NodePorts of s hide, in the order of Service ports.
func HiddenBy(s *service.Snapshot, found []Listener) []Hidden {
	if s == nil || len(found) == 0 {
		return nil
	}
	type key struct {
		protocol service.Protocol
		port     uint16
	}
	var all []Hidden
	for _, f := range service.Families {
		by := map[key]Listener{}
		for _, l := range found {
			if isHidden(s.Node, f, l) {
				by[key{l.Protocol, l.Addr.Port()}] = l
			}
		}
		for p := range s.Ports(f) {
			n := p.NodePort()
			if l, hides := by[key{p.Name.Protocol, n}]; hides {
				all = append(all, Hidden{p, n, l})
			}
		}
	}
	return all
}

// isHidden returns whether NodePorts of f take the traffic to l.
func isHidden(node *service.Node, f service.Family, l Listener) bool {
	a := l.Addr.Addr()
	if a.IsUnspecified() {
		return a.Is6() || f == service.IPv4 // an IPv6 wildcard socket serves both families, see IPV6_V6ONLY in ipv6(7)
	}
	return service.FamilyOf(a) == f && node.AnswersNodePorts(a)
}
