// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"kubeproxy/common/lease"
)

// Socket implements lease.Transport with an abstract unix socket, by which the
// service proxies of one network namespace find each other. Like the rules, the socket
// belongs to the network namespace, whatever file systems and PIDs a container has. It
// disappears with its process (unix(7)). Package lease defines what the proxies exchange.
//
// Any process in the network namespace can take the socket's name or connect to it, so
// each side proves that it has CAP_NET_ADMIN. A proof is a socket that its maker bound to
// a name and then set SO_DEBUG on. The kernel lets only CAP_NET_ADMIN of the first user
// namespace set that option (sk_setsockopt in
// https://github.com/torvalds/linux/blob/v6.12/net/core/sock.c), which has no other effect
// there, and never lets a bound socket get another name (unix_bind in
// https://github.com/torvalds/linux/blob/v6.12/net/unix/af_unix.c). So the name is a
// statement that nobody without the capability can make or alter. A process makes such
// sockets itself and never sets the option on one that it received.
//
// The statement says: "the holder (or the client) of the connection from the address A,
// challenged with C, is me". A is the random name to which the client bound its end of the
// connection, and C is random, from the holder, made after it read A from the connection.
//   - A statement that is sent back to its maker, or passed on to a third process, names
//     another connection: two sockets that exist cannot have one name. A name has the
//     greatest length, so that no other name reads the same.
//   - A statement that is kept until the client's end is closed, when somebody else can
//     take its name, has an old C. A client finds a fresh A itself.
//   - Statements of a client and of a holder differ, so that none serves as the other.
//
// An intermediary between two proxies therefore gets statements about its own connections
// with them only from itself. Processes of the users that cannot have the capability are
// turned away when they connect (SO_PEERCRED), before they take any place.
//
// Releases whose proof is another one do not trust this one, nor the other way round:
// neither yields, both program the node with the same rules, and each says in the
// condition other-proxy that it met the other.
type Socket struct {
	// Name is the name of the socket. If it is empty, LeaseName applies.
	Name string
}

// LeaseSocket returns the socket of proxies that serve the Services labelled with proxyName,
// or those without a label if it is empty.
func LeaseSocket(proxyName string) Socket {
	return Socket{Name: leaseName(proxyName)}
}

func (s Socket) address() *net.UnixAddr {
	name := s.Name
	if name == "" {
		name = LeaseName
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
const clientPrefix = LeaseName + "/client/"

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
	p := Describe(os.DirFS("/proc"), pid)
	return lease.Identity{PID: p.PID, Command: p.Command, Pod: p.Pod, Container: p.Container}
}

// Self returns the identity of this process, as it sees itself.
func Self() lease.Identity {
	i := describe(os.Getpid())
	i.PID, i.OwnPID = 0, i.PID
	return i
}

// protocol is the first byte that a holder sends, and the version of the proof.
const protocol = 2

// Authenticate implements lease.Transport. The holder sends a challenge, then the client
// its proof, then the holder its own. See the package's comment.
func (s Socket) Authenticate(c *lease.Conn) error {
	u, ok := c.Conn.(*net.UnixConn)
	if !ok {
		return fmt.Errorf("%T is no unix socket", c.Conn)
	}
	pid, user := peerPID(u)
	var proved bool
	var err error
	own := u.LocalAddr().String()
	holder := own == s.address().Name
	if holder {
		proved, err = s.provenClient(u)
	} else {
		proved, err = s.provenHolder(u, own)
	}
	c.Trusted = proved && err == nil && user == nil
	c.Peer = lease.Identity{PID: pid}
	if c.Trusted || !holder { // else many that prove nothing would cost much
		c.Peer = describe(pid)
	}
	return err
}

// provenClient reports whether the client at the other end of c proved its rights.
func (s Socket) provenClient(c *net.UnixConn) (bool, error) {
	client := c.RemoteAddr().String() // at the time of accept(2)
	if len(client) != nameSize || !strings.HasPrefix(client, clientPrefix) {
		return false, fmt.Errorf("%w: a connection from %q", lease.ErrProtocol, client)
	}
	challenge := make([]byte, sha256.Size)
	_, _ = rand.Read(challenge) // never fails
	if _, err := c.Write(append([]byte{protocol}, challenge...)); err != nil {
		return false, err
	}
	proved, err := receiveProof(c, s.statement("client", client, challenge))
	if err != nil {
		return false, err
	}
	return proved, sendProof(c, s.statement("holder", client, challenge))
}

// provenHolder reports whether the holder at the other end of c proved its rights.
func (s Socket) provenHolder(c *net.UnixConn, client string) (bool, error) {
	version, challenge := make([]byte, 1), make([]byte, sha256.Size)
	if _, err := io.ReadFull(c, version); err != nil {
		return false, err
	}
	if version[0] != protocol {
		return false, fmt.Errorf("%w: version %d of the proof", lease.ErrProtocol, version[0])
	}
	if _, err := io.ReadFull(c, challenge); err != nil {
		return false, err
	}
	if err := sendProof(c, s.statement("client", client, challenge)); err != nil {
		return false, err
	}
	return receiveProof(c, s.statement("holder", client, challenge))
}

// statement returns the name of the proof of one side of a connection.
func (s Socket) statement(side, client string, challenge []byte) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %q %x", s.address().Name, side, client, challenge))
	return LeaseName + "/proof/" + hex.EncodeToString(sum[:])
}

// sendProof sends the proof of this process. Without the right to make one it sends a
// socket that proves nothing.
func sendProof(c *net.UnixConn, statement string) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open a socket: %w", err)
	}
	defer unix.Close(fd)
	// Before the option is set: the receiver could bind it too.
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: statement}); err != nil {
		return fmt.Errorf("bind a proof: %w", err)
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DEBUG, 1) // the other side looks
	_, _, err = c.WriteMsgUnix([]byte{0}, unix.UnixRights(fd), nil)
	return err
}

// receiveProof receives what the other side sends as its proof, and reports whether it is
// one of the statement.
func receiveProof(c *net.UnixConn, statement string) (proved bool, err error) {
	const mostFiles = 4 // the kernel closes any further ones
	control := make([]byte, unix.CmsgSpace(4*mostFiles))
	_, n, _, _, err := c.ReadMsgUnix(make([]byte, 1), control)
	if err != nil {
		return false, err
	}
	messages, err := unix.ParseSocketControlMessage(control[:n])
	if err != nil {
		return false, fmt.Errorf("read what came with a message: %w", err)
	}
	for _, m := range messages {
		files, err := unix.ParseUnixRights(&m)
		if err != nil {
			continue
		}
		for _, fd := range files {
			proved = proved || proves(fd, statement)
			_ = unix.Close(fd)
		}
	}
	return proved, nil
}

// proves reports whether a process with CAP_NET_ADMIN made the statement with fd.
func proves(fd int, statement string) bool {
	set, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DEBUG)
	if err != nil || set == 0 {
		return false
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		return false
	}
	at, ok := name.(*unix.SockaddrUnix)
	return ok && at.Name == statement
}
