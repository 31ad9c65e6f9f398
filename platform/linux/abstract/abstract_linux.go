// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package abstract

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"kubeproxy/common/lease"
	"kubeproxy/platform/linux/process"
)

// Socket implements lease.Transport.
type Socket struct {
	// Name is the name of the socket. If it is empty, the constant Name applies.
	Name string
}

// Name is the name of the socket by which proxies find each other.
const Name = "@kube-services/lease"

// Of returns the socket of proxies that serve the Services labelled with proxyName,
// or those without a label if it is empty.
func Of(proxyName string) Socket {
	if proxyName == "" {
		return Socket{}
	}
	return Socket{Name: Name + "/" + proxyName}
}

func (s Socket) address() *net.UnixAddr {
	name := s.Name
	if name == "" {
		name = Name
	}
	return &net.UnixAddr{Net: "unix", Name: name}
}

// Listen implements lease.Transport.
func (s Socket) Listen() (lease.Listener, error) {
	l, err := net.ListenUnix("unix", s.address())
	if errors.Is(err, unix.EADDRINUSE) {
		return nil, fmt.Errorf("%w: %w", lease.ErrHeld, err)
	}
	if err != nil {
		return nil, fmt.Errorf("listen on the abstract socket of service proxies: %w", err)
	}
	return l, nil
}

// Dial implements lease.Transport.
func (s Socket) Dial(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "unix", s.address().Name)
}

// Authenticate implements lease.Transport. Any process in the network namespace can take
// the socket's name or connect to it. Each side therefore sends the other one a socket.
// Only a process with CAP_NET_ADMIN can set SO_DEBUG on it (kernel: net/core/sock.c),
// which has no other effect there. Without this check a proxy could yield to an
// unprivileged process, and no proxy would program the node.
func (s Socket) Authenticate(raw net.Conn) (*lease.Conn, error) {
	c, ok := raw.(*net.UnixConn)
	if !ok {
		return nil, fmt.Errorf("%T is no unix socket", raw)
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open a socket: %w", err)
	}
	defer unix.Close(fd)
	if _, _, err := c.WriteMsgUnix([]byte{0}, unix.UnixRights(fd), nil); err != nil {
		return nil, err
	}
	if err := proveNetAdmin(c); err != nil {
		return nil, err
	}
	if _, err := c.Write([]byte{0}); err != nil {
		return nil, err
	}
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		return nil, err
	}
	set, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DEBUG)
	peer, trusted := peerIdentity(c)
	return &lease.Conn{Conn: c, Peer: peer, Trusted: trusted && err == nil && set != 0}, nil
}

// proveNetAdmin receives the peer's socket and sets the option on it.
func proveNetAdmin(c *net.UnixConn) error {
	const mostFiles = 4 // the kernel closes any further ones
	control := make([]byte, unix.CmsgSpace(4*mostFiles))
	_, n, _, _, err := c.ReadMsgUnix(make([]byte, 1), control)
	if err != nil {
		return err
	}
	messages, err := unix.ParseSocketControlMessage(control[:n])
	if err != nil {
		return fmt.Errorf("read what came with a message: %w", err)
	}
	for _, m := range messages {
		files, err := unix.ParseUnixRights(&m)
		if err != nil {
			continue
		}
		for _, fd := range files {
			// The peer checks whether this succeeded.
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DEBUG, 1)
			_ = unix.Close(fd)
		}
	}
	return nil
}

// peerIdentity returns the peer's identity according to the kernel. It reports whether
// the peer runs as the superuser or as the user of this process.
func peerIdentity(c *net.UnixConn) (lease.Identity, bool) {
	var cred *unix.Ucred
	raw, err := c.SyscallConn()
	if err == nil {
		inner := raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
		err = errors.Join(inner, err)
	}
	if err != nil {
		return lease.Identity{}, false
	}
	trusted := cred.Uid == 0 || int(cred.Uid) == os.Geteuid()
	if cred.Pid <= 0 { // the peer is in another PID namespace
		return lease.Identity{}, trusted
	}
	p := process.Describe(os.DirFS("/proc"), int(cred.Pid))
	return lease.Identity{PID: p.PID, Command: p.Command, Pod: p.Pod, Container: p.Container}, trusted
}

// Self returns the identity of this process, as it sees itself.
func Self() lease.Identity {
	p := process.Describe(os.DirFS("/proc"), os.Getpid())
	return lease.Identity{OwnPID: p.PID, Command: p.Command, Pod: p.Pod, Container: p.Container}
}
