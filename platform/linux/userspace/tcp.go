// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"kubeproxy/common/service"
)

// Network opens sockets. Connections to endpoints are not subject to the redirecting
// rules, so that they do not return to the relay.
type Network interface {
	// ListenTCP and ListenUDP listen on the relay's address. With port 0 the system
	// selects a port.
	ListenTCP(port uint16) (*net.TCPListener, error)
	ListenUDP(port uint16) (*net.UDPConn, error)
	// DialTCP and DialUDP connect to an endpoint. The first packet of a TCP connection,
	// and each datagram, has the hop limit hops.
	DialTCP(ctx context.Context, to netip.AddrPort, hops int) (*net.TCPConn, error)
	DialUDP(to netip.AddrPort, hops int) (*net.UDPConn, error)
}

// listener serves one Service port for one policy.
type listener interface {
	port() uint16
	// refresh ends the sessions that must not continue after the target has changed.
	refresh()
	// close closes the listener. TCP connections continue.
	close()
}

// relay is the state that the listeners of a family share.
type relay struct {
	network      Network
	limits       *Limits
	udpIdle      time.Duration
	copier       copier
	packets      sync.Pool // of *packet
	arrivalGrace time.Duration
	// dialTimeouts limit the attempts to reach an endpoint, one by one.
	dialTimeouts []time.Duration
	// unreached, if not nil, is called for each client that could not be served.
	unreached func(*target, error)
	ledger    *ledger // nil if nothing is counted
}

func newRelay(n Network, l *Limits, udpIdle time.Duration) *relay {
	r := &relay{network: n, limits: l, udpIdle: udpIdle, arrivalGrace: arrivalGrace, dialTimeouts: dialTimeouts[:]}
	r.copier.limits = l
	r.packets.New = func() any { return new(packet) }
	return r
}

// dialTimeouts are those of a real node.
var dialTimeouts = [...]time.Duration{250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second}

// nearRTT is the upper limit of the round-trip time to a near peer, on the node or in
// its data centre.
const nearRTT = time.Millisecond

// tcpListener relays TCP.
type tcpListener struct {
	*relay
	socket     *net.TCPListener
	target     *target
	policy     service.Policy
	congestion congestionControl
	closed     atomic.Bool
}

func (r *relay) serveTCP(socket *net.TCPListener, t *target, policy service.Policy) *tcpListener {
	l := &tcpListener{relay: r, socket: socket, target: t, policy: policy, congestion: avoidPacingOn(socket)}
	saveSYN(socket)
	go l.accept()
	return l
}

func (l *tcpListener) port() uint16 { return l.socket.Addr().(*net.TCPAddr).AddrPort().Port() }

func (l *tcpListener) refresh() {}

func (l *tcpListener) close() {
	l.closed.Store(true)
	_ = l.socket.Close() // closing a socket that only listens loses nothing
	l.limits.release(l.target.listenerClaim())
}

// filesPerConn is the number of open files per connection.
const filesPerConn = 2

// The minimum and maximum pause after an error of accept.
const minBackoff, maxBackoff = 5 * time.Millisecond, time.Second

// accept accepts connections until the listener is closed. It resets clients for which
// the limits have no files. If they had to wait, a connection that leads back to this
// relay would wait for itself.
func (l *tcpListener) accept() {
	backoff := minBackoff
	for {
		c, err := l.socket.AcceptTCP()
		switch {
		case l.closed.Load():
			if err == nil {
				reset(c)
			}
			return
		case errors.Is(err, syscall.ECONNABORTED):
			continue
		case err != nil:
			l.limits.recordSystemError(err)
			time.Sleep(backoff)
			backoff = min(2*backoff, maxBackoff)
			continue
		}
		backoff = minBackoff
		claim := l.target.clientClaim(l.limits.clientOf(c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr()), filesPerConn)
		hops, ok := nextHops(synHops(c))
		if !ok {
			l.limits.recordRefusal(Loop, claim)
			reset(c)
			continue
		}
		release, ok := l.limits.acquireConn(claim)
		if !ok {
			reset(c)
			continue
		}
		go func() {
			defer release()
			l.congestion.restoreIfFar(c, nearRTT)
			l.serve(c, hops)
		}()
	}
}

// serve relays one connection until both sides have closed it, or one has aborted it.
func (l *tcpListener) serve(client *net.TCPConn, hops int) {
	server := l.dial(client.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap(), hops)
	if server == nil {
		reset(client)
		return
	}
	var once sync.Once
	abort := func() {
		once.Do(func() {
			reset(client)
			reset(server)
		})
	}
	a := l.ledger.connect(l.target, server.RemoteAddr().(*net.TCPAddr).AddrPort())
	var up sync.WaitGroup
	up.Go(func() { l.copyOneWay(server, client, a.in(), abort) })
	l.copyOneWay(client, server, a.out(), abort)
	up.Wait()
	_ = client.Close()
	_ = server.Close()
}

// copyOneWay forwards the data of src, including its end, and adds its size to copied.
func (r *relay) copyOneWay(dst, src *net.TCPConn, copied *atomic.Uint64, abort func()) {
	err := r.copier.pump(dst, src, copied)
	if err == nil {
		err = dst.CloseWrite()
	}
	if err != nil {
		abort()
	}
}

// reset closes c with a reset, so that the peer notices at once.
func reset(c *net.TCPConn) {
	_ = c.SetLinger(0)
	_ = c.Close()
}

// dial connects to an endpoint for a client. It returns nil if none can be reached. It
// does not retry an endpoint that refuses.
func (l *tcpListener) dial(client netip.Addr, hops int) *net.TCPConn {
	var tried, refused []netip.AddrPort
	var err error
	for _, d := range l.dialTimeouts {
		e, ok := l.target.choose(l.policy, client, tried)
		if !ok || slices.Contains(refused, e) {
			break
		}
		var c *net.TCPConn
		if c, err = l.dialOnce(e, d, hops); err == nil {
			return c
		}
		l.target.forget(client, e)
		if exhausted(err) { // the endpoint is not the cause
			l.limits.recordSystemError(err)
			return nil
		}
		tried = append(tried, e)
		if timeout := net.Error(nil); !errors.As(err, &timeout) || !timeout.Timeout() {
			refused = append(refused, e)
		}
	}
	l.reportUnserved(l.target, err)
	return nil
}

func (l *tcpListener) dialOnce(e netip.AddrPort, d time.Duration, hops int) (*net.TCPConn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	return l.network.DialTCP(ctx, e, hops)
}

// exhausted reports whether this node, not the peer, lacks resources.
func exhausted(err error) bool {
	for _, e := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
