// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package abstract

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

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
	return listener{l}, nil
}

// listener implements lease.Listener.
type listener struct{ *net.UnixListener }

// Accept implements lease.Listener. It closes connections of users that can be no proxy.
func (l listener) Accept() (*lease.Conn, error) {
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		if pid, err := peerPID(c); err == nil {
			return &lease.Conn{Conn: c, Peer: lease.Identity{PID: pid}}, nil
		}
		_ = c.Close()
	}
}

// Dial implements lease.Transport. The connection has an address of its own, see the
// package's comment.
func (s Socket) Dial(ctx context.Context) (*lease.Conn, error) {
	d := net.Dialer{LocalAddr: &net.UnixAddr{Net: "unix", Name: clientName()}}
	for {
		c, err := d.DialContext(ctx, "unix", s.address().Name)
		if err == nil {
			return &lease.Conn{Conn: c}, nil
		}
		if !errors.Is(err, unix.EAGAIN) || ctx.Err() != nil {
			return nil, err
		}
		// Too many processes connect at once, see connect(2).
		select {
		case <-ctx.Done():
		case <-time.After(time.Millisecond):
		}
	}
}

// clientPrefix is what the names of clients begin with. A label of Services has no slash,
// so that none of them is the name of a lease.
const clientPrefix = Name + "/client/"

// nameSize is the greatest length of a name. Shorter names read the same with NUL
// characters at their end, though the kernel has them for different ones.
const nameSize = len(unix.RawSockaddrUnix{}.Path)

// clientName returns the name of a new connection.
func clientName() string {
	random := make([]byte, nameSize)
	_, _ = rand.Read(random) // never fails
	return (clientPrefix + hex.EncodeToString(random))[:nameSize]
}

// peerPID returns the process ID of the other side, 0 if it is in another PID namespace.
// It returns an error if the other side runs neither as the superuser nor as the user of
// this process.
func peerPID(c *net.UnixConn) (int, error) {
	var cred *unix.Ucred
	raw, err := c.SyscallConn()
	if err == nil {
		inner := raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
		err = errors.Join(inner, err)
	}
	if err != nil {
		return 0, fmt.Errorf("find the user of a connection: %w", err)
	}
	if cred.Uid != 0 && int(cred.Uid) != os.Geteuid() {
		return max(int(cred.Pid), 0), fmt.Errorf("process %d runs as user %d", cred.Pid, cred.Uid)
	}
	return max(int(cred.Pid), 0), nil
}

// describe returns the process with this ID in the PID namespace of this process.
func describe(pid int) lease.Identity {
	if pid == 0 {
		return lease.Identity{}
	}
	p := process.Describe(os.DirFS("/proc"), pid)
	return lease.Identity{PID: p.PID, Command: p.Command, Pod: p.Pod, Container: p.Container}
}

// Self returns the identity of this process, as it sees itself.
func Self() lease.Identity {
	i := describe(os.Getpid())
	i.PID, i.OwnPID = 0, i.PID
	return i
}
