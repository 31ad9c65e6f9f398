// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"kubeproxy/common/errtree"
	"kubeproxy/common/metrics"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/conntrack"
	"kubeproxy/platform/linux/iptables"
)

// Address is that of a family's listeners, see Addrs. The node's own is neither added nor removed.
type Address interface {
	Has() (bool, error)
	Add() error
	// Remove does nothing if the address does not exist.
	Remove() error
}

// Backend keeps the listeners of one family and the rules that redirect to them in the
// desired state. It implements reconcile.Backend.
type Backend struct {
	reconcile.Base
	family  service.Family
	options Options
	rules   *iptables.Backend
	address Address
	relay   *relay
	guarded bool // see iptables.Backend.Guard

	targets   map[service.PortName]*target
	listeners map[key]listener
	directory directory                 // of listeners, for others
	failed    map[service.PortName]bool // at least one of their listeners is missing
	lastPort  uint16                    // last port that was tried in the range
	// previousPorts are an earlier process's, by chain, until the rules are ours. avoidPorts must
	// not be used meanwhile.
	previousPorts map[string]uint16
	avoidPorts    map[uint16]bool

	// installed is the snapshot in force, nil if not known, wanted the latest sync's, and
	// redirected that of the rules, which any goroutine may read.
	installed, wanted *service.Snapshot
	redirected        atomic.Pointer[service.Snapshot]
	tracked           tracked
	// driver and flows are used by HandOver, which sets handedOver.
	driver     iptables.Driver
	flows      conntrack.Driver
	handedOver bool
}

// key identifies a listener.
type key struct {
	name   service.PortName
	policy service.Policy
}

// Parts are what a Backend uses.
type Parts struct {
	Driver  iptables.Driver
	Network Network
	Address Address
	Limits  *Limits
	// Flows are the flows that connection tracking knows, nil if there are none.
	Flows conntrack.Driver
}

// NewWith returns the Backend for one family that uses p.
func NewWith(f service.Family, o Options, p Parts) *Backend {
	return &Backend{
		family: f, options: o,
		rules:  iptables.NewWith(f, o.rules(), p.Driver),
		driver: p.Driver, flows: p.Flows,
		address: p.Address, relay: newRelay(p.Network, p.Limits, o.udpIdle()),
		targets: map[service.PortName]*target{}, listeners: map[key]listener{}, failed: map[service.PortName]bool{},
		directory: directory{listeners: map[service.Address]user{}},
	}
}

// addr is the address of the listeners.
func (b *Backend) addr() netip.Addr { return b.options.addr(b.family) }

// Plan implements reconcile.Backend. Endpoints change no rule, as long as some are left.
func (b *Backend) Plan(ctx context.Context, want *service.Snapshot) (reconcile.Plan, error) {
	if b.previousPorts == nil {
		if err := b.adopt(ctx); err != nil {
			return nil, err
		}
	}
	b.relay.limits.knowPods(want.Node.Pods.Prefixes)
	there, err := b.address.Has()
	if err != nil {
		return nil, fmt.Errorf("look for address %s: %w", b.addr(), err)
	}
	p := &plan{backend: b, want: want, addrMissing: !there, firstRound: b.redirected.Load() == nil, assumeOpen: true}
	b.compare(p)
	p.redirected = b.redirect(p)
	rules, err := b.rules.Plan(ctx, p.redirected)
	if err != nil {
		return nil, err
	}
	p.rules = rules
	if p.Empty() {
		b.installed, b.wanted = want, want
		b.redirected.Store(p.redirected)
		b.track(want)
	}
	return p, nil
}

// compare stores in p which listeners open and close, and which Ports changed.
func (b *Backend) compare(p *plan) {
	if b.installed != nil && len(b.failed) == 0 {
		for c := range service.Diff(b.installed, p.want, b.family) {
			b.comparePort(p, c.Name(), c.New)
			p.changes = append(p.changes, c)
		}
		return
	}
	var none service.Snapshot
	none.Node = p.want.Node
	from := b.installed
	if from == nil {
		from = &none
	}
	for c := range service.Diff(from, p.want, b.family) {
		p.changes = append(p.changes, c)
	}
	for port := range p.want.Ports(b.family) {
		b.comparePort(p, port.Name, port)
	}
	p.comparedAll = true
	for k := range b.listeners {
		if p.want.Port(b.family, k.name) == nil {
			p.closes = append(p.closes, k)
		}
	}
}

// comparePort compares the listeners of the Port with this name, nil if it was deleted.
func (b *Backend) comparePort(p *plan, name service.PortName, port *service.Port) {
	for _, policy := range service.Policies {
		k := key{name, policy}
		needed := port != nil && iptables.UsesPolicy(port, policy)
		switch l := b.listeners[k]; {
		case needed && l == nil:
			p.opens = append(p.opens, k)
		case !needed && l != nil:
			p.closes = append(p.closes, k)
		}
	}
}

// adopt reads from the rules of an earlier process the ports of its listeners. If the
// new listeners use the same ports, the rules are correct again.
func (b *Backend) adopt(ctx context.Context) error {
	all, err := b.rules.Destinations(ctx)
	if err != nil {
		return err
	}
	b.previousPorts, b.avoidPorts = map[string]uint16{}, map[uint16]bool{}
	for chain, to := range all {
		if to.Addr() == b.addr() {
			b.previousPorts[chain] = to.Port()
			b.avoidPorts[to.Port()] = true
		}
	}
	return nil
}

// Forget implements reconcile.Backend. The listeners stay open for their connections.
func (b *Backend) Forget() {
	b.rules.Forget()
	b.installed, b.previousPorts = nil, nil
	b.redirected.Store(nil)
}

// Redirected returns the snapshot of the rules, whose endpoints are listeners, nil at first.
func (b *Backend) Redirected() *service.Snapshot { return b.redirected.Load() }

// Observe calls Limits.Observe. Both families share the limits.
func (b *Backend) Observe(report func(text, detail string)) { b.relay.limits.Observe(report) }

// Use implements mode.Relay.
func (b *Backend) Use() *metrics.Relay { return b.relay.limits.Use() }

// Limits returns the limits of the relay's open files.
func (b *Backend) Limits() *Limits { return b.relay.limits }

// Cleanup implements reconcile.Backend: rules, see iptables.Backend.Cleanup, and address go.
func (b *Backend) Cleanup(ctx context.Context) error {
	b.installed, b.guarded = nil, false
	err := b.rules.Cleanup(ctx)
	if there, hasErr := b.address.Has(); hasErr != nil || there {
		if removeErr := errors.Join(hasErr, b.address.Remove()); removeErr != nil {
			err = errors.Join(err, fmt.Errorf("remove address %s: %w", b.addr(), removeErr))
		}
	}
	return err
}

// Close implements reconcile.Backend. It closes all listeners, as the end of the process does. Rules stay.
func (b *Backend) Close() error {
	for k, l := range b.listeners {
		l.close()
		b.removeListener(k, l)
	}
	b.installed = nil
	return b.rules.Close()
}

// watchInterval is the interval in which Watch checks the address.
const watchInterval = 2 * time.Second

// Watch implements reconcile.Backend.
func (b *Backend) Watch(ctx context.Context, touched func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var checks sync.WaitGroup
	checks.Go(func() {
		_ = reconcile.Every(ctx, watchInterval, func() { // it ends with ctx only
			if there, err := b.address.Has(); err == nil && !there {
				touched()
			}
		})
	})
	err := b.rules.Watch(ctx, touched)
	cancel()
	checks.Wait()
	return err
}

// errNotProgrammed means that there is nothing to hand over.
var errNotProgrammed = errors.New("nothing has been programmed yet")

// handoverStrategy is a way to let the kernel forward connections without the relay. Each
// strategy needs fewer kernel features than the one before.
type handoverStrategy struct {
	loss   string // what clients lose
	adjust func(*service.Port)
}

var handoverStrategies = [...]handoverStrategy{
	{"", func(*service.Port) {}},
	{"session affinity, for which the kernel lacks the match recent", func(p *service.Port) { p.Affinity = 0 }},
	{"session affinity and all endpoints but one of each Service, as the kernel cannot choose", func(p *service.Port) {
		p.Affinity, p.Cluster, p.Local = 0, pickOne(p.Cluster), pickOne(p.Local)
	}},
}

// HandOver makes new connections bypass the relay, to the endpoints of the latest sync, and keeps
// listeners for those that are still arriving. Then this process may end. It returns what clients
// lose until a relay runs again. After an error all is as before. No sync may follow.
func (b *Backend) HandOver(ctx context.Context) (loss string, err error) {
	if b.wanted == nil {
		return "", errNotProgrammed
	}
	rules := iptables.NewWith(b.family, b.bypassOptions(), b.driver)
	b.installed = nil
	for _, w := range handoverStrategies {
		if err = rules.Replace(ctx, b.withoutRelay(w)); err == nil {
			b.handedOver = true
			return w.loss, nil
		}
		if iptables.IsBusy(err) || ctx.Err() != nil {
			break
		}
	}
	return "", fmt.Errorf("lead connections past the relay: %w", err)
}

// bypassOptions returns the options for rules that bypass the relay. NodePorts on
// loopback addresses are excluded unless the kernel already routes these addresses.
func (b *Backend) bypassOptions() iptables.Options {
	o := b.options.rules()
	o.Bypass = true
	if routed, err := b.driver.RouteLocalnetEnabled(); err != nil || !routed {
		o.LocalhostNodePorts = false
	}
	return o
}

// withoutRelay returns the latest snapshot for rules without the relay. It leaves out
// what this mode does not forward.
func (b *Backend) withoutRelay(w handoverStrategy) *service.Snapshot {
	var all []*service.Port
	for p := range b.wanted.Ports(b.family) {
		q := *p
		if q.Name.Protocol == service.SCTP {
			q.Cluster, q.Local, q.Draining = nil, nil, nil
		}
		w.adjust(&q)
		all = append(all, &q)
	}
	s := service.New(b.wanted.Generation, b.wanted.Node, all)
	s.Incomplete = b.wanted.Incomplete
	return s
}

// pickOne returns one of endpoints, none if there are none.
func pickOne(endpoints []service.Endpoint) []service.Endpoint {
	if len(endpoints) == 0 {
		return nil
	}
	i := rand.IntN(len(endpoints))
	return endpoints[i : i+1]
}

// arrivalGrace is how long a connection may take to its listener: handshake, or first read.
const arrivalGrace = 200 * time.Millisecond

// Connections returns the number of TCP connections of the relay, in both families.
func (b *Backend) Connections() int { return b.relay.limits.Connections() }

// Drain waits until the present TCP connections have ended, or ctx is done. The relay
// still accepts others meanwhile. After HandOver it also moves UDP clients.
func (b *Backend) Drain(ctx context.Context) {
	if b.handedOver {
		sleep(ctx, arrivalGrace)
		b.moveClients(ctx)
	}
	b.relay.limits.Drain(ctx)
}

// sleep returns early if ctx is done.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

const (
	// moveInterval is the interval in which waiting UDP clients are checked.
	moveInterval = 100 * time.Millisecond
	// quietBeforeMove is how long an answered client must be silent to have no datagram in transit.
	quietBeforeMove = 20 * time.Millisecond
	// moveBatch is the number of clients that move together.
	moveBatch = 32
)

// moveClients deletes the conntrack entries of UDP clients of the listeners, each as
// soon as none of its datagrams is in transit, and the rest when ctx is done. The next
// datagram of a client then follows the present rules.
func (b *Backend) moveClients(ctx context.Context) {
	if b.flows == nil {
		return
	}
	for ctx.Err() == nil {
		if left, err := b.deleteFlows(ctx, (*udpListener).busy); left == 0 && err == nil {
			return
		}
		sleep(ctx, moveInterval)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), arrivalGrace)
	defer cancel()
	// After the end of the process, the kernel rejects clients that still use a listener.
	_, _ = b.deleteFlows(ctx, func(*udpListener, netip.AddrPort) bool { return false })
	sleep(ctx, quietBeforeMove) // time to forward what is in transit
}

// deleteFlows deletes the conntrack entries to listeners, except those of clients for
// which keep returns true. It returns the number of exceptions.
func (b *Backend) deleteFlows(ctx context.Context, keep func(*udpListener, netip.AddrPort) bool) (left int, err error) {
	at := map[uint16]*udpListener{}
	for _, l := range b.listeners {
		if u, ok := l.(*udpListener); ok {
			at[u.port()] = u
		}
	}
	if len(at) == 0 {
		return 0, nil
	}
	var all []conntrack.Flow
	err = b.flows.Dump(ctx, conntrack.Filter{Family: b.family, Protocol: service.UDP}, func(f conntrack.Flow) {
		if f.Protocol == service.UDP && f.ReplySrc.Addr() == b.addr() && at[f.ReplySrc.Port()] != nil {
			all = append(all, f)
		}
	})
	// A client may become active at any moment, so keep is called as late as possible.
	for some := range slices.Chunk(all, moveBatch) {
		n := len(some)
		some = slices.DeleteFunc(some, func(f conntrack.Flow) bool { return keep(at[f.ReplySrc.Port()], f.ReplyDst) })
		left += n - len(some)
		if err == nil && len(some) > 0 {
			_, err = b.flows.Delete(ctx, some)
		}
	}
	return left, err
}

// busy reports whether a datagram of client, or a reply to one, may be in transit.
func (l *udpListener) busy(client netip.AddrPort) bool {
	if l.hasUnforwarded() {
		return true
	}
	l.mu.Lock()
	s := l.sessions[client]
	l.mu.Unlock()
	if s == nil {
		return false
	}
	return s.awaitsReply() || time.Since(time.Unix(0, s.lastActive.Load())) < quietBeforeMove
}

// hasUnforwarded reports whether there are datagrams of any client that have not been
// forwarded. On a busy node that may take longer than arrivalGrace.
func (l *udpListener) hasUnforwarded() bool {
	raw, err := l.socket.SyscallConn()
	return err == nil && hasPacket(raw) || l.forwarding.Load()
}

// open opens a listener of p: on an earlier process's port, one of the range, or a free one.
func (b *Backend) open(k key, p *service.Port) error {
	if err := unsupported(p); err != nil {
		return err
	}
	l, err := b.relay.listen(b.targets[k.name], k.policy, func() (socket, error) { return b.socket(k, p) })
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	b.listeners[k] = l
	b.directory.add(b.at(k, l), user{k, b.targets[k.name]})
	return nil
}

// unsupported returns what keeps the mode from serving p, nil if nothing does.
func unsupported(p *service.Port) error {
	if p.Name.Protocol != service.SCTP {
		return nil
	}
	return &reconcile.UnsupportedError{Text: onlyTCPAndUDP, Affected: p.Frontends}
}

const onlyTCPAndUDP = "mode userspace forwards TCP and UDP only"

// at returns the address of a listener.
func (b *Backend) at(k key, l listener) service.Address {
	return service.AddressOf(k.name.Protocol, netip.AddrPortFrom(b.addr(), l.port()))
}

// removeListener removes a listener that is closed, or about to be.
func (b *Backend) removeListener(k key, l listener) {
	delete(b.listeners, k)
	b.directory.remove(b.at(k, l), k)
}

func (b *Backend) socket(k key, p *service.Port) (socket, error) {
	r := b.options.Ports
	had := b.previousPorts[iptables.ChainOf(p, k.policy)]
	if had != 0 && (r.unset() || r.contains(had)) {
		if s, err := b.relay.socketAt(k.name.Protocol, had); !errtree.InUse(err) {
			return s, err
		}
	}
	if r.unset() {
		return b.anyFreeSocket(k.name.Protocol)
	}
	for range int(r.Last-r.First) + 1 {
		if b.lastPort++; !r.contains(b.lastPort) {
			b.lastPort = r.First
		}
		if b.avoidPorts[b.lastPort] {
			continue
		}
		if s, err := b.relay.socketAt(k.name.Protocol, b.lastPort); !errtree.InUse(err) {
			return s, err
		}
	}
	return nil, fmt.Errorf("every port of the range %d-%d is taken: give --proxy-port-range more", r.First, r.Last)
}

// anyFreeSocket repeats until the system returns a port that no old rule redirects to.
func (b *Backend) anyFreeSocket(proto service.Protocol) (socket, error) {
	const most = 100
	var unsafe []socket
	defer func() {
		for _, s := range unsafe {
			_ = s.Close()
		}
	}()
	for range most {
		s, err := b.relay.socketAt(proto, 0)
		if err != nil || !b.avoidPorts[portOf(s)] {
			return s, err
		}
		unsafe = append(unsafe, s)
	}
	return nil, fmt.Errorf("the system offered %d ports that rules still lead to", most)
}
