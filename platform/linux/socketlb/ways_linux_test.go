// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package socketlb

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ways are how a program can connect a socket.
var ways = map[string]func(fd int, to netip.AddrPort) error{
	"": func(fd int, to netip.AddrPort) error { return unix.Connect(fd, sockaddr(fd, to)) },
	"nonblocking": func(fd int, to netip.AddrPort) error {
		if err := unix.SetNonblock(fd, true); err != nil {
			return err
		}
		if err := unix.Connect(fd, sockaddr(fd, to)); !errors.Is(err, unix.EINPROGRESS) {
			return err
		}
		if _, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, 5000); err != nil {
			return err
		}
		err := unix.Connect(fd, sockaddr(fd, to)) // which asks for the result
		return errors.Join(err, unix.SetNonblock(fd, false))
	},
	"fast open": func(fd int, to netip.AddrPort) error {
		return unix.Sendto(fd, []byte("hello"), unix.MSG_FASTOPEN, sockaddr(fd, to))
	},
	"fast open by connect": func(fd int, to netip.AddrPort) error {
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_FASTOPEN_CONNECT, 1); err != nil {
			return err
		}
		if err := unix.Connect(fd, sockaddr(fd, to)); err != nil {
			return err
		}
		_, err := unix.Write(fd, []byte("hello"))
		return err
	},
	"io_uring":        func(fd int, to netip.AddrPort) error { return ringConnect(fd, to, 0) },
	"io_uring worker": func(fd int, to netip.AddrPort) error { return ringConnect(fd, to, ringAsync) },
	"disconnect": func(fd int, _ netip.AddrPort) error {
		return rawConnect(fd, unix.RawSockaddrAny{Addr: unix.RawSockaddr{Family: unix.AF_UNSPEC}})
	},
}

func sockaddr(fd int, a netip.AddrPort) unix.Sockaddr {
	if family, _ := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN); family == unix.AF_INET {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

func rawConnect(fd int, a unix.RawSockaddrAny) error {
	if _, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&a)), unix.SizeofSockaddrInet6); errno != 0 {
		return errno
	}
	return nil
}

// ringParams is struct io_uring_params, see io_uring_setup(2).
type ringParams struct {
	_              [11]uint32
	tail           uint32 // of submissions
	_              [4]uint32
	array          uint32
	_              [3]uint32
	_, _, _, _     uint32
	_, completions uint32
	_              [4]uint32
}

// Constants of include/uapi/linux/io_uring.h.
const (
	ringConnects    = 16         // IORING_OP_CONNECT
	ringAsync       = 1 << 4     // IOSQE_ASYNC
	ringSubmissions = 0x10000000 // IORING_OFF_SQES
	ringGetEvents   = 1          // IORING_ENTER_GETEVENTS
)

// ringConnect connects an IPv4 socket by io_uring, see io_uring_enter(2).
func ringConnect(fd int, to netip.AddrPort, flags byte) error {
	var p ringParams
	ring, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, 1, uintptr(unsafe.Pointer(&p)), 0)
	if errno != 0 {
		return fmt.Errorf("io_uring_setup: %w", errno)
	}
	defer unix.Close(int(ring))
	const size = 4096 // of both rings, which one mapping has, and of one submission
	rings, err := unix.Mmap(int(ring), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Munmap(rings) }()
	submission, err := unix.Mmap(int(ring), ringSubmissions, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Munmap(submission) }()
	addr := unix.RawSockaddrInet4{Family: unix.AF_INET, Addr: to.Addr().As4()}
	binary.BigEndian.PutUint16((*[2]byte)(unsafe.Pointer(&addr.Port))[:], to.Port())
	submission[0], submission[1] = ringConnects, flags
	binary.NativeEndian.PutUint32(submission[4:], uint32(fd))
	binary.NativeEndian.PutUint64(submission[8:], unix.SizeofSockaddrInet4)
	binary.NativeEndian.PutUint64(submission[16:], uint64(uintptr(unsafe.Pointer(&addr))))
	binary.NativeEndian.PutUint32(rings[p.array:], 0)
	binary.NativeEndian.PutUint32(rings[p.tail:], 1)
	if _, _, errno := unix.Syscall6(unix.SYS_IO_URING_ENTER, ring, 1, 1, ringGetEvents, 0, 0); errno != 0 {
		return fmt.Errorf("io_uring_enter: %w", errno)
	}
	if result := int32(binary.NativeEndian.Uint32(rings[p.completions+8:])); result < 0 {
		return unix.Errno(-result)
	}
	return nil
}

// TestWaysToConnect has sockets connect in all ways that Linux has, once and again.
func TestWaysToConnect(t *testing.T) {
	inNode(t, func(n *node) {
		// For clients and all listeners, see
		// https://docs.kernel.org/networking/ip-sysctl.html
		if err := os.WriteFile("/proc/sys/net/ipv4/tcp_fastopen", []byte("1027"), 0); err != nil {
			t.Fatal(err)
		}
		four, six := greeter(t, "127.0.0.1:0").String(), greeter(t, "[::1]:0").String()
		const first, second, sixth, dead = "10.96.0.10:80", "10.96.0.11:80", "[fd00:10:96::10]:80", "10.96.0.12:80"
		n.sync(t, snapshot([]string{first, four}, []string{second, four}, []string{dead, "127.0.0.1:1"}, []string{sixth, six}))
		inside := startClient(t, n.options.Cgroup, 0)
		inside.call(t, call{To: first, By: "fast open"}) // the next ones have its cookie
		for name, c := range map[string]struct {
			call
			want answer
		}{
			"nonblocking":                 {call{To: first, By: "nonblocking"}, answer{Greeting: four, Peer: first}},
			"nonblocking IPv6":            {call{To: sixth, By: "nonblocking"}, answer{Greeting: six, Peer: sixth}},
			"nonblocking after a refusal": {call{To: dead, Then: first, By: "nonblocking"}, answer{Greeting: four, Peer: first}},
			"fast open":                   {call{To: first, By: "fast open"}, answer{Greeting: four, Peer: first}},
			"fast open IPv6":              {call{To: sixth, By: "fast open"}, answer{Greeting: six, Peer: sixth}},
			"fast open after a refusal":   {call{To: dead, Then: first, By: "fast open"}, answer{Greeting: four, Peer: first}},
			"fast open by connect":        {call{To: first, By: "fast open by connect"}, answer{Greeting: four, Peer: first}},
			"io_uring":                    {call{To: first, By: "io_uring"}, answer{Greeting: four, Peer: first}},
			"io_uring after a refusal":    {call{To: dead, Then: first, By: "io_uring"}, answer{Greeting: four, Peer: first}},
			"io_uring in a worker":        {call{To: first, By: "io_uring worker"}, answer{Greeting: four, Peer: first}},
			"connected already":           {call{To: first, Then: second}, answer{Err: "transport endpoint is already connected"}},
			"endpoint after a refusal":    {call{To: dead, Then: four}, answer{Greeting: four, Peer: four}},
			"again after disconnecting":   {call{To: first, Between: "disconnect", Then: second}, answer{Greeting: four, Peer: second}},
			"its endpoint after that":     {call{To: first, Between: "disconnect", Then: four}, answer{Greeting: four, Peer: four}},
			"IPv6 endpoint after that":    {call{To: sixth, Between: "disconnect", Then: six}, answer{Greeting: six, Peer: six}},
			"IPv6, then IPv4-mapped":      {call{To: sixth, Between: "disconnect", Then: "[::ffff:10.96.0.10]:80"}, answer{Greeting: four, Peer: "[::ffff:10.96.0.10]:80"}},
			"disconnected":                {call{To: first, Then: first, By: "disconnect"}, answer{Err: "transport endpoint is not connected"}},
			"SO_REUSEADDR":                {call{To: first, Reuse: true}, answer{Greeting: four, Peer: first}},
			// The hook sees the first path of MPTCP, and getpeername the whole connection.
			"MPTCP": {call{To: first, Protocol: unix.IPPROTO_MPTCP}, answer{Greeting: four, Peer: four}},
		} {
			t.Run(name, func(t *testing.T) {
				got := inside.call(t, c.call)
				if c.Protocol == unix.IPPROTO_MPTCP && got.Err == unix.EPROTONOSUPPORT.Error() {
					t.Skip("the kernel has no MPTCP")
				}
				if got != c.want {
					t.Errorf("%+v, want %+v", got, c.want)
				}
			})
		}
	})
}

// TestSocketsOfOthers has processes connect sockets that they made in another cgroup, as if
// another process had passed them.
func TestSocketsOfOthers(t *testing.T) {
	const taken, left = "connection refused", "network is unreachable"
	inNode(t, func(n *node) {
		subgroup(t, n.options.Cgroup, "kubepods/pod1/c1/docker/c9")
		subgroup(t, n.options.Cgroup, "kubepods/pod1/c2")
		n.sync(t, snapshot([]string{"10.96.0.10:80", greeter(t, "127.0.0.1:0").String()}))
		at := func(below string) string { return filepath.Join(n.options.Cgroup, "kubepods/pod1", below) }
		for name, c := range map[string]struct{ from, to, want string }{
			"from a container of the pod": {at("c2"), at("c1"), taken},
			"to a container in it":        {at("c1"), at("c1/docker/c9"), left},
			"from a container in it":      {at("c1/docker/c9"), at("c1"), taken},
			"from outside of the layer":   {filepath.Dir(n.options.Cgroup), at("c1"), left},
		} {
			a := startClient(t, c.from, unix.CLONE_NEWNET).call(t, call{To: "10.96.0.10:80", Cgroup: c.to})
			if a.Err != c.want {
				t.Errorf("%s: %+v, want error %q", name, a, c.want)
			}
		}
	})
}

// TestNameOfSocket has getpeername asked before and after the table of recent sockets has
// forgotten the socket.
func TestNameOfSocket(t *testing.T) {
	inNode(t, func(n *node) {
		four, six := greeter(t, "127.0.0.1:0").String(), greeter(t, "[::1]:0").String()
		n.sync(t, snapshot([]string{"10.96.0.10:80", four}, []string{"[fd00:10:96::10]:80", six}))
		moveTo(t, n.options.Cgroup)
		defer moveTo(t, filepath.Dir(n.options.Cgroup))
		for _, c := range []struct {
			family       int
			to, endpoint string
		}{{unix.AF_INET, "10.96.0.10:80", four}, {unix.AF_INET6, "[::ffff:10.96.0.10]:80", "[::ffff:" + four[:9] + "]" + four[9:]}, {unix.AF_INET6, "[fd00:10:96::10]:80", six}} {
			asked, silent := connected(t, c.family, c.to), connected(t, c.family, c.to)
			peers := []string{peerOf(t, asked)}
			for _, b := range n.backends {
				forgetRecent(t, b.driver.(*kernel))
			}
			if peers = append(peers, peerOf(t, asked), peerOf(t, silent)); !slices.Equal(peers, []string{c.to, c.to, c.endpoint}) {
				t.Errorf("connected to %s: peers %q, want the address twice, and %s of a socket that was never asked", c.to, peers, c.endpoint)
			}
		}
	})
}

// TestMixedNames checks that getpeername does not answer words that two processors wrote at
// once: the sum of such a place is wrong.
func TestMixedNames(t *testing.T) {
	inEachFamily(t, func(n *node, c served) {
		fd := connected(t, c.family, c.to)
		for _, b := range n.backends {
			changeRecent(t, b.driver.(*kernel), func(set []byte) {
				const names = recentPlaces*16 + 8 // after cookies, sums and the next place
				words := (len(set) - names) / recentPlaces
				port := names + words/2 - 8
				for i := range recentPlaces {
					set[port+i*words]++
				}
			})
		}
		if got := peerOf(t, fd); got != c.endpoint {
			t.Errorf("connected to %s: peer %s, want %s", c.to, got, c.endpoint)
		}
	})
}

// The table of recent sockets has this many places: sets of the programs times places in each.
const (
	recentSets   = 8192
	recentPlaces = 8
)

// TestNamesOfOneSet has more sockets connect than there are places in the set that their
// cookies name. Those that connected last have their names, also two whose cookies are a
// whole table apart, as those of two processors can be.
func TestNamesOfOneSet(t *testing.T) {
	inEachFamily(t, func(n *node, c served) {
		fds := []int{newSocket(t, c.family)}
		for len(fds) < recentPlaces+2 {
			apart := uint64(recentSets)
			if len(fds) == 3 {
				apart *= recentPlaces
			}
			fds = append(fds, socketAfter(t, c.family, cookieOf(t, fds[len(fds)-1]), apart))
		}
		for _, fd := range fds {
			if err := ways[""](fd, netip.MustParseAddrPort(c.to)); err != nil {
				t.Errorf("connect to %s: %v", c.to, err)
				return
			}
		}
		for i, fd := range fds {
			want := c.to
			if i < len(fds)-recentPlaces {
				want = c.endpoint
			}
			if got := peerOf(t, fd); got != want {
				t.Errorf("socket %d of %d in a set: peer %s, want %s", i, len(fds), got, want)
			}
		}
	})
}

// socketAfter returns a socket whose cookie is apart, or a multiple of it, after another one.
func socketAfter(t *testing.T, family int, cookie, apart uint64) int {
	t.Helper()
	for {
		probe, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		passed := cookieOf(t, probe)
		unix.Close(probe)
		if (passed+1-cookie)%apart != 0 {
			continue
		}
		fd := newSocket(t, family)
		if (cookieOf(t, fd)-cookie)%apart == 0 {
			return fd
		}
	}
}

func cookieOf(t *testing.T, fd int) uint64 {
	t.Helper()
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_COOKIE)
	if err != nil {
		t.Fatal(err)
	}
	return cookie
}

func newSocket(t *testing.T, family int) int {
	t.Helper()
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// served is a Service of one endpoint, in one family.
type served struct {
	family       int
	to, endpoint string
}

// inEachFamily calls check in a cgroup whose connections are taken, once for each family.
func inEachFamily(t *testing.T, check func(*node, served)) {
	inNode(t, func(n *node) {
		four, six := greeter(t, "127.0.0.1:0").String(), greeter(t, "[::1]:0").String()
		n.sync(t, snapshot([]string{"10.96.0.10:80", four}, []string{"[fd00:10:96::10]:80", six}))
		moveTo(t, n.options.Cgroup)
		defer moveTo(t, filepath.Dir(n.options.Cgroup))
		check(n, served{unix.AF_INET, "10.96.0.10:80", four})
		check(n, served{unix.AF_INET6, "[fd00:10:96::10]:80", six})
	})
}

func moveTo(t testing.TB, cgroup string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(cgroup, "cgroup.procs"), []byte("0"), 0); err != nil {
		t.Fatal(err)
	}
}

func connected(t *testing.T, family int, to string) int {
	t.Helper()
	fd := newSocket(t, family)
	if err := ways[""](fd, netip.MustParseAddrPort(to)); err != nil {
		t.Fatalf("connect to %s: %v", to, err)
	}
	return fd
}

// peerOf returns what getpeername says.
func peerOf(t *testing.T, fd int) string {
	t.Helper()
	peer, err := unix.Getpeername(fd)
	if err != nil {
		t.Fatal(err)
	}
	return textOf(peer)
}

func forgetRecent(t *testing.T, k *kernel) {
	t.Helper()
	changeRecent(t, k, func(set []byte) { clear(set) })
}

// changeRecent changes all sets of recent sockets that have one.
func changeRecent(t *testing.T, k *kernel, change func(set []byte)) {
	t.Helper()
	m := k.maps["recent"]
	var i uint32
	var set []byte
	for all := m.Iterate(); all.Next(&i, &set); {
		if !slices.ContainsFunc(set, func(b byte) bool { return b != 0 }) {
			continue
		}
		change(set)
		if err := m.Put(i, set); err != nil {
			t.Fatal(err)
		}
	}
}
