// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

// localhostUDPIdle is how long a UDP client on a loopback address keeps its endpoint
// without traffic. Connection tracking keeps other clients as long
// (nf_conntrack_udp_timeout, see docs.kernel.org/networking/nf_conntrack-sysctl.html).
const localhostUDPIdle = 30 * time.Second

// Localhost relays NodePorts on 127.0.0.1 or ::1 where rules cannot: the kernel routes no packets
// to ::1, and to 127.0.0.1 only with a setting that exposes loopback addresses to the local network
// (kubernetes/kubernetes#90259). It implements reconcile.Backend.
type Localhost struct {
	reconcile.Base
	family service.Family
	parts  LocalhostParts
	relay  *relay // nil before the first listener

	targets   map[service.PortName]*target
	listeners map[service.PortName]listener
	retry     map[service.PortName]bool // their listener could not be opened
	installed *service.Snapshot         // nil before the first sync
	notes     reconcile.Notes

	open, failures atomic.Int64
}

// LocalhostParts are what a Localhost uses.
type LocalhostParts struct {
	Network Network
	// Limits is called before the first listener opens.
	Limits    func() (*Limits, error)
	Attempted Attempted // may be nil
}

// NewLocalhostWith returns the Localhost of one family that uses p.
func NewLocalhostWith(f service.Family, p LocalhostParts) *Localhost {
	return &Localhost{
		family: f, parts: p,
		targets: map[service.PortName]*target{}, listeners: map[service.PortName]listener{}, retry: map[service.PortName]bool{},
	}
}

// LocalhostPort returns where the NodePort of p answers on a loopback address of want's node, 0 if
// it does not. Local clients reach all endpoints, whatever the external policy.
func LocalhostPort(want *service.Snapshot, p *service.Port) uint16 {
	if p == nil || p.Name.Protocol == service.SCTP || len(p.Cluster) == 0 {
		return 0
	}
	return requestedPort(want, p)
}

// LocalhostLost is LocalhostPort for a protocol that is not relayed: nobody answers there.
func LocalhostLost(want *service.Snapshot, p *service.Port) uint16 {
	if p == nil || p.Name.Protocol != service.SCTP {
		return 0
	}
	return requestedPort(want, p)
}

// requestedPort is LocalhostPort for any protocol.
func requestedPort(want *service.Snapshot, p *service.Port) uint16 {
	if !want.Node.LocalhostNodePorts(p.Family) {
		return 0
	}
	return p.NodePort()
}

// localhostPlan is the change from the open listeners to a snapshot. It implements reconcile.Plan.
type localhostPlan struct {
	*Localhost
	want    *service.Snapshot
	closes  []service.PortName
	opens   []*service.Port
	updates []*service.Port
	removed []service.PortName // deleted Ports
	notes   reconcile.Notes
}

// Plan implements reconcile.Backend.
func (l *Localhost) Plan(_ context.Context, want *service.Snapshot) (reconcile.Plan, error) {
	p := &localhostPlan{Localhost: l, want: want, notes: l.notes}
	from := l.installed
	if from != nil && from.Node.LocalhostNodePorts(l.family) != want.Node.LocalhostNodePorts(l.family) {
		from = nil
	}
	seen := map[service.PortName]bool{}
	for c := range service.Diff(from, want, l.family) {
		seen[c.Name()] = true
		p.compare(c.Name(), c.New)
	}
	others := maps.Keys(l.retry)
	if from == nil {
		others = maps.Keys(l.targets)
	}
	for _, name := range slices.SortedFunc(others, service.PortName.Compare) {
		if !seen[name] {
			p.compare(name, want.Port(l.family, name))
		}
	}
	if p.Empty() {
		p.recordApplied()
	}
	return p, nil
}

// compare plans the listener of a Port, nil if it was deleted.
func (p *localhostPlan) compare(name service.PortName, port *service.Port) {
	p.updateNote(name, port)
	number, at := LocalhostPort(p.want, port), p.listeners[name]
	if number == 0 && p.targets[name] != nil {
		p.removed = append(p.removed, name)
	}
	if at != nil && at.port() != number {
		p.closes = append(p.closes, name)
		at = nil
	}
	switch {
	case number == 0:
	case at == nil:
		p.opens = append(p.opens, port)
	default:
		p.updates = append(p.updates, port)
	}
}

// updateNote adds or removes the note for an SCTP port, in a new map: the old one was returned.
func (p *localhostPlan) updateNote(name service.PortName, port *service.Port) {
	lost := LocalhostLost(p.want, port) != 0
	if _, noted := p.notes[name]; noted == lost {
		return
	}
	p.notes = maps.Clone(p.notes)
	if !lost {
		delete(p.notes, name)
		return
	}
	if p.notes == nil {
		p.notes = reconcile.Notes{}
	}
	p.notes[name] = lostNotes(p.family)
}

func lostNotes(f service.Family) []reconcile.Note {
	return []reconcile.Note{{Text: fmt.Sprintf("the NodePort does not answer on %s: TCP and UDP alone are relayed there", service.Localhost(f))}}
}

// LocalhostNotes returns the notes of a Localhost about want.
func LocalhostNotes(want *service.Snapshot, f service.Family) reconcile.Notes {
	notes := reconcile.Notes{}
	for p := range want.Ports(f) {
		if LocalhostLost(want, p) != 0 {
			notes[p.Name] = lostNotes(f)
		}
	}
	return notes
}

// recordApplied records that p has been applied, or is to be retried in parts.
func (p *localhostPlan) recordApplied() {
	p.installed = p.want
	p.Localhost.notes = p.notes
	p.open.Store(int64(len(p.listeners)))
}

func (p *localhostPlan) Empty() bool {
	return len(p.closes) == 0 && len(p.opens) == 0 && len(p.updates) == 0 && len(p.removed) == 0
}

// Outcome implements reconcile.Plan, without drift: nobody else can close a listener.
func (p *localhostPlan) Outcome() reconcile.Outcome { return reconcile.Outcome{Notes: p.notes} }

func (p *localhostPlan) Changes() reconcile.Changes {
	var all reconcile.Changes
	for _, name := range p.closes {
		all = append(all, named(name, "- listener of %s (%s) at %s", name, name.Protocol, p.addrPort(p.listeners[name].port())))
	}
	for _, port := range p.opens {
		all = append(all, named(port.Name, "+ listener of %s (%s) at %s", port.Name, port.Name.Protocol, p.addrPort(LocalhostPort(p.want, port))))
	}
	for _, port := range p.updates {
		all = append(all, named(port.Name, "~ listener of %s (%s): %d endpoints", port.Name, port.Name.Protocol, len(port.Cluster)))
	}
	return all
}

func (l *Localhost) addrPort(port uint16) netip.AddrPort {
	return netip.AddrPortFrom(service.Localhost(l.family), port)
}

// Apply implements reconcile.Plan. It closes first: a NodePort may move between Services.
func (p *localhostPlan) Apply(context.Context) reconcile.Outcome {
	for _, name := range p.closes {
		p.listeners[name].close()
		delete(p.listeners, name)
	}
	for _, name := range p.removed {
		delete(p.targets, name)
		delete(p.retry, name)
	}
	for _, port := range p.updates {
		p.targets[port.Name].update(port)
		p.listeners[port.Name].refresh()
	}
	var errs []error
	for _, port := range p.opens {
		err := p.listen(port)
		if p.retry[port.Name] = err != nil; err == nil {
			delete(p.retry, port.Name)
			continue
		}
		p.failures.Add(1)
		errs = append(errs, &reconcile.PortError{Family: p.family, Name: port.Name, Err: &reconcile.DegradedError{Err: err}})
	}
	p.recordApplied()
	return reconcile.Outcome{Err: errors.Join(errs...), Notes: p.notes}
}

// listen opens the listener of port.
func (p *localhostPlan) listen(port *service.Port) error {
	if p.relay == nil {
		limits, err := p.parts.Limits()
		if err != nil {
			return fmt.Errorf("listen for NodePorts on loopback addresses: %w", err)
		}
		p.relay = newRelay(p.parts.Network, limits, localhostUDPIdle)
		p.relay.attempted = p.parts.Attempted
	}
	if p.targets[port.Name] == nil {
		p.targets[port.Name] = newTarget(port.Name)
	}
	t := p.targets[port.Name]
	t.update(port)
	number := LocalhostPort(p.want, port)
	l, err := p.relay.listen(t, service.PolicyCluster, func() (socket, error) { return p.relay.socketAt(port.Name.Protocol, number) })
	if err != nil {
		return p.listenError(number, err)
	}
	p.listeners[port.Name] = l
	return nil
}

// listenError describes what err means for the NodePort.
func (p *localhostPlan) listenError(number uint16, err error) error {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return fmt.Errorf("listen at %s: %w", p.addrPort(number), err)
	}
	err = fmt.Errorf("listen at %s, so the NodePort does not answer there: %w", p.addrPort(number), errno)
	switch errno {
	case syscall.EADDRINUSE:
		return fmt.Errorf("%w by another program of the node: stop it, or remove localhost from nodePortAddresses", err)
	case syscall.EPERM:
		return fmt.Errorf("%w: the right CAP_NET_RAW is needed", err)
	}
	return err
}

// Listeners returns the number of open listeners. It is safe for concurrent use.
func (l *Localhost) Listeners() int { return int(l.open.Load()) }

// Failures returns how often listeners could not be opened. It is safe for concurrent use.
func (l *Localhost) Failures() int { return int(l.failures.Load()) }

// Close implements reconcile.Backend. It closes all listeners, as the end of the process does.
func (l *Localhost) Close() error {
	for name, x := range l.listeners {
		x.close()
		delete(l.listeners, name)
	}
	clear(l.targets)
	l.installed = nil
	l.open.Store(0)
	return nil
}

// Cleanup implements reconcile.Backend. Nothing outlives the process.
func (l *Localhost) Cleanup(context.Context) error { return l.Close() }

// The hop limit (TTL in IPv4) ends a routing loop. A relay begins another connection, with a full
// one, so if the endpoint of a Service is a Service of another node whose endpoint is here, one
// would loop forever. Therefore the relay reduces the hop limit of the client's first packet and
// uses it for its first one to the endpoint. The next relay gets nothing else of the client, as
// rules translate address and port. Rules of other modes forward, and the kernel reduces. A relay
// counts as several hops, because each pass takes two open files.
const (
	defaultHops  = 64 // maximum that a relay uses; no endpoint is more distant
	hopsPerRelay = 8
	minHops      = 4 // maximum distance of an endpoint in the cluster
)

// nextHops returns the hop limit for sending. in is the received one, 0 if it is not
// known. The result is false if the relay must refuse the client.
func nextHops(in int) (int, bool) {
	if in == 0 {
		return defaultHops - hopsPerRelay, true
	}
	out := min(in, defaultHops) - hopsPerRelay
	return out, out >= minHops
}

// Attempted is told how attempts to reach an endpoint of a Service port end: err is nil for a
// success after a failure, of the kind os.ErrDeadlineExceeded for a first datagram without a prompt
// reply. Without an endpoint, a client could not be served. It must not block.
type Attempted func(name service.PortName, endpoint netip.AddrPort, err error)

// lateError is the failure of an attempt, after a success of one that began later. It implements
// servicestate.Late.
type lateError struct{ error }

func (lateError) Late()           {}
func (e lateError) Unwrap() error { return e.error }

// ObserveAttempts calls f for each attempt. Call it before the first sync.
func (b *Backend) ObserveAttempts(f Attempted) { b.relay.attempted = f }

// record records an attempt to reach e, or the lack of an endpoint for a client of t.
func (r *relay) record(t *target, e netip.AddrPort, began time.Time, err error) {
	if r.attempted == nil || errors.Is(err, net.ErrClosed) {
		return
	}
	t.recording.Lock() // so that successes are told before the failures that are late
	defer t.recording.Unlock()
	if err == nil {
		t.reached[e], t.reached[netip.AddrPort{}] = later(t.reached[e], began), later(t.reached[netip.AddrPort{}], began)
	} else if t.failed = true; began.Before(t.reached[e]) {
		err = lateError{err}
	}
	if t.failed {
		r.attempted(t.name, e, err)
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
