// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"kubeproxy/common/service"
)

// udpListener relays UDP: each client has a socket of its own towards an
// endpoint, until both have been silent for a while.
type udpListener struct {
	*relay
	socket *net.UDPConn
	target *target
	policy service.Policy
	closed atomic.Bool
	// forwarding is set from before a datagram is taken from the socket until it is
	// passed on.
	forwarding atomic.Bool

	mu       sync.Mutex
	sessions map[netip.AddrPort]*session // by client
}

// session is one client's.
type session struct {
	listener   *udpListener
	client     netip.AddrPort
	endpoint   netip.AddrPort
	socket     *net.UDPConn
	claim      claim
	lastActive atomic.Int64 // of either side, Unix time in nanoseconds
	// requests counts what the client said, and answered is how much of it was said
	// before the latest answer went out.
	requests, answeredRequests atomic.Uint64
}

// packet is a buffer for one datagram of any size. A socket that waits holds
// none.
type packet struct {
	data    [1 << 16]byte
	control [64]byte
	hops    int // the hop limit it came with, 0 if that is not known
}

func (r *relay) serveUDP(socket *net.UDPConn, t *target, policy service.Policy) *udpListener {
	l := &udpListener{relay: r, socket: socket, target: t, policy: policy, sessions: map[netip.AddrPort]*session{}}
	receiveHops(socket)
	go l.receive()
	return l
}

func (l *udpListener) port() uint16 { return l.socket.LocalAddr().(*net.UDPAddr).AddrPort().Port() }

// refresh ends the sessions with endpoints that left, so that clients reach
// another one with their next datagram.
func (l *udpListener) refresh() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.sessions {
		if !l.target.serves(l.policy, s.endpoint) {
			delete(l.sessions, s.client)
			s.close()
		}
	}
}

func (l *udpListener) close() {
	l.closed.Store(true)
	_ = l.socket.Close()
	l.limits.release(l.target.listenerClaim())
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.sessions {
		s.close()
	}
}

// receive passes on what clients send until the listener is closed.
func (l *udpListener) receive() {
	for !l.closed.Load() {
		from, p, n, err := l.read(l.socket, &l.forwarding)
		if err == nil {
			l.forward(netip.AddrPortFrom(from.Addr().Unmap(), from.Port()), p, n)
		} else if exhausted(err) {
			l.limits.recordSystemError(err)
			time.Sleep(minBackoff)
		}
		l.forwarding.Store(false)
		l.packets.Put(p)
	}
}

// read waits for a datagram, and sets taken before it takes it. The buffer is to
// be put back in any case.
func (r *relay) read(c *net.UDPConn, taken *atomic.Bool) (from netip.AddrPort, p *packet, n int, err error) {
	raw, err := c.SyscallConn()
	if err == nil {
		err = awaitPacket(raw)
	}
	p = r.packets.Get().(*packet)
	taken.Store(true)
	if err == nil {
		var m int
		n, m, _, from, err = c.ReadMsgUDPAddrPort(p.data[:], p.control[:])
		p.hops = datagramHops(p.control[:m])
	}
	return from, p, n, err
}

// forward sends a datagram of a client on. What an endpoint refuses goes to
// another one, once.
func (l *udpListener) forward(from netip.AddrPort, p *packet, n int) {
	hops, ok := nextHops(p.hops)
	if !ok {
		l.limits.recordRefusal(Loop, l.target.clientClaim(l.limits.clientOf(from.Addr()), 1))
		return
	}
	for range 2 {
		s := l.session(from, hops)
		if s == nil {
			return
		}
		s.lastActive.Store(time.Now().UnixNano())
		s.requests.Add(1)
		if _, err := s.socket.Write(p.data[:n]); err == nil {
			return
		} else if !s.endOnError(err) {
			return
		}
	}
}

// session returns the one of a client, nil if it cannot have one.
func (l *udpListener) session(client netip.AddrPort, hops int) *session {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := l.sessions[client]; s != nil || l.closed.Load() {
		return s
	}
	e, ok := l.target.choose(l.policy, client.Addr(), nil)
	claim := l.target.clientClaim(l.limits.clientOf(client.Addr()), 1)
	if !ok || !l.limits.acquire(claim) {
		return nil
	}
	c, err := l.network.DialUDP(e, hops)
	if err != nil {
		l.limits.release(claim)
		l.target.forget(client.Addr(), e)
		if exhausted(err) {
			l.limits.recordSystemError(err)
		} else {
			l.reportUnserved(l.target, err)
		}
		return nil
	}
	s := &session{listener: l, client: client, endpoint: e, socket: c, claim: claim}
	l.sessions[client] = s
	s.lastActive.Store(time.Now().UnixNano())
	go s.relayReplies()
	return s
}

// lateReplyTimeout is how long an endpoint may take for an answer. After 5 s resolvers
// give up by default. A client that nobody has answered may be forgotten long before, so
// that it reaches another endpoint when it asks again, and yet hears the first one.
const lateReplyTimeout = 4500 * time.Millisecond

// awaitsReply reports that the client has not been answered.
func (s *session) awaitsReply() bool { return s.requests.Load() != s.answeredRequests.Load() }

// relayReplies passes on what the endpoint sends until the session ends.
func (s *session) relayReplies() {
	l := s.listener
	defer func() {
		s.detach()
		_ = s.socket.Close()
		l.limits.release(s.claim)
	}()
	var taken atomic.Bool // which nobody asks for
	silence := l.udpIdle
	for {
		idle := time.Unix(0, s.lastActive.Load()).Add(silence)
		_ = s.socket.SetReadDeadline(idle) // fails if the session has ended, and then so does reading
		_, p, n, err := l.read(s.socket, &taken)
		if err == nil {
			requests := s.requests.Load()
			_, _ = l.socket.WriteToUDPAddrPort(p.data[:n], s.client) // a datagram may be lost
			s.lastActive.Store(time.Now().UnixNano())
			s.answeredRequests.Store(requests)
		}
		l.packets.Put(p)
		var timeout net.Error
		switch {
		case err == nil:
			silence = l.udpIdle
		case !errors.As(err, &timeout) || !timeout.Timeout():
			s.endOnError(err)
			return
		case time.Since(time.Unix(0, s.lastActive.Load())) < silence: // the client asked meanwhile
		case silence >= lateReplyTimeout || !s.awaitsReply() || !l.limits.hasSpare(s.claim):
			return
		default:
			s.detach()
			silence = lateReplyTimeout
		}
	}
}

// endOnError ends the session if the endpoint is not there, and reports whether
// that is so.
func (s *session) endOnError(err error) bool {
	if errors.Is(err, syscall.EMSGSIZE) || exhausted(err) {
		return false
	}
	if !errors.Is(err, net.ErrClosed) {
		s.listener.target.forget(s.client.Addr(), s.endpoint)
		s.listener.reportUnserved(s.listener.target, err)
	}
	s.detach()
	s.close()
	return true
}

// detach makes room for the client's next session.
func (s *session) detach() {
	l := s.listener
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sessions[s.client] == s {
		delete(l.sessions, s.client)
	}
}

// close has answer end, and with it the session. Closing twice is harmless.
func (s *session) close() { _ = s.socket.Close() }
