// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package socketlb

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
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
		kit.Must(t, os.WriteFile("/proc/sys/net/ipv4/tcp_fastopen", []byte("1027"), 0))
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
				kit.Check(t, got == c.want, "%+v, want %+v", got, c.want)
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
			kit.Check(t, a.Err == c.want, "%s: %+v, want error %q", name, a, c.want)
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
		got := peerOf(t, fd)
		kit.Check(t, got == c.endpoint, "connected to %s: peer %s, want %s", c.to, got, c.endpoint)
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
			got := peerOf(t, fd)
			kit.Check(t, got == want, "socket %d of %d in a set: peer %s, want %s", i, len(fds), got, want)
		}
	})
}

// socketAfter returns a socket whose cookie is apart, or a multiple of it, after another one.
func socketAfter(t *testing.T, family int, cookie, apart uint64) int {
	t.Helper()
	for {
		probe, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		kit.Must(t, err)
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
	kit.Must(t, err)
	return cookie
}

func newSocket(t *testing.T, family int) int {
	t.Helper()
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	kit.Must(t, err)
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
	kit.Must(t, os.WriteFile(filepath.Join(cgroup, "cgroup.procs"), []byte("0"), 0))
}

func connected(t *testing.T, family int, to string) int {
	t.Helper()
	fd := newSocket(t, family)
	err := ways[""](fd, netip.MustParseAddrPort(to))
	kit.Need(t, err == nil, "connect to %s: %v", to, err)
	return fd
}

// peerOf returns what getpeername says.
func peerOf(t *testing.T, fd int) string {
	t.Helper()
	peer, err := unix.Getpeername(fd)
	kit.Must(t, err)
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
		kit.Must(t, m.Put(i, set))
	}
}

// TestProgramsTellTheCookie compares what a program sees of network namespaces with what the
// kernel says from 5.14 on. Nothing of the question stays.
func TestProgramsTellTheCookie(t *testing.T) {
	root := filepath.Dir(newCgroup(t)) // or skip
	seen := map[uint64]bool{}
	for range 2 {
		netlab.InNamespace(t, func() {
			s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Error(err)
				return
			}
			defer unix.Close(s)
			got, err := askProgram(s)
			kit.Check(t, err == nil && got != 0, "cookie %d, %v", got, err)
			if again, err := askProgram(s); err != nil || again != got {
				t.Errorf("then %d, %v; before %d", again, err, got)
			}
			if want, err := unix.GetsockoptUint64(s, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE); err == nil && got != want {
				t.Errorf("a program sees %d, the kernel says %d", got, want)
			}
			seen[got] = true
			err = raiseLoopback()
			kit.Check(t, err == nil, "%v", err)
			err = unix.Connect(s, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}, Port: 53})
			kit.Check(t, err == nil, "after the question: %v", err)
		})
	}
	kit.Check(t, len(seen) == 2, "two network namespaces have the cookies %v", seen)
	// Another proxy may ask at this moment.
	kit.Check(t, kit.Soon(func() bool { return !isAsked(t, root) }), "the program stays in %s", root)
}

// isAsked reports whether a cgroup has a program that askProgram attaches.
func isAsked(t *testing.T, cgroup string) bool {
	t.Helper()
	dir, err := os.Open(cgroup)
	kit.Must(t, err)
	defer dir.Close()
	all, err := link.QueryPrograms(link.QueryOptions{Target: int(dir.Fd()), Attach: ebpf.AttachCGroupInet4Connect})
	kit.Must(t, err)
	return slices.ContainsFunc(all.Programs, func(at link.AttachedProgram) bool {
		p, err := ebpf.NewProgramFromID(at.ID)
		if err != nil {
			return false // it has gone meanwhile
		}
		defer p.Close()
		info, err := p.Info()
		kit.Must(t, err)
		return info.Name == questionName
	})
}

// TestQuestionLetsOthersPass connects sockets while the program of the question is attached.
// It refuses only the one with which its process asks.
func TestQuestionLetsOthersPass(t *testing.T) {
	cgroup := newCgroup(t)
	asked := unix.SockaddrInet4{Addr: [4]byte{127, 1, 2, 3}, Port: 4567}
	netlab.InNamespace(t, func() {
		if err := raiseLoopback(); err != nil {
			t.Error(err)
			return
		}
		moveTo(t, cgroup)
		defer moveTo(t, filepath.Dir(cgroup))
		answer, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
		kit.Must(t, err)
		defer answer.Close()
		l, err := attachQuestion(cgroup, asked, answer)
		kit.Must(t, err)
		defer l.Close()
		for name, c := range map[string]struct {
			kind int
			to   unix.SockaddrInet4
			want error
		}{
			"the question":    {unix.SOCK_DGRAM, asked, unix.EPERM},
			"over TCP":        {unix.SOCK_STREAM, asked, unix.ECONNREFUSED},
			"another address": {unix.SOCK_DGRAM, unix.SockaddrInet4{Addr: [4]byte{127, 1, 2, 4}, Port: asked.Port}, nil},
			"another port":    {unix.SOCK_DGRAM, unix.SockaddrInet4{Addr: asked.Addr, Port: asked.Port + 1}, nil},
		} {
			s, err := unix.Socket(unix.AF_INET, c.kind|unix.SOCK_CLOEXEC, 0)
			kit.Must(t, err)
			err = unix.Connect(s, &c.to)
			kit.Check(t, errors.Is(err, c.want), "%s: %v, want %v", name, err, c.want)
			unix.Close(s)
		}
	})
}

// large returns a Snapshot of n Services with ten endpoints each, and their ports.
func large(n int) (*service.Snapshot, []*service.Port) {
	var ports []*service.Port
	for i := range n {
		p := &service.Port{
			Name:      service.PortName{Namespace: "shop", Name: fmt.Sprintf("s%06d", i), Protocol: service.TCP},
			Frontends: []service.Frontend{{Addr: netip.AddrFrom4([4]byte{10, 96 + byte(i>>16), byte(i >> 8), byte(i)}), Port: 80}},
		}
		for e := range 10 {
			x := i*10 + e
			p.Cluster = append(p.Cluster, service.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 128 + byte(x>>16), byte(x >> 8), byte(x)}), 8080)})
		}
		ports = append(ports, p)
	}
	return service.New(1, &service.Node{}, ports), ports
}

// BenchmarkLarge starts with Services of ten endpoints each, and changes one endpoint at a
// time. A change is what Plan and Apply take.
func BenchmarkLarge(b *testing.B) {
	for _, n := range []int{1000, 30000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) { netlab.InNamespace(b, func() { changeOne(b, n) }) })
	}
}

func changeOne(b *testing.B, n int) {
	o := Options{Cgroup: newCgroup(b), Pins: mountPins(b)}
	x := New(service.IPv4, NewDriver(service.IPv4, o), o)
	b.Cleanup(func() { _ = x.Cleanup(context.Background()) })
	x.SetResync(time.Hour)
	s, ports := large(n)
	start := cpuTime(b)
	apply(b, x, s)
	start = cpuTime(b) - start
	k := x.driver.(*kernel)
	bytes := 0
	for _, m := range k.mapped {
		bytes += len(m)
	}
	var took []time.Duration
	for i := 0; b.Loop(); i++ {
		p := ports[i*7919%n]
		next := *p
		next.Cluster = slices.Clone(p.Cluster)
		next.Cluster[9].Addr = netip.AddrPortFrom(next.Cluster[9].Addr.Addr(), 8080+uint16(i&1023))
		s = s.With(s.Generation+1, s.Node, []service.Change{{Old: p, New: &next}})
		ports[i*7919%n] = &next
		start := time.Now()
		apply(b, x, s)
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	b.ReportMetric(float64(start.Milliseconds()), "start-cpu-ms")
	b.ReportMetric(float64(bytes)/float64(10*n), "B/endpoint")
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds()), "p50-ns")
	b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds()), "p99-ns")
}

// connectsAtOnce is how many sockets BenchmarkConnect connects between two looks at the
// clock.
const connectsAtOnce = 100

// BenchmarkConnect connects and closes sockets without the layer, and with it to an address
// that it does not have and to one that it has. Nobody listens. The figures are those of
// the fastest hundred, which other work on the machine disturbs least.
func BenchmarkConnect(b *testing.B) {
	for name, to := range map[string]string{"without": "", "left": "127.0.0.1:1", "taken": "10.96.0.10:80"} {
		b.Run(name, func(b *testing.B) { netlab.InNamespace(b, func() { connectThrough(b, to) }) })
	}
}

// connectThrough lets the layer take connections to 10.96.0.10:80. It measures those to an
// address, or those without the layer if there is none.
func connectThrough(b *testing.B, to string) {
	kit.Must(b, raiseLoopback())
	o := Options{Cgroup: newCgroup(b), Pins: mountPins(b)}
	moveTo(b, o.Cgroup)
	defer moveTo(b, filepath.Dir(o.Cgroup))
	ran := func() time.Duration { return 0 }
	if to != "" {
		x := New(service.IPv4, NewDriver(service.IPv4, o), o)
		defer func() { _ = x.Cleanup(context.Background()) }()
		apply(b, x, snapshot([]string{"10.96.0.10:80", "127.0.0.1:1"}))
		ran = clockOf(b, filepath.Join(x.driver.(*kernel).folder(1), "connect4"))
	}
	addr := netip.MustParseAddrPort(cmp.Or(to, "127.0.0.1:1"))
	least, leastRun := time.Hour, time.Hour
	for b.Loop() {
		before, began := ran(), time.Now()
		for range connectsAtOnce {
			connectInVain(b, addr)
		}
		least, leastRun = min(least, time.Since(began)), min(leastRun, ran()-before)
	}
	b.ReportMetric(float64(least.Nanoseconds())/connectsAtOnce, "ns/connect")
	b.ReportMetric(float64(leastRun.Nanoseconds())/connectsAtOnce, "ns/program")
}

func connectInVain(b *testing.B, to netip.AddrPort) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	kit.Must(b, err)
	defer unix.Close(fd)
	err = unix.Connect(fd, &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())})
	kit.Need(b, errors.Is(err, unix.ECONNREFUSED), "connect to %s: %v, want a refusal", to, err)
}

// clockOf returns how to read the time for which a pinned program ran.
func clockOf(b *testing.B, path string) func() time.Duration {
	counting, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	kit.Must(b, err)
	b.Cleanup(func() { counting.Close() })
	p, err := ebpf.LoadPinnedProgram(path, nil)
	kit.Must(b, err)
	b.Cleanup(func() { p.Close() })
	return func() time.Duration {
		s, err := p.Stats()
		kit.Must(b, err)
		return s.Runtime
	}
}

func apply(b *testing.B, x *Backend, s *service.Snapshot) {
	p, err := x.Plan(context.Background(), s)
	kit.Must(b, err)
	if p.Empty() {
		return
	}
	if o := p.Apply(context.Background()); o.Degraded != "" || o.Err != nil {
		b.Fatal(o.Degraded, o.Err)
	}
}

func cpuTime(b *testing.B) time.Duration {
	var u unix.Rusage
	kit.Must(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
