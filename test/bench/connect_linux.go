// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// message is the size of a request and of its response.
const message = 64

// echo serves on the server's port, on all of its addresses, until the process ends.
func (n *network) echo() error {
	started := make(chan error, 1)
	go func() {
		err := n.server.Do(func() error {
			defer pin()()
			s, err := listen()
			started <- err
			if err != nil {
				return err
			}
			return s.serve()
		})
		if err != nil {
			started <- err
		}
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("start echo server: %w", err)
	}
	return nil
}

// echoServer answers directly with system calls, so that the network dominates the
// measurement.
type echoServer struct{ listener, poll int }

func listen() (*echoServer, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Port: targetPort}); err != nil {
		return nil, err
	}
	if err := unix.Listen(fd, 1024); err != nil {
		return nil, err
	}
	poll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, err
	}
	s := &echoServer{fd, poll}
	return s, s.watch(fd)
}

func (s *echoServer) watch(fd int) error {
	return unix.EpollCtl(s.poll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)})
}

func (s *echoServer) serve() error {
	events := make([]unix.EpollEvent, 64)
	buf := make([]byte, 4*message)
	for {
		n, err := unix.EpollWait(s.poll, events, -1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for connections: %w", err)
		}
		for _, e := range events[:max(n, 0)] {
			if int(e.Fd) == s.listener {
				s.accept()
			} else {
				answer(int(e.Fd), buf)
			}
		}
	}
}

func (s *echoServer) accept() {
	for {
		fd, _, err := unix.Accept4(s.listener, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		if err != nil {
			return
		}
		if s.watch(fd) != nil {
			unix.Close(fd)
		}
	}
}

// answer echoes what has arrived, or closes a connection that has ended.
func answer(fd int, buf []byte) {
	n, err := unix.Read(fd, buf)
	if err == nil && n > 0 {
		_, err = unix.Write(fd, buf[:n])
	}
	if n == 0 || err != nil && !errors.Is(err, unix.EAGAIN) {
		unix.Close(fd)
	}
}

// pin keeps the calling thread on one processor, the same for all callers, until the
// returned function is called. A client and a server that wake each other take 20 us for a
// connection on one processor, and 130 us on two of a virtual machine, far more than any
// rule costs; where they are is chance otherwise.
func pin() (free func()) {
	var before, one unix.CPUSet
	if unix.SchedGetaffinity(0, &before) != nil {
		return func() {}
	}
	for i := range len(before) * 64 {
		if before.IsSet(i) {
			one.Zero()
			one.Set(i)
		}
	}
	if unix.SchedSetaffinity(0, &one) != nil {
		return func() {}
	}
	return func() { _ = unix.SchedSetaffinity(0, &before) }
}

// samples are the durations of connections: until they were established, and until the
// response arrived.
type samples struct{ made, answered []time.Duration }

// burst connects from the client again and again for d, and once at least.
func (t target) burst(d time.Duration) (samples, error) {
	const room = 16384
	s := samples{make([]time.Duration, 0, room), make([]time.Duration, 0, room)}
	if err := t.joinCgroup(); err != nil {
		return s, err
	}
	err := t.from.client.Do(func() error {
		defer pin()()
		to := &unix.SockaddrInet4{Port: int(t.to.Port()), Addr: t.to.Addr().As4()}
		buf := make([]byte, message)
		for began := time.Now(); time.Since(began) < d || len(s.made) == 0; {
			if t.among != nil {
				to.Addr = t.among(len(s.made)).As4()
			}
			made, answered, err := transact(to, buf, 2*time.Second)
			switch {
			case err == nil:
				s.made, s.answered = append(s.made, made), append(s.answered, answered)
			case !errors.Is(err, unix.EINTR): // which a busy Go runtime causes
				return fmt.Errorf("connect to %s: %w", t.to, err)
			}
		}
		return nil
	})
	return s, err
}

// answers waits for the first connection. A new network may lose the first packets, until
// the kernel has noticed that its links are up.
func (t target) answers() error {
	var err error
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
		if _, err = t.burst(0); err == nil {
			return nil
		}
	}
	return err
}

// transact makes one connection, and ends it with a reset so that neither side keeps its
// port. No step may take longer than limit.
func transact(to unix.Sockaddr, buf []byte, limit time.Duration) (made, answered time.Duration, err error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, 0, err
	}
	defer unix.Close(fd)
	return talk(fd, to, buf, limit)
}

// talk connects fd, and sends and receives once.
func talk(fd int, to unix.Sockaddr, buf []byte, limit time.Duration) (made, answered time.Duration, err error) {
	tv := unix.NsecToTimeval(limit.Nanoseconds())
	err = errors.Join(
		unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}),
		unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &tv),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv))
	if err != nil {
		return 0, 0, err
	}
	began := time.Now()
	if err := unix.Connect(fd, to); err != nil {
		return 0, 0, err
	}
	made = time.Since(began)
	if _, err := unix.Write(fd, buf); err != nil {
		return 0, 0, err
	}
	if n, err := unix.Read(fd, buf); err != nil || n != len(buf) {
		return 0, 0, fmt.Errorf("answer of %d bytes, want %d: %w", n, len(buf), err)
	}
	return made, time.Since(began), nil
}

const directName = "direct"

// compare records for each target the median of the rounds' medians, and of the ratios of
// a round's median to the direct one's.
func (t task) compare(f *figures, targets []target) error {
	p, err := takeTurns(targets, t.pick(15, 1), time.Duration(t.pick(60, 10))*time.Millisecond)
	if err != nil {
		return err
	}
	for _, x := range targets {
		p.set(f, x.name, directName)
	}
	return nil
}

// connections measures connections through n's Services against those in another network
// without any rule.
func (t task) connections(f *figures, n *network) error {
	t.logf("connections")
	bare, err := newNetwork()
	if err != nil {
		return err
	}
	defer bare.close()
	if err := errors.Join(n.shortenConntrackTimeouts(), n.echo(), bare.echo()); err != nil {
		return err
	}
	return t.compare(f, t.targets(n, bare))
}

// targets are a direct connection in the network without rules, one in n beside its
// rules, and those through its Services. The direct ones go to addresses without a
// Service: IPVS would take answers from an endpoint to a port of the client for those of
// an earlier connection through a Service.
func (t task) targets(n, bare *network) []target {
	direct := netip.AddrPortFrom(endpointIP(0, perService), targetPort)
	targets := []target{{name: directName, from: bare, to: direct}, {name: "beside", from: n, to: direct}}
	for i, s := range firstMiddleLast(t.Services) {
		name := [...]string{"first", "middle", "last"}[i]
		targets = append(targets, target{name: name, from: n, to: netip.AddrPortFrom(clusterIP(s), servicePort)})
	}
	return targets
}

// quantile returns the value below which a share of list lies, in seconds for durations.
// It sorts list.
func quantile[T float64 | time.Duration](list []T, share float64) float64 {
	if len(list) == 0 {
		return math.NaN()
	}
	slices.Sort(list)
	v := list[min(int(float64(len(list))*share), len(list)-1)]
	if d, ok := any(v).(time.Duration); ok {
		return d.Seconds()
	}
	return float64(v)
}
