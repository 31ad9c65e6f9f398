// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"kubeproxy/common/metrics"
	"kubeproxy/common/service"
	"kubeproxy/common/traffic"
)

// Network opens sockets. Rules do not redirect its connections back to the relay.
type Network interface {
	// ListenTCP and ListenUDP listen on the relay's address, port 0 for any port.
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
	attempted    Attempted // nil if nobody asks
	ledger       *ledger   // nil if nothing is counted
	open         established
}

func newRelay(n Network, l *Limits, udpIdle time.Duration) *relay {
	r := &relay{network: n, limits: l, udpIdle: udpIdle, arrivalGrace: arrivalGrace, dialTimeouts: dialTimeouts[:]}
	r.copier.limits = l
	r.packets.New = func() any { return new(packet) }
	return r
}

// socket is a *net.TCPListener or a *net.UDPConn.
type socket interface{ Close() error }

func portOf(s socket) uint16 {
	if u, is := s.(*net.UDPConn); is {
		return u.LocalAddr().(*net.UDPAddr).AddrPort().Port()
	}
	return s.(*net.TCPListener).Addr().(*net.TCPAddr).AddrPort().Port()
}

func (r *relay) socketAt(proto service.Protocol, port uint16) (socket, error) {
	if proto == service.UDP {
		return r.network.ListenUDP(port)
	}
	return r.network.ListenTCP(port)
}

// listen relays what reaches a new socket to the endpoints of t for policy.
func (r *relay) listen(t *target, policy service.Policy, open func() (socket, error)) (listener, error) {
	claim := t.listenerClaim()
	if !r.limits.acquire(claim) {
		return nil, fmt.Errorf("no more open files for listeners of the Service: the process may have %d: raise its limit of open files", r.limits.files)
	}
	s, err := open()
	if err != nil {
		r.limits.release(claim)
		return nil, err
	}
	if udp, is := s.(*net.UDPConn); is {
		return r.serveUDP(udp, t, policy), nil
	}
	return r.serveTCP(s.(*net.TCPListener), t, policy), nil
}

// dialTimeouts are those of a real node.
var dialTimeouts = [...]time.Duration{250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second}

// nearRTT bounds the round-trip time to a peer on the node or in its data centre.
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

func (l *tcpListener) port() uint16 { return portOf(l.socket) }

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

// accept accepts connections until the listener closes. It resets those without files left: a
// connection that leads back to this relay would wait for itself.
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
	defer l.open.add(l.target, client, server, abort)()
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

// dial connects a client to an endpoint, or returns nil. It does not retry one that refuses.
func (l *tcpListener) dial(client netip.Addr, hops int) *net.TCPConn {
	var tried, refused []netip.AddrPort
	var err error
	var began time.Time
	for _, d := range l.dialTimeouts {
		e, ok := l.target.choose(l.policy, client, tried)
		if !ok || slices.Contains(refused, e) {
			break
		}
		var c *net.TCPConn
		began = time.Now()
		if c, err = l.dialOnce(e, d, hops); err == nil {
			l.record(l.target, e, began, nil)
			return c
		}
		l.target.forget(client, e)
		if exhausted(err) { // the endpoint is not the cause
			l.limits.recordSystemError(err)
			return nil
		}
		l.record(l.target, e, began, err)
		tried = append(tried, e)
		if timeout := net.Error(nil); !errors.As(err, &timeout) || !timeout.Timeout() {
			refused = append(refused, e)
		}
	}
	if err != nil {
		l.record(l.target, netip.AddrPort{}, began, err)
	}
	return nil
}

func (l *tcpListener) dialOnce(e netip.AddrPort, d time.Duration, hops int) (*net.TCPConn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	return l.network.DialTCP(ctx, e, hops)
}

// exhausted reports whether this node, not the peer, lacks resources.
func exhausted(err error) bool {
	of := []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM}
	return slices.ContainsFunc(of, func(e error) bool { return errors.Is(err, e) })
}

// ledger counts what clients exchange with endpoints, nothing if nil. It is a traffic.Reader.
type ledger struct {
	family service.Family

	mu       sync.Mutex
	accounts map[traffic.Counter]*account
}

// account counts what an endpoint exchanges with a Service port's clients, nothing if nil.
type account struct {
	connections, bytesIn, bytesOut atomic.Uint64
	read                           traffic.Counts // at the last call of Read
}

// CountTraffic makes the relay count, and returns the reader, before the first sync.
func (b *Backend) CountTraffic() traffic.Reader {
	b.relay.ledger = &ledger{family: b.family, accounts: map[traffic.Counter]*account{}}
	return b.relay.ledger
}

// connect counts a connection or a UDP client of t, and returns the account for the rest.
func (l *ledger) connect(t *target, endpoint netip.AddrPort) *account {
	if l == nil {
		return nil
	}
	k := traffic.Counter{Name: t.name, Endpoint: netip.AddrPortFrom(endpoint.Addr().Unmap(), endpoint.Port())}
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.accounts[k]
	if a == nil {
		a = &account{}
		l.accounts[k] = a
	}
	a.connections.Add(1)
	return a
}

// in and out return where bytes to and from the endpoint are counted, nil for nowhere.
func (a *account) in() *atomic.Uint64 {
	if a == nil {
		return nil
	}
	return &a.bytesIn
}

func (a *account) out() *atomic.Uint64 {
	if a == nil {
		return nil
	}
	return &a.bytesOut
}

// add adds n to a counter that in or out returned.
func add(to *atomic.Uint64, n int) {
	if to != nil {
		to.Add(uint64(n))
	}
}

// Kinds implements traffic.Reader. A relay of TCP sees bytes, not packets.
func (l *ledger) Kinds() traffic.Kinds { return traffic.Kinds{Bytes: true} }

// Read implements traffic.Reader. It forgets quiet endpoints that want does not have.
func (l *ledger) Read(_ context.Context, want *service.Snapshot) ([]traffic.Sample, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := make([]traffic.Sample, 0, len(l.accounts))
	for k, a := range l.accounts {
		n := traffic.Counts{Connections: a.connections.Load(), BytesIn: a.bytesIn.Load(), BytesOut: a.bytesOut.Load()}
		if n == a.read && !serves(want.Port(l.family, k.Name), k.Endpoint) {
			delete(l.accounts, k)
			continue
		}
		a.read = n
		all = append(all, traffic.Sample{Counter: k, Counts: n})
	}
	return all, nil
}

// serves reports whether p, which may be nil, has an endpoint.
func serves(p *service.Port, endpoint netip.AddrPort) bool {
	is := func(e service.Endpoint) bool { return e.Addr == endpoint }
	return p != nil && (slices.ContainsFunc(p.Cluster, is) || slices.ContainsFunc(p.Local, is))
}

// Limits distributes the open files of the process. The Backends of both families share
// one.
//
// A Service may have as many files as are free, a client a third of that, and all
// Services of a namespace together twice as many. So one Service gets at most half of
// all files, one client a quarter and one namespace two thirds. The rest stays available
// for others. Switches share their buffers by the same rule (Choudhury and Hahne,
// "Dynamic queue length thresholds for shared-memory packet switches", IEEE/ACM
// Transactions on Networking 6(2), 1998).
type Limits struct {
	files       int // limit of the process
	max         int // limit of the relay
	quietPeriod time.Duration

	mu            sync.Mutex
	used          int
	listenerFiles int // the part of used that listeners have
	pipes         int // number of pipes that may still be created
	services      map[serviceName]int
	namespaces    map[string]int // by namespace, without listeners
	clients       map[netip.Prefix]int
	openConns     *sync.WaitGroup
	conns         int // of TCP

	pods     atomic.Pointer[[]netip.Prefix]
	refusals refusals
}

// serviceName identifies a Service with all of its ports.
type serviceName struct{ namespace, name string }

// claim is a number of files that a Service needs, for a client or for a listener.
type claim struct {
	files   int
	service serviceName
	client  netip.Prefix // invalid for a listener
}

// maxPipes limits the number of pipes. Connections without a pipe use buffers.
const maxPipes = 256

// quietPeriod is the time without refusals after which a shortage counts as over.
const quietPeriod = 10 * time.Second

// NewLimits returns Limits for a process that may have this number of open files. A part
// is reserved for programming the node and for the process's servers.
func NewLimits(files int) *Limits {
	pipes := min(maxPipes, files/32)
	return &Limits{
		files: files, max: files - min(1024, files/2) - 2*pipes, pipes: pipes, quietPeriod: quietPeriod,
		services: map[serviceName]int{}, namespaces: map[string]int{}, clients: map[netip.Prefix]int{}, openConns: &sync.WaitGroup{},
	}
}

// Observe calls report whenever the set of refusals changes, beginning now. text
// contains no names of Services and clients, and detail does. Both are empty when
// nothing is refused any more. report must not block.
func (l *Limits) Observe(report func(text, detail string)) { l.refusals.observe(report) }

// knowPods sets the ranges of pods.
func (l *Limits) knowPods(ranges []netip.Prefix) { l.pods.Store(&ranges) }

// clientOf returns the prefix that counts as one client. A host of IPv6 may use any
// address of its network (https://www.rfc-editor.org/rfc/rfc7934), so a /64 is one
// client. A pod has one assigned address, and all pods of a node may share a /64, so a
// pod is one client.
func (l *Limits) clientOf(addr netip.Addr) netip.Prefix {
	const network = 64
	addr = addr.Unmap().WithZone("")
	bits := addr.BitLen()
	if addr.Is6() && !l.isPod(addr) {
		bits = network
	}
	p, _ := addr.Prefix(bits)
	return p
}

func (l *Limits) isPod(addr netip.Addr) bool {
	ranges := l.pods.Load()
	return ranges != nil && slices.ContainsFunc(*ranges, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// acquire takes the files of c. A refusal is reported.
func (l *Limits) acquire(c claim) bool {
	l.mu.Lock()
	why, ok := l.check(c)
	if ok {
		l.add(c, c.files)
	}
	l.mu.Unlock()
	if !ok {
		l.recordRefusal(why, c)
	}
	return ok
}

// check reports whether c may have its files, and the reason if not.
func (l *Limits) check(c claim) (why string, ok bool) {
	free := l.max - l.used - c.files
	switch {
	case free < 0, !c.client.IsValid() && l.listenerFiles+c.files > l.max/4*3:
		return NoFiles, false
	case c.client.IsValid() && 3*(l.clients[c.client]+c.files) > free:
		return ClientShare, false
	case l.services[c.service]+c.files > free:
		return ServiceShare, false
	case c.client.IsValid() && l.namespaces[c.service.namespace]+c.files > 2*free:
		return NamespaceShare, false
	}
	return "", true
}

func (l *Limits) add(c claim, files int) {
	l.used += files
	addTo(l.services, c.service, files)
	if c.client.IsValid() {
		addTo(l.clients, c.client, files)
		addTo(l.namespaces, c.service.namespace, files)
	} else {
		l.listenerFiles += files
	}
}

// addTo adds n to m[k] and removes a zero.
func addTo[K comparable](m map[K]int, k K, n int) {
	if m[k] += n; m[k] == 0 {
		delete(m, k)
	}
}

// release gives back what acquire took.
func (l *Limits) release(c claim) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.add(c, -c.files)
}

// acquirePipe takes one pipe, which all connections share.
func (l *Limits) acquirePipe() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pipes == 0 {
		return false
	}
	l.pipes--
	return true
}

func (l *Limits) releasePipe() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pipes++
}

// acquireConn takes the files of one TCP connection. release returns them.
func (l *Limits) acquireConn(c claim) (release func(), ok bool) {
	if !l.acquire(c) {
		return nil, false
	}
	l.mu.Lock()
	l.conns++
	wave := l.openConns
	wave.Add(1)
	l.mu.Unlock()
	return func() {
		l.mu.Lock()
		l.conns--
		l.mu.Unlock()
		l.release(c)
		wave.Done()
	}, true
}

// hasSpare reports whether there are files for an optional use, and neither the client
// nor the Service has many.
func (l *Limits) hasSpare(c claim) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.used < l.max/2 && l.services[c.service] <= l.max/4 && l.clients[c.client] <= max(1, l.max/32)
}

// recordRefusal records that c is refused.
func (l *Limits) recordRefusal(why string, c claim) {
	l.refusals.record(refusal{why, c.service, c.client, ""}, l)
}

func (l *Limits) recordSystemError(err error) {
	l.refusals.record(refusal{reason: NoSystem, text: err.Error()}, l)
}

// Use returns the number of open files of the relay, its limit, and the refusals.
func (l *Limits) Use() *metrics.Relay {
	l.mu.Lock()
	defer l.mu.Unlock()
	return &metrics.Relay{Open: l.used, Limit: l.max, Refused: l.refusals.counts()}
}

// Connections returns the number of TCP connections.
func (l *Limits) Connections() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.conns
}

// Drain waits until the present TCP connections have ended, or ctx is done.
func (l *Limits) Drain(ctx context.Context) {
	l.mu.Lock()
	wave := l.openConns
	l.openConns = &sync.WaitGroup{}
	l.mu.Unlock()
	done := make(chan struct{})
	go func() {
		wave.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
}
