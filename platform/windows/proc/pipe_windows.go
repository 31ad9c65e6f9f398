// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/Microsoft/go-winio"
	"golang.org/x/sys/windows"

	"kubeproxy/common/lease"
)

// PipeName is the name of the pipe by which proxies find each other. Windows lets only
// administrators create a pipe with this prefix.
const PipeName = `\\.\pipe\ProtectedPrefix\Administrators\kube-services\lease`

// adminsOnlySDDL permits only the system and administrators to connect, see
// https://learn.microsoft.com/windows/win32/secauthz/security-descriptor-string-format.
const adminsOnlySDDL = "D:P(A;;GA;;;SY)(A;;GA;;;BA)"

// Pipe implements lease.Transport with a named pipe, by which the service proxies
// of a Windows node find each other. The pipe disappears with its process. Package lease
// defines what the proxies exchange.
//
// The system keeps others out, so that no proof is exchanged that could be sent back or
// passed on: only administrators can create a pipe with its prefix, and its access list
// lets only them connect. Bounds for a holder that hangs or keeps the name are those of
// package lease.
type Pipe struct{}

// Listen implements lease.Transport.
func (Pipe) Listen() (lease.Listener, error) {
	l, err := winio.ListenPipe(PipeName, &winio.PipeConfig{SecurityDescriptor: adminsOnlySDDL})
	if errors.Is(err, windows.ERROR_ACCESS_DENIED) || errors.Is(err, windows.ERROR_ALREADY_EXISTS) || errors.Is(err, windows.ERROR_PIPE_BUSY) {
		return nil, fmt.Errorf("%w: %w", lease.ErrHeld, err)
	}
	if err != nil {
		return nil, fmt.Errorf("listen on the pipe of service proxies: %w", err)
	}
	return listener{l}, nil
}

// listener implements lease.Listener.
type listener struct{ net.Listener }

func (l listener) Accept() (*lease.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &lease.Conn{Conn: c, Peer: lease.Identity{PID: peerPID(c)}}, nil
}

// Dial implements lease.Transport.
func (Pipe) Dial(ctx context.Context) (*lease.Conn, error) {
	c, err := winio.DialPipeContext(ctx, PipeName)
	if err != nil {
		return nil, err
	}
	return &lease.Conn{Conn: c}, nil
}

// Authenticate implements lease.Transport. It trusts every peer, because a process that
// may create the pipe or connect to it may also program the node. Nothing is exchanged, so
// there is nothing to send back or to pass on.
func (Pipe) Authenticate(c *lease.Conn) error {
	c.Trusted, c.Peer.PID = true, peerPID(c.Conn)
	return nil
}

// handled is a connection whose handle can be asked for its two processes.
type handled interface{ Fd() uintptr }

// peerPID returns the process ID of the other side, 0 if it is unknown.
func peerPID(c net.Conn) int {
	f, ok := c.(handled)
	if !ok {
		return 0
	}
	var server, client uint32
	h, own := windows.Handle(f.Fd()), uint32(os.Getpid())
	if windows.GetNamedPipeServerProcessId(h, &server) == nil && server != own {
		return int(server)
	}
	if windows.GetNamedPipeClientProcessId(h, &client) == nil && client != own {
		return int(client)
	}
	return 0
}
