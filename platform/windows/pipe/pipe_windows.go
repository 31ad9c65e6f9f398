// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package pipe

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

// Name is the name of the pipe by which proxies find each other. Windows lets only
// administrators create a pipe with this prefix.
const Name = `\\.\pipe\ProtectedPrefix\Administrators\kube-services\lease`

// adminsOnlySDDL permits only the system and administrators to connect, see
// https://learn.microsoft.com/windows/win32/secauthz/security-descriptor-string-format.
const adminsOnlySDDL = "D:P(A;;GA;;;SY)(A;;GA;;;BA)"

// Pipe implements lease.Transport.
type Pipe struct{}

// Listen implements lease.Transport.
func (Pipe) Listen() (lease.Listener, error) {
	l, err := winio.ListenPipe(Name, &winio.PipeConfig{SecurityDescriptor: adminsOnlySDDL})
	if errors.Is(err, windows.ERROR_ACCESS_DENIED) || errors.Is(err, windows.ERROR_ALREADY_EXISTS) || errors.Is(err, windows.ERROR_PIPE_BUSY) {
		return nil, fmt.Errorf("%w: %w", lease.ErrHeld, err)
	}
	if err != nil {
		return nil, fmt.Errorf("listen on the pipe of service proxies: %w", err)
	}
	return l, nil
}

// Dial implements lease.Transport.
func (Pipe) Dial(ctx context.Context) (net.Conn, error) { return winio.DialPipeContext(ctx, Name) }

// Authenticate implements lease.Transport. It trusts every peer, because a process that
// may create the pipe or connect to it may also program the node.
func (Pipe) Authenticate(c net.Conn) (*lease.Conn, error) {
	x := &lease.Conn{Conn: c, Trusted: true}
	f, ok := c.(interface{ Fd() uintptr })
	if !ok {
		return x, nil
	}
	var server, client uint32
	h, own := windows.Handle(f.Fd()), uint32(os.Getpid())
	if windows.GetNamedPipeServerProcessId(h, &server) == nil && server != own {
		x.Peer.PID = int(server)
	} else if windows.GetNamedPipeClientProcessId(h, &client) == nil && client != own {
		x.Peer.PID = int(client)
	}
	return x, nil
}
