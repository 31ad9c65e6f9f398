// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package userspace implements mode userspace. A service.Snapshot goes in. The package opens
// listeners for each Service port, redirects connections to them through package iptables, and
// relays each connection or datagram to an endpoint, for one family per Backend. It also relays
// NodePorts on loopback addresses for other modes, see Localhost. The snapshot says which endpoints
// serve which clients. This package selects in turn, implements session affinity, and tries the
// next endpoint if one does not answer. Only files with the suffix _linux.go need Linux. All others
// build and are tested on any system.
package userspace

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/iptables"
)

// Addrs are the addresses that listeners have, by family, unless Options name
// others. They are added to the loopback interface and mean nothing elsewhere, so no
// address of the node has a port that answers other clients, and each family has all ports.
var Addrs = [...]netip.Addr{
	service.IPv4: netip.MustParseAddr("169.254.107.112"),
	service.IPv6: netip.MustParseAddr("fd6b:7562:6570:726f:7879::1"),
}

// DefaultUDPIdle is how long a silent UDP client keeps its endpoint.
const DefaultUDPIdle = 250 * time.Millisecond

// Options are the settings that concern this mode alone.
type Options struct {
	// Rules are for the iptables chains. Relay and RelayPorts are filled in.
	Rules iptables.Options
	// Ports are those that listeners may use, chosen by the system if zero.
	Ports Range
	// Listen, by family, is the node's address for listeners in place of Addrs, if valid. It needs
	// Ports, as only these are guarded there.
	Listen [2]netip.Addr
	// UDPIdle is how long a silent UDP client keeps its endpoint, 0 for DefaultUDPIdle.
	UDPIdle time.Duration
}

// Range is a range of ports, including both ends.
type Range struct{ First, Last uint16 }

func (r Range) unset() bool { return r.First == 0 }

func (r Range) contains(port uint16) bool { return r.First <= port && port <= r.Last }

// bound reports whether listeners of f are at an address of the node.
func (o Options) bound(f service.Family) bool { return o.Listen[f].IsValid() && !o.Ports.unset() }

// addr returns the address of listeners of f.
func (o Options) addr(f service.Family) netip.Addr {
	if o.bound(f) {
		return o.Listen[f]
	}
	return Addrs[f]
}

func (o Options) rules() iptables.Options {
	for _, f := range service.Families {
		o.Rules.Relay[f] = o.addr(f)
		if o.bound(f) {
			o.Rules.RelayPorts[f] = iptables.Ports(o.Ports)
		}
	}
	return o.Rules
}

func (o Options) udpIdle() time.Duration {
	if o.UDPIdle == 0 {
		return DefaultUDPIdle
	}
	return o.UDPIdle
}

// plan is the change from the installed state to a snapshot. It implements reconcile.Plan.
type plan struct {
	backend          *Backend
	want, redirected *service.Snapshot
	changes          []service.Change
	addrMissing      bool
	firstRound       bool
	opens            []key
	closes           []key
	rules            reconcile.Plan
	// assumeOpen means that planned listeners count as open.
	assumeOpen  bool
	comparedAll bool // all Ports were compared, not only the changed ones
}

func (p *plan) Empty() bool {
	return len(p.changes) == 0 && len(p.opens) == 0 && len(p.closes) == 0 && !p.addrMissing && p.rules.Empty()
}

func (p *plan) Outcome() reconcile.Outcome {
	out := p.rules.Outcome()
	if p.addrMissing && !p.firstRound {
		out.Drift = append(out.Drift, fmt.Sprintf("missing: address %s", p.backend.addr()))
	}
	return out
}

func (p *plan) Changes() reconcile.Changes {
	var all reconcile.Changes
	if p.addrMissing {
		all.Add("+ address %s", p.backend.addr())
	}
	for _, k := range p.opens {
		all = append(all, named(k.name, "+ %s", k))
	}
	for _, c := range p.changes {
		if c.New != nil {
			all = append(all, named(c.New.Name, "~ %s (%s): %d endpoints, %d of them here", c.New.Name, c.New.Name.Protocol, len(c.New.Cluster), len(c.New.Local)))
		}
	}
	all = append(all, p.rules.Changes()...)
	for _, k := range p.closes {
		all = append(all, named(k.name, "- %s", k))
	}
	return all
}

// named returns a change for the Service port of this name, with a text that has the name.
func named(n service.PortName, format string, args ...any) reconcile.Change {
	return reconcile.Change{Text: fmt.Sprintf(format, args...), Port: n, Named: true}
}

// String describes the listener.
func (k key) String() string {
	return fmt.Sprintf("listener of %s (%s) for policy %s", k.name, k.name.Protocol, k.policy)
}

// Apply implements reconcile.Plan. Listeners are open as long as rules redirect to them.
func (p *plan) Apply(ctx context.Context) reconcile.Outcome {
	out := p.Outcome()
	out.Err = p.change(ctx, &out)
	return out
}

// change makes the changes of p, and sets in out the outcome of the rules.
func (p *plan) change(ctx context.Context, out *reconcile.Outcome) error {
	b := p.backend
	b.wanted = p.want
	if p.addrMissing {
		if err := b.address.Add(); err != nil {
			return fmt.Errorf("have address %s for listeners: %w", b.addr(), err)
		}
	}
	if err := p.guard(ctx); err != nil {
		b.installed = nil
		return err
	}
	p.updateTargets()
	errs := p.open()
	if len(p.opens) > 0 { // their ports are known now
		p.assumeOpen = false
		p.redirected = b.redirect(p)
		rules, err := b.rules.Plan(ctx, p.redirected)
		if err != nil {
			b.installed = nil
			return errors.Join(append(errs, err)...)
		}
		p.rules = rules
	}
	b.redirected.Store(p.redirected)
	b.track(p.want)
	if !p.rules.Empty() {
		done := p.rules.Apply(ctx)
		if out.Rules = done.Rules; done.Err != nil {
			b.installed = nil // compare everything in the next sync
			return errors.Join(append(errs, done.Err)...)
		}
	}
	for _, k := range p.closes {
		b.closeLater(k)
	}
	for _, c := range p.changes {
		if c.New == nil {
			delete(b.targets, c.Name())
		}
	}
	if p.comparedAll {
		maps.DeleteFunc(b.targets, func(n service.PortName, _ *target) bool { return p.want.Port(b.family, n) == nil })
	}
	b.installed = p.want
	if !p.want.Incomplete { // all rules are ours now
		clear(b.previousPorts)
		clear(b.avoidPorts)
	}
	return errors.Join(errs...)
}

// guard keeps other clients from listeners at an address of the node before they open.
func (p *plan) guard(ctx context.Context) error {
	b := p.backend
	if b.guarded || len(p.opens) == 0 || !b.options.bound(b.family) {
		return nil
	}
	if err := b.rules.Guard(ctx); err != nil {
		return fmt.Errorf("guard the listeners at %s: %w", b.addr(), err)
	}
	b.guarded = true
	return nil
}

// updateTargets gives the existing listeners the present endpoints.
func (p *plan) updateTargets() {
	b := p.backend
	closing := make(map[key]bool, len(p.closes))
	for _, k := range p.closes {
		closing[k] = true
	}
	for _, c := range p.changes {
		name := c.Name()
		if c.New == nil {
			continue // the old endpoints serve until the rules are gone
		}
		if b.targets[name] == nil {
			b.targets[name] = newTarget(name)
		}
		b.targets[name].update(transitional(c.New, closing))
		for _, policy := range service.Policies {
			if l := b.listeners[key{name, policy}]; l != nil {
				l.refresh()
			}
		}
	}
}

// transitional returns p until the rules have changed, if ever: they still redirect to a closing
// listener. Its clients get what p's policies allow, never a remote endpoint for policy Local.
func transitional(p *service.Port, closing map[key]bool) *service.Port {
	m := *p
	if closing[key{p.Name, service.PolicyLocal}] && p.Internal != service.PolicyLocal && p.External != service.PolicyLocal {
		m.Local = p.Cluster // the policy is Local no more
	}
	if closing[key{p.Name, service.PolicyCluster}] {
		m.Cluster, m.Draining = p.Local, onNode(p.Draining) // all clients have policy Local now
	}
	return &m
}

// open opens as many of the planned listeners as possible.
func (p *plan) open() []error {
	b := p.backend
	clear(b.failed)
	var errs []error
	for _, k := range p.opens {
		if b.failed[k.name] {
			continue
		}
		if err := b.open(k, p.want.Port(b.family, k.name)); err != nil {
			b.failed[k.name] = true
			errs = append(errs, &reconcile.PortError{Family: b.family, Name: k.name, Err: err})
		}
	}
	return errs
}

// closeLater closes a listener without rules after arrivalGrace, for what still arrives.
func (b *Backend) closeLater(k key) {
	if l := b.listeners[k]; l != nil {
		time.AfterFunc(b.relay.arrivalGrace, l.close)
		b.removeListener(k, l)
	}
}

// redirect returns the snapshot for the rules of p: the desired one with listeners
// instead of endpoints. A Port whose rules do not change stays the same pointer.
func (b *Backend) redirect(p *plan) *service.Snapshot {
	want, before := p.want, b.redirected.Load()
	if b.installed == nil || before == nil {
		return b.redirectAll(p)
	}
	var changes []service.Change
	follow := func(name service.PortName, port *service.Port) {
		c := service.Change{Old: before.Port(b.family, name)}
		if port != nil {
			c.New = b.redirectPort(port, p.assumeOpen)
		}
		if c.Old != nil && c.New != nil && sameRules(c.Old, c.New) || c.Old == c.New {
			return
		}
		changes = append(changes, c)
	}
	for _, c := range p.changes {
		follow(c.Name(), c.New)
	}
	for _, k := range p.opens { // whose Port may not have changed
		if !slices.ContainsFunc(changes, func(c service.Change) bool { return c.Name() == k.name }) {
			follow(k.name, want.Port(b.family, k.name))
		}
	}
	if len(changes) == 0 && before.Node == want.Node && before.Incomplete == want.Incomplete {
		return before
	}
	s := before.With(want.Generation, want.Node, changes)
	s.Incomplete = want.Incomplete
	return s
}

// redirectAll is redirect if it is not known what changed.
func (b *Backend) redirectAll(p *plan) *service.Snapshot {
	var ports []*service.Port
	before := cmp.Or(b.redirected.Load(), &service.Snapshot{})
	for port := range p.want.Ports(b.family) {
		redirected := b.redirectPort(port, p.assumeOpen)
		if old := before.Port(b.family, port.Name); old != nil && sameRules(old, redirected) {
			redirected = old
		}
		ports = append(ports, redirected)
	}
	s := service.New(p.want.Generation, p.want.Node, ports)
	s.Incomplete = p.want.Incomplete
	return s
}

// redirectPort returns p with listeners as its endpoints. The port of a planned listener
// is 0. If a listener is missing, p has no endpoints.
func (b *Backend) redirectPort(p *service.Port, assumeOpen bool) *service.Port {
	return b.options.withListeners(p, func(policy service.Policy) (uint16, bool) {
		if l := b.listeners[key{p.Name, policy}]; l != nil {
			return l.port(), true
		}
		return 0, assumeOpen
	})
}

// withListeners returns p for the rules, with a listener for each policy that has endpoints and for
// which listener returns a port.
func (o Options) withListeners(p *service.Port, listener func(service.Policy) (uint16, bool)) *service.Port {
	redirected := &service.Port{
		Name: p.Name, Family: p.Family, Frontends: p.Frontends,
		Internal: p.Internal, External: p.External, HealthCheck: p.HealthCheck,
	}
	if p.Name.Protocol == service.SCTP {
		return redirected
	}
	listeners := func(policy service.Policy, endpoints []service.Endpoint) []service.Endpoint {
		if len(endpoints) == 0 {
			return nil
		}
		port, ok := uint16(0), true // no rule redirects to it
		if iptables.UsesPolicy(p, policy) {
			port, ok = listener(policy)
		}
		if !ok {
			return nil
		}
		return []service.Endpoint{{Addr: netip.AddrPortFrom(o.addr(p.Family), port), Local: true}}
	}
	redirected.Cluster = listeners(service.PolicyCluster, p.Cluster)
	redirected.Local = listeners(service.PolicyLocal, p.Local)
	return redirected
}

func sameRules(p, q *service.Port) bool {
	return p.Internal == q.Internal && p.External == q.External && p.HealthCheck == q.HealthCheck &&
		slices.Equal(p.Cluster, q.Cluster) && slices.Equal(p.Local, q.Local) &&
		slices.EqualFunc(p.Frontends, q.Frontends, service.Frontend.Equal)
}

// AssumedPorts are the ports of listeners in rendered output if there is no range: only
// a running process has the ports that the system selects.
var AssumedPorts = Range{40000, 65535}

// Render returns both families' tables that a node would hold for want after a start from nothing,
// always the same, and what the mode cannot do.
func Render(want *service.Snapshot, o Options) (reconcile.Objects, any) {
	return reconcile.Families(func(f service.Family) iptables.Tables {
		d, out := Document(f, want, o), Lost(want, f)
		d.Unsupported, _ = out.Limits(want, f)
		return d
	})
}

// Lost returns what a round for want says of ports that the mode cannot serve.
func Lost(want *service.Snapshot, f service.Family) reconcile.Outcome {
	var errs []error
	for p := range want.Ports(f) {
		if err := unsupported(p); err != nil {
			errs = append(errs, &reconcile.PortError{Family: f, Name: p.Name, Err: err})
		}
	}
	return reconcile.Outcome{Err: errors.Join(errs...)}
}

// Differences returns what the mode does with c otherwise than Kubernetes says.
func Differences(want *service.Snapshot, c route.Conn, o iptables.Options) []string {
	if c.Protocol == service.SCTP && route.Decide(want, c).Port != nil {
		return []string{onlyTCPAndUDP}
	}
	return iptables.Differences(want, c, o)
}

// Document returns what a node would hold in family f.
func Document(f service.Family, want *service.Snapshot, o Options) iptables.Tables {
	return iptables.Document(f, WithAssumedListeners(want, o), o.rules())
}

// WithAssumedListeners returns want with listeners instead of endpoints, on consecutive
// ports. If the range is too short, the remaining Ports have no endpoints.
func WithAssumedListeners(want *service.Snapshot, o Options) *service.Snapshot {
	ports := o.Ports
	if ports.unset() {
		ports = AssumedPorts
	}
	var all []*service.Port
	for _, f := range service.Families {
		next := map[service.Protocol]int{service.TCP: int(ports.First), service.UDP: int(ports.First)}
		for p := range want.Ports(f) {
			all = append(all, o.withListeners(p, func(service.Policy) (uint16, bool) {
				n := next[p.Name.Protocol]
				next[p.Name.Protocol]++
				return uint16(n), n <= int(ports.Last)
			}))
		}
	}
	redirected := service.New(want.Generation, want.Node, all)
	redirected.Incomplete = want.Incomplete
	return redirected
}

// target selects among the endpoints of one Service port.
type target struct {
	mu       sync.Mutex
	lists    [2]roundRobin       // by policy
	draining [2][]netip.AddrPort // by policy
	affinity time.Duration
	clients  affinityTable
	first    netip.AddrPort // of the frontends

	name service.PortName // never changes

	recording sync.Mutex
	failed    bool                         // an attempt to reach an endpoint has failed once
	reached   map[netip.AddrPort]time.Time // when the latest success began, by endpoint and of all
}

// roundRobin selects endpoints in turn.
type roundRobin struct {
	endpoints []netip.AddrPort // sorted
	next      int
}

func newTarget(name service.PortName) *target {
	t := &target{name: name, reached: map[netip.AddrPort]time.Time{}}
	for i := range t.lists { // start at random, so that nodes differ
		t.lists[i].next = int(rand.Int32())
	}
	return t
}

// update sets the endpoints and affinity of p.
func (t *target) update(p *service.Port) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lists[service.PolicyCluster].endpoints = addrs(p.Cluster)
	t.lists[service.PolicyLocal].endpoints = addrs(p.Local)
	t.draining[service.PolicyCluster] = addrs(p.Draining)
	t.draining[service.PolicyLocal] = addrs(onNode(p.Draining))
	if len(p.Frontends) > 0 {
		t.first = netip.AddrPortFrom(p.Frontends[0].Addr, p.Frontends[0].Port)
	}
	t.recording.Lock()
	maps.DeleteFunc(t.reached, func(e netip.AddrPort, _ time.Time) bool {
		return e.IsValid() && !slices.ContainsFunc(t.lists[:], func(l roundRobin) bool { return l.has(e) })
	})
	t.recording.Unlock()
	t.affinity = p.Affinity
	if p.Affinity == 0 {
		t.clients = affinityTable{}
	}
}

// frontend returns an address of the Service port.
func (t *target) frontend() netip.AddrPort {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.first
}

func onNode(endpoints []service.Endpoint) []service.Endpoint {
	return slices.DeleteFunc(slices.Clone(endpoints), func(e service.Endpoint) bool { return !e.Local })
}

func addrs(endpoints []service.Endpoint) []netip.AddrPort {
	all := make([]netip.AddrPort, len(endpoints))
	for i, e := range endpoints {
		all[i] = e.Addr
	}
	return all
}

func (t *target) listenerClaim() claim {
	return claim{files: 1, service: serviceName{t.name.Namespace, t.name.Name}}
}

func (t *target) clientClaim(client netip.Prefix, files int) claim {
	c := t.listenerClaim()
	c.files, c.client = files, client
	return c
}

// choose returns an endpoint for a client, if possible one not in tried, false if there is none.
func (t *target) choose(policy service.Policy, client netip.Addr, tried []netip.AddrPort) (netip.AddrPort, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := &t.lists[policy]
	if len(l.endpoints) == 0 {
		return netip.AddrPort{}, false
	}
	now := time.Now()
	if t.affinity > 0 && len(tried) == 0 {
		if e, known := t.clients.lookup(client, now, t.affinity); known && l.has(e) {
			return e, true
		}
	}
	e := l.pick(tried)
	if t.affinity > 0 {
		t.clients.store(client, e, now, t.affinity)
	}
	return e, true
}

func (r *roundRobin) has(e netip.AddrPort) bool {
	_, found := slices.BinarySearchFunc(r.endpoints, e, netip.AddrPort.Compare)
	return found
}

func (r *roundRobin) pick(tried []netip.AddrPort) netip.AddrPort {
	var e netip.AddrPort
	for range r.endpoints {
		r.next = (r.next + 1) % len(r.endpoints)
		if e = r.endpoints[r.next]; !slices.Contains(tried, e) {
			break
		}
	}
	return e
}

// forget ends client's affinity to e: its next connection uses another endpoint.
func (t *target) forget(client netip.Addr, e netip.AddrPort) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.clients.forget(client, e)
}

// serves reports whether a flow that began at e for policy may continue.
func (t *target) serves(policy service.Policy, e netip.AddrPort) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.lists[policy].has(e) || slices.Contains(t.draining[policy], e)
}
