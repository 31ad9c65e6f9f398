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

// PipeName is where proxies find each other. The prefix is for administrators alone.
const PipeName = `\\.\pipe\ProtectedPrefix\Administrators\kube-services\lease`

// adminsOnlySDDL permits only the system and administrators to connect, see
// https://learn.microsoft.com/windows/win32/secauthz/security-descriptor-string-format.
const adminsOnlySDDL = "D:P(A;;GA;;;SY)(A;;GA;;;BA)"

// Pipe implements lease.Transport with a named pipe, which disappears with its process. Package
// lease defines what proxies exchange, and bounds for a holder that hangs. Only administrators can
// create a pipe with its prefix or, by its access list, connect, so no proof is exchanged.
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

// Authenticate implements lease.Transport. It trusts every peer: whoever may create the pipe or
// connect to it may program the node, too.
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
