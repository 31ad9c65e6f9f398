// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"kubeproxy/common/explain"
)

// oneSYN bounds repeats of the first packet for a process too late for the timeout (tcp(7)).
func oneSYN(network, _ string, c syscall.RawConn) error {
	if network != "tcp4" && network != "tcp6" {
		return nil
	}
	return c.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_SYNCNT, 1) })
}

// namespaceOf returns what runs a function where address a is, nil if that is here, and how a
// command begins that runs there.
func namespaceOf(a netip.Addr) (within func(func()) error, enter string, end func(), err error) {
	end = func() {}
	if has, err := hasAddr(a); err != nil || has {
		return nil, "", end, err
	}
	f, err := findNamespace(a)
	if err != nil {
		return nil, "", end, err
	}
	return func(fn func()) error { return inNamespace(f, fn) }, "nsenter --net=" + f.Name(), func() { _ = f.Close() }, nil
}

// inNamespace runs fn on a thread that enters the namespace f, and then ends.
func inNamespace(f *os.File, fn func()) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked, so that the thread ends
		err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET)
		if err == nil {
			fn()
		}
		result <- err
	}()
	return <-result
}

// findNamespace looks for the network namespace of an address: processes', and ip-netns(8)'s.
func findNamespace(a netip.Addr) (*os.File, error) {
	own, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, err
	}
	defer own.Close()
	var paths []string
	for _, pattern := range []string{"/proc/[0-9]*/ns/net", "/run/netns/*"} {
		some, _ := filepath.Glob(pattern)
		paths = append(paths, some...)
	}
	seen, denied := map[uint64]bool{}, error(nil)
	for _, path := range paths {
		f, has, err := tryNamespace(path, seen, func() bool { return isPod(a, own) })
		if has {
			return f, nil
		}
		if errors.Is(err, os.ErrPermission) {
			denied = err
		}
	}
	if denied != nil {
		return nil, fmt.Errorf("its network namespace cannot be entered (%w): that needs CAP_SYS_ADMIN and CAP_SYS_PTRACE", denied)
	}
	return nil, errors.New("no process that is visible here has its address: it is not on this node, or this container does not see the processes of the node (hostPID)")
}

// tryNamespace opens a namespace that was not seen before, and asks whether it is the one.
func tryNamespace(path string, seen map[uint64]bool, is func() bool) (*os.File, bool, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, false, err
	}
	var st unix.Stat_t
	has := false
	if err = unix.Fstat(int(f.Fd()), &st); err == nil && !seen[st.Ino] {
		seen[st.Ino] = true
		err = inNamespace(f, func() { has = is() })
	}
	if !has {
		_ = f.Close()
	}
	return f, has, err
}

// isPod reports whether the namespace of this thread has the address, on an interface that
// leads to the namespace of the node, such as one end of a veth, or on a device of its own.
// Pods of other nodes on this machine, as kind has them, may have the same address.
func isPod(a netip.Addr, node *os.File) bool {
	addrs, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return false
	}
	i := slices.IndexFunc(addrs, func(x netlink.Addr) bool { return x.IP.Equal(a.AsSlice()) })
	if i < 0 {
		return false
	}
	link, err := netlink.LinkByIndex(addrs[i].LinkIndex)
	if err != nil {
		return false
	}
	leads := link.Attrs().NetNsID
	id, err := netlink.GetNetNsIdByFd(int(node.Fd()))
	return leads < 0 || err == nil && leads == id
}

// dialSCTP attempts an association.
func dialSCTP(ctx context.Context, to string) error {
	at, err := netip.ParseAddrPort(to)
	if err != nil {
		return err
	}
	domain, addr := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Port: int(at.Port()), Addr: at.Addr().As16()})
	if at.Addr().Is4() {
		domain, addr = unix.AF_INET, &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}
	}
	fd, err := unix.Socket(domain, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
	if err != nil {
		return fmt.Errorf("this kernel offers no sockets of SCTP: %w", errors.ErrUnsupported)
	}
	defer unix.Close(fd)
	if err := unix.Connect(fd, addr); err != nil && !errors.Is(err, unix.EINPROGRESS) {
		return err
	}
	for ctx.Err() == nil {
		const step = 20 // milliseconds, after which an interrupt counts
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, step)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		if n > 0 {
			no, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
			if err == nil && no != 0 {
				err = unix.Errno(no)
			}
			return err
		}
	}
	return ctx.Err()
}

// closedPort is a port on which hardly anybody listens: the first one of traceroute(8).
const closedPort = 33434

// packetTimeout is how long to wait for the ICMP message about a datagram.
const packetTimeout = 300 * time.Millisecond

// probePackets finds out whether packets as large as conn's arrive: datagrams that must not be
// fragmented, to a closed port, which answers by ICMP, as small ones before and after show. Pings
// show whether such packets come back, unless a hop cuts them.
func probePackets(ctx context.Context, conn net.Conn) *explain.Packets {
	to := netip.AddrPortFrom(conn.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap(), closedPort)
	size, err := segment(conn.(*net.TCPConn))
	p := &explain.Packets{Bytes: size, State: explain.PacketsUnknown}
	if err != nil {
		return p
	}
	headers := 20 + 8
	if to.Addr().Is6() {
		headers = 40 + 8
	}
	const small = 1
	for _, payload := range []int{small, size - headers, size - headers, small} {
		hop, err := sendWhole(ctx, to, payload)
		switch {
		case errors.Is(err, unix.ECONNREFUSED) && payload > small:
			if p.State = explain.PacketsArrive; !echoes(ctx, to.Addr(), size-headers) {
				p.State = explain.PacketsNotBack
			}
			return p
		case errors.Is(err, unix.EMSGSIZE):
			p.State, p.Hop = explain.PacketsSmaller, hop
			return p
		case payload == small && !errors.Is(err, unix.ECONNREFUSED):
			return p
		}
	}
	p.State = explain.PacketsLost
	return p
}

// echoes reports whether pings come back, or nobody answers any. That needs CAP_NET_RAW.
func echoes(ctx context.Context, to netip.Addr, payload int) bool {
	const small = 8
	for _, n := range []int{small, payload, payload, small} {
		answered := ping(ctx, to, n)
		if answered && n != small || !answered && n == small {
			return true
		}
	}
	return false
}

// ping sends an echo request (RFC 792, RFC 4443 section 4.1), and reports whether it is answered.
func ping(ctx context.Context, to netip.Addr, payload int) bool {
	network, request, answer := "ip4:icmp", byte(8), byte(0)
	if to.Is6() {
		network, request, answer = "ip6:ipv6-icmp", 128, 129
	}
	ctx, cancel := context.WithTimeout(ctx, packetTimeout)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, network, to.String())
	if err != nil {
		return false
	}
	defer conn.Close()
	packet := make([]byte, 8+payload)
	packet[0] = request
	id := uint16(rand.Uint32())
	binary.BigEndian.PutUint16(packet[4:], id)
	binary.BigEndian.PutUint16(packet[2:], ^(uint16(request)<<8 + id)) // all else is 0; the kernel makes that of IPv6
	end, _ := ctx.Deadline()
	_ = conn.SetDeadline(end)
	if _, err = conn.Write(packet); err != nil {
		return false
	}
	const header = 60 // of IPv4 at most, which this removes
	for b := make([]byte, header+len(packet)); ; {
		n, _, err := conn.(*net.IPConn).ReadFromIP(b)
		if err != nil {
			return false
		}
		if n == len(packet) && b[0] == answer && binary.BigEndian.Uint16(b[4:]) == id {
			return true
		}
	}
}

// segment returns the size of the largest packets of a connection, with their headers.
func segment(conn *net.TCPConn) (size int, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	ctlErr := raw.Control(func(fd uintptr) {
		var info *unix.TCPInfo
		if info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err != nil {
			return
		}
		const optTimestamps, timestamps = 1, 12 // TCPI_OPT_TIMESTAMPS, and the bytes of this option
		size = int(info.Snd_mss) + 20 + 20
		if info.Options&optTimestamps != 0 {
			size += timestamps
		}
		if conn.RemoteAddr().(*net.TCPAddr).IP.To4() == nil {
			size += 20
		}
	})
	return size, errors.Join(err, ctlErr)
}

// sendWhole sends a datagram that must not be fragmented, and returns what comes back as an
// error. hop is how large packets may be, if that is the error. See ip(7) and ipv6(7).
func sendWhole(ctx context.Context, to netip.AddrPort, payload int) (hop int, err error) {
	level, discover, mtu := unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_MTU
	if to.Addr().Is6() {
		level, discover, mtu = unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_MTU
	}
	d := net.Dialer{Control: func(_, _ string, c syscall.RawConn) (err error) {
		ctlErr := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), level, discover, unix.IP_PMTUDISC_PROBE) })
		return errors.Join(err, ctlErr)
	}}
	ctx, cancel := context.WithTimeout(ctx, packetTimeout)
	defer cancel()
	conn, err := d.DialContext(ctx, "udp", to.String())
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	err = exchange(ctx, conn, make([]byte, payload))
	if raw, rawErr := conn.(*net.UDPConn).SyscallConn(); rawErr == nil {
		_ = raw.Control(func(fd uintptr) { hop, _ = unix.GetsockoptInt(int(fd), level, mtu) })
	}
	return hop, err
}
