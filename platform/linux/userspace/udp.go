// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"container/list"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"kubeproxy/common/service"
)

// udpListener relays UDP. Each client has its own socket to an endpoint, until both
// sides have been silent for a while.
type udpListener struct {
	*relay
	socket *net.UDPConn
	target *target
	policy service.Policy
	closed atomic.Bool
	// forwarding is set before a datagram is read from the socket, and cleared after it
	// has been forwarded.
	forwarding atomic.Bool

	mu       sync.Mutex
	sessions map[netip.AddrPort]*session // by client
}

// session is the session of one client.
type session struct {
	listener   *udpListener
	client     netip.AddrPort
	endpoint   netip.AddrPort
	socket     *net.UDPConn
	claim      claim
	lastActive atomic.Int64 // of either side, Unix time in nanoseconds
	// requests counts the datagrams of the client. answeredRequests is its value before
	// the latest reply was sent.
	requests, answeredRequests atomic.Uint64
	account                    *account
}

// packet is a buffer for one datagram of any size. A waiting socket holds none.
type packet struct {
	data    [1 << 16]byte
	control [64]byte
	hops    int // the received hop limit, 0 if it is not known
}

func (r *relay) serveUDP(socket *net.UDPConn, t *target, policy service.Policy) *udpListener {
	l := &udpListener{relay: r, socket: socket, target: t, policy: policy, sessions: map[netip.AddrPort]*session{}}
	receiveHops(socket)
	go l.receive()
	return l
}

func (l *udpListener) port() uint16 { return portOf(l.socket) }

// refresh ends the sessions with removed endpoints, so that the next datagrams of their
// clients reach other ones.
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

// receive forwards datagrams of clients until the listener is closed.
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

// read waits for a datagram, and sets taken before it reads it. The caller must return
// the buffer in any case.
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

// forward forwards a datagram of a client. If the endpoint refuses it, forward tries
// another endpoint once.
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
			add(s.account.in(), n)
			return
		} else if !s.endOnError(err) {
			return
		}
	}
}

// recordUnserved records that a datagram did not reach e.
func (l *udpListener) recordUnserved(e netip.AddrPort, err error) {
	now := time.Now()
	l.record(l.target, e, now, err)
	l.record(l.target, netip.AddrPort{}, now, err)
}

// session returns the session of a client, nil if it cannot have one.
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
			l.recordUnserved(e, err)
		}
		return nil
	}
	s := &session{listener: l, client: client, endpoint: e, socket: c, claim: claim, account: l.ledger.connect(l.target, e)}
	l.sessions[client] = s
	s.lastActive.Store(time.Now().UnixNano())
	go s.relayReplies()
	time.AfterFunc(promptReply, s.recordSilence)
	return s
}

// promptReply is how long the first reply may take until the lack of it is recorded.
const promptReply = 200 * time.Millisecond

// recordSilence records that the client has got no reply, which may be all right.
func (s *session) recordSilence() {
	l := s.listener
	l.mu.Lock()
	goesOn := l.sessions[s.client] == s
	l.mu.Unlock()
	if goesOn && s.answeredRequests.Load() == 0 {
		l.record(l.target, s.endpoint, time.Now(), os.ErrDeadlineExceeded)
	}
}

// lateReplyTimeout is how long an endpoint may take for a reply. Resolvers give up after
// 5 s by default (resolv.conf(5)). An unanswered client may be detached much earlier, so
// that its next request reaches another endpoint while it can still receive the reply of
// the first one.
const lateReplyTimeout = 4500 * time.Millisecond

// awaitsReply reports whether a request of the client has not been answered.
func (s *session) awaitsReply() bool { return s.requests.Load() != s.answeredRequests.Load() }

// relayReplies forwards datagrams of the endpoint until the session ends.
func (s *session) relayReplies() {
	l := s.listener
	defer func() {
		s.detach()
		_ = s.socket.Close()
		l.limits.release(s.claim)
	}()
	var taken atomic.Bool // not read
	silence := l.udpIdle
	for {
		idle := time.Unix(0, s.lastActive.Load()).Add(silence)
		_ = s.socket.SetReadDeadline(idle) // fails once the session has ended, as does the read
		_, p, n, err := l.read(s.socket, &taken)
		if err == nil {
			requests := s.requests.Load()
			_, _ = l.socket.WriteToUDPAddrPort(p.data[:n], s.client) // a datagram may be lost
			add(s.account.out(), n)
			s.lastActive.Store(time.Now().UnixNano())
			s.answeredRequests.Store(requests)
			l.record(l.target, s.endpoint, time.Now(), nil)
		}
		l.packets.Put(p)
		var timeout net.Error
		switch {
		case err == nil:
			silence = l.udpIdle
		case !errors.As(err, &timeout) || !timeout.Timeout():
			s.endOnError(err)
			return
		case time.Since(time.Unix(0, s.lastActive.Load())) < silence: // there was another request
		case silence >= lateReplyTimeout || !s.awaitsReply() || !l.limits.hasSpare(s.claim):
			return
		default:
			s.detach()
			silence = lateReplyTimeout
		}
	}
}

// endOnError ends the session unless the error is temporary, and reports whether it did.
func (s *session) endOnError(err error) bool {
	if errors.Is(err, syscall.EMSGSIZE) || exhausted(err) {
		return false
	}
	if !errors.Is(err, net.ErrClosed) {
		s.listener.target.forget(s.client.Addr(), s.endpoint)
		s.listener.recordUnserved(s.endpoint, err)
	}
	s.detach()
	s.close()
	return true
}

// detach removes the session from the listener, so that the client can have another one.
func (s *session) detach() {
	l := s.listener
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sessions[s.client] == s {
		delete(l.sessions, s.client)
	}
}

// close closes the socket, which makes relayReplies end the session. It may be called
// twice.
func (s *session) close() { _ = s.socket.Close() }

// maxClients limits the number of clients remembered per Service port. Beyond it, the
// least recently used clients are dropped.
const maxClients = 1 << 15

// affinityTable stores the endpoint of each client. The zero value is empty.
type affinityTable struct {
	byAddr map[netip.Addr]*list.Element
	order  list.List // of *affinityEntry, most recently used at the back
}

type affinityEntry struct {
	addr netip.Addr
	at   netip.AddrPort
	used time.Time
}

// lookup returns the endpoint that addr used less than ttl ago, and counts as a use.
func (a *affinityTable) lookup(addr netip.Addr, now time.Time, ttl time.Duration) (netip.AddrPort, bool) {
	a.expire(now, ttl)
	e, known := a.byAddr[addr]
	if !known {
		return netip.AddrPort{}, false
	}
	x := e.Value.(*affinityEntry)
	x.used = now
	a.order.MoveToBack(e)
	return x.at, true
}

// store records that addr uses the endpoint at.
func (a *affinityTable) store(addr netip.Addr, at netip.AddrPort, now time.Time, ttl time.Duration) {
	if e, known := a.byAddr[addr]; known {
		a.remove(e)
	}
	a.expire(now, ttl)
	if len(a.byAddr) >= maxClients {
		a.remove(a.order.Front())
	}
	if a.byAddr == nil {
		a.byAddr = map[netip.Addr]*list.Element{}
	}
	a.byAddr[addr] = a.order.PushBack(&affinityEntry{addr, at, now})
}

// forget removes addr if its endpoint is at.
func (a *affinityTable) forget(addr netip.Addr, at netip.AddrPort) {
	if e, known := a.byAddr[addr]; known && e.Value.(*affinityEntry).at == at {
		a.remove(e)
	}
}

func (a *affinityTable) expire(now time.Time, ttl time.Duration) {
	for e := a.order.Front(); e != nil && now.Sub(e.Value.(*affinityEntry).used) >= ttl; e = a.order.Front() {
		a.remove(e)
	}
}

func (a *affinityTable) remove(e *list.Element) {
	delete(a.byAddr, e.Value.(*affinityEntry).addr)
	a.order.Remove(e)
}

// peek is lookup without effect: it does not count as a use.
func (a *affinityTable) peek(addr netip.Addr, now time.Time, ttl time.Duration) (netip.AddrPort, bool) {
	e, known := a.byAddr[addr]
	if !known {
		return netip.AddrPort{}, false
	}
	x := e.Value.(*affinityEntry)
	return x.at, now.Sub(x.used) < ttl
}

// tracked is the state of Tracked.
type tracked struct {
	redirected, want, merged *service.Snapshot
}

// Tracked returns the snapshot with the valid destinations of UDP flows in connection
// tracking. A flow goes to a listener, or directly to an endpoint if it began before
// this mode was in force. The latter continue as long as the endpoint exists. Tracked
// returns nil before the first sync.
func (b *Backend) Tracked() *service.Snapshot { return b.tracked.merged }

// track updates Tracked to what is in force for want. A Port that has not changed stays
// the same pointer.
func (b *Backend) track(want *service.Snapshot) {
	t, redirected := &b.tracked, b.redirected.Load()
	if t.merged == nil {
		none := service.New(0, want.Node, nil)
		*t = tracked{none, none, none}
	}
	var changes []service.Change
	known := map[service.PortName]bool{}
	follow := func(name service.PortName) {
		c := service.Change{Old: t.merged.Port(b.family, name), New: merged(redirected.Port(b.family, name), want.Port(b.family, name))}
		if !known[name] && (c.Old != nil || c.New != nil) {
			changes = append(changes, c)
		}
		known[name] = true
	}
	for c := range service.Diff(t.redirected, redirected, b.family) {
		follow(c.Name())
	}
	for c := range service.Diff(t.want, want, b.family) {
		follow(c.Name())
	}
	*t = tracked{redirected, want, t.merged.With(want.Generation, want.Node, changes)}
	t.merged.Incomplete = want.Incomplete
}

// merged returns redirected with the endpoints of want in addition to its listeners.
func merged(redirected, want *service.Port) *service.Port {
	if redirected == nil || want == nil || redirected.Name.Protocol != service.UDP {
		return redirected
	}
	p := *redirected
	p.Cluster, p.Local, p.Draining = mergeEndpoints(redirected.Cluster, want.Cluster), mergeEndpoints(redirected.Local, want.Local), want.Draining
	return &p
}

// mergeEndpoints returns listeners and endpoints, sorted as in a Port. Without listeners
// it returns none.
func mergeEndpoints(listeners, endpoints []service.Endpoint) []service.Endpoint {
	if len(listeners) == 0 {
		return nil
	}
	all := slices.Concat(listeners, endpoints)
	slices.SortFunc(all, func(a, b service.Endpoint) int { return a.Addr.Compare(b.Addr) })
	return all
}
