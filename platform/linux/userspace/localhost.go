// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

// localhostUDPIdle is how long a UDP client on a loopback address keeps its endpoint
// without traffic, as long as connection tracking keeps a client elsewhere.
const localhostUDPIdle = 30 * time.Second

// Localhost relays NodePorts of 127.0.0.1 or ::1 in modes whose rules cannot: the
// kernel does not route what goes to ::1, and routes what goes to 127.0.0.1 only with
// a setting that opens loopback addresses to neighbours (kubernetes/kubernetes#90259).
// A snapshot goes in, listeners of this process come out. It implements
// reconcile.Backend.
type Localhost struct {
	family service.Family
	parts  LocalhostParts
	relay  *relay // nil before the first listener

	targets   map[service.PortName]*target
	listeners map[service.PortName]listener
	retry     map[service.PortName]bool // their listener could not be opened
	installed *service.Snapshot         // nil before the first round
	notes     reconcile.Notes

	open, failures atomic.Int64
}

// LocalhostParts are what a Localhost works through.
type LocalhostParts struct {
	Network Network
	// Limits is asked for before the first listener opens.
	Limits func() (*Limits, error)
	// Unreached, if set, is as what ObserveUnreached passes to its report.
	Unreached func(name service.PortName, clients int, err error)
}

// NewLocalhostWith returns the Localhost of one family that works through p.
func NewLocalhostWith(f service.Family, p LocalhostParts) *Localhost {
	return &Localhost{
		family: f, parts: p,
		targets: map[service.PortName]*target{}, listeners: map[service.PortName]listener{}, retry: map[service.PortName]bool{},
	}
}

// LocalhostPort returns the port on which the NodePort of p answers on a loopback
// address of want's node, 0 if it does not. Programs of the node reach all endpoints,
// whatever the external policy.
func LocalhostPort(want *service.Snapshot, p *service.Port) uint16 {
	if p == nil || p.Name.Protocol == service.SCTP || len(p.Cluster) == 0 {
		return 0
	}
	return requestedPort(want, p)
}

// LocalhostLost is LocalhostPort for a port of a protocol that is not relayed. Nobody
// answers there.
func LocalhostLost(want *service.Snapshot, p *service.Port) uint16 {
	if p == nil || p.Name.Protocol != service.SCTP {
		return 0
	}
	return requestedPort(want, p)
}

// requestedPort is LocalhostPort without a look at what can be relayed.
func requestedPort(want *service.Snapshot, p *service.Port) uint16 {
	i := slices.IndexFunc(p.Frontends, func(f service.Frontend) bool { return f.Kind == service.NodePort })
	if i < 0 || !want.Node.LocalhostNodePorts(p.Family) {
		return 0
	}
	return p.Frontends[i].Port
}

// localhostPlan is what leads from the listeners that are open to a snapshot.
type localhostPlan struct {
	*Localhost
	want    *service.Snapshot
	closes  []service.PortName
	opens   []*service.Port
	updates []*service.Port
	removed []service.PortName // no Port any more
	notes   reconcile.Notes
}

var _ reconcile.NotesReporter = (*localhostPlan)(nil)

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

// compare notes what becomes of the listener of a Port, nil if there is none any more.
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

// updateNote keeps up what is said of ports of SCTP. Notes that were given away do not
// change.
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
	p.notes[name] = []reconcile.Note{{Text: fmt.Sprintf("the NodePort does not answer on %s: TCP and UDP alone are relayed there", service.Localhost(p.family))}}
}

// recordApplied notes that all that p is for has been done or is to be retried.
func (p *localhostPlan) recordApplied() {
	p.installed = p.want
	p.Localhost.notes = p.notes
	p.open.Store(int64(len(p.listeners)))
}

// Empty implements reconcile.Plan.
func (p *localhostPlan) Empty() bool {
	return len(p.closes) == 0 && len(p.opens) == 0 && len(p.updates) == 0 && len(p.removed) == 0
}

// Drift implements reconcile.Plan: nobody else can close a listener.
func (p *localhostPlan) Drift() []string { return nil }

// Notes implements reconcile.NotesReporter.
func (p *localhostPlan) Notes() reconcile.Notes { return p.notes }

// String implements reconcile.Plan.
func (p *localhostPlan) String() string {
	var s strings.Builder
	for _, name := range p.closes {
		fmt.Fprintf(&s, "- listener of %s (%s) at %s\n", name, name.Protocol, p.addrPort(p.listeners[name].port()))
	}
	for _, port := range p.opens {
		fmt.Fprintf(&s, "+ listener of %s (%s) at %s\n", port.Name, port.Name.Protocol, p.addrPort(LocalhostPort(p.want, port)))
	}
	for _, port := range p.updates {
		fmt.Fprintf(&s, "~ listener of %s (%s): %d endpoints\n", port.Name, port.Name.Protocol, len(port.Cluster))
	}
	return s.String()
}

func (l *Localhost) addrPort(port uint16) netip.AddrPort {
	return netip.AddrPortFrom(service.Localhost(l.family), port)
}

// Apply implements reconcile.Plan. Listeners close before others open, as a NodePort
// may pass from one Service to another.
func (p *localhostPlan) Apply(context.Context) error {
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
	return errors.Join(errs...)
}

// listen opens the listener of port.
func (p *localhostPlan) listen(port *service.Port) error {
	if p.relay == nil {
		limits, err := p.parts.Limits()
		if err != nil {
			return fmt.Errorf("listen for NodePorts on loopback addresses: %w", err)
		}
		p.relay = newRelay(p.parts.Network, limits, localhostUDPIdle)
		observeUnreached(p.relay, p.parts.Unreached)
	}
	if p.targets[port.Name] == nil {
		p.targets[port.Name] = newTarget(port.Name)
	}
	t := p.targets[port.Name]
	t.update(port)
	if !p.relay.limits.acquire(t.listenerClaim()) {
		return fmt.Errorf("listen at %s: no more open files for listeners of the Service: the process may have %d: raise its limit of open files", p.addrPort(LocalhostPort(p.want, port)), p.relay.limits.files)
	}
	l, err := p.serve(port, t)
	if err != nil {
		p.relay.limits.release(t.listenerClaim())
		return err
	}
	p.listeners[port.Name] = l
	return nil
}

func (p *localhostPlan) serve(port *service.Port, t *target) (listener, error) {
	number := LocalhostPort(p.want, port)
	if port.Name.Protocol == service.UDP {
		socket, err := p.relay.network.ListenUDP(number)
		if err != nil {
			return nil, p.listenError(number, err)
		}
		return p.relay.serveUDP(socket, t, service.PolicyCluster), nil
	}
	socket, err := p.relay.network.ListenTCP(number)
	if err != nil {
		return nil, p.listenError(number, err)
	}
	return p.relay.serveTCP(socket, t, service.PolicyCluster), nil
}

// listenError says what err means for the NodePort.
func (p *localhostPlan) listenError(number uint16, err error) error {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return fmt.Errorf("listen at %s: %w", p.addrPort(number), err)
	}
	err = fmt.Errorf("listen at %s, so the NodePort does not answer there: %w", p.addrPort(number), errno)
	switch errno {
	case syscall.EADDRINUSE:
		return fmt.Errorf("%w by another program of the node: stop it, or take localhost out of nodePortAddresses", err)
	case syscall.EPERM:
		return fmt.Errorf("%w: the right CAP_NET_RAW is needed", err)
	}
	return err
}

// Listeners returns how many are open, and Failures how often one could not be opened.
// Both may be called from any goroutine.
func (l *Localhost) Listeners() int { return int(l.open.Load()) }

// Failures returns how often a listener could not be opened.
func (l *Localhost) Failures() int { return int(l.failures.Load()) }

// Close ends all listeners, as the end of the process does.
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
