// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package ipvs programs the virtual servers of mode ipvs. A service.Snapshot goes in.
// Virtual servers of IPVS, a dummy interface with local routes for the addresses of
// Services, sysctls, and ipsets and iptables chains for what IPVS cannot do come out, for
// one family per Backend. The package does not select endpoints: the snapshot contains
// that decision. Only files with the suffix _linux.go use kernel interfaces. All other
// files build and are tested on any system.
package ipvs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

// Device is the dummy interface that the local routes of Service addresses refer to.
const Device = "kube-ipvs0"

// DrainTimeout limits how long a removed endpoint keeps its connections.
const DrainTimeout = time.Hour

// Options are the settings that concern IPVS alone.
type Options struct {
	// MasqueradeBit is the bit of the packet mark, 0 to 31, that selects packets for masquerading.
	MasqueradeBit int
	// Scheduler selects among endpoints, see ipvsadm(8). "" means rr.
	Scheduler string
	// Exclude are prefixes in which existing virtual servers are never changed.
	Exclude []netip.Prefix
	// SyncPeriod limits how long foreign changes stay undetected.
	SyncPeriod time.Duration
	// StrictARP makes the node ignore ARP requests for addresses of Services.
	StrictARP bool
	// TCP, TCPFin and UDP are the timeouts of idle connections in the kernel. Zero
	// leaves a timeout unchanged. They apply to all virtual servers of the node.
	TCP, TCPFin, UDP time.Duration
}

func (o Options) scheduler() string { return cmp.Or(o.Scheduler, "rr") }

func (o Options) excludes(a netip.Addr) bool {
	return slices.ContainsFunc(o.Exclude, func(p netip.Prefix) bool { return p.Contains(a) })
}

// Driver is what Backend needs from the kernel, for one family. All methods except Watch
// are called from one goroutine at a time.
type Driver interface {
	// MissingSettings lists sysctls and timeouts that have another value than virtual servers need.
	MissingSettings(ctx context.Context, of settingsScope) ([]string, error)
	// ApplySettings sets them. It fails only for one without which IPVS cannot work.
	ApplySettings(ctx context.Context, of settingsScope) error
	// Commit executes ops in order. It returns errors by index: errExists, errMissing, or another.
	Commit(ctx context.Context, ops []op) map[int]error
	// Read returns all virtual servers, including foreign ones, and our routes. The list
	// may be incomplete if others delete virtual servers meanwhile.
	Read(ctx context.Context) (*state, error)
	// Server returns one virtual server, nil if it does not exist.
	Server(ctx context.Context, k service.Address) (*observedServer, error)
	// Dests returns the destinations of one virtual server, none if it does not exist.
	Dests(ctx context.Context, k service.Address) ([]dest, error)
	// NodeAddrs returns the node's addresses except those of our interface, loopback and
	// link-local addresses, and addresses that are not usable yet. The source address of
	// the default route is the first. The others are sorted.
	NodeAddrs(ctx context.Context) ([]netip.Addr, error)
	// MarkRules returns the rules of policy routing that ask for the mark of packets.
	MarkRules(ctx context.Context) ([]markRule, error)
	// RemoveDevice removes the interface, if there is one and nothing else uses it.
	RemoveDevice(ctx context.Context) error
	// Watch calls touched whenever the node's addresses change, until ctx is done.
	Watch(ctx context.Context, touched func()) error
	// close releases the kernel resources of the Driver.
	close()
}

// settingsScope selects settings by when they are applied.
type settingsScope uint8

const (
	scopeStartup settingsScope = iota // all settings
	// scopeRunning are those of IPVS itself. The others an operator may change after the start.
	scopeRunning
)

// Errors of a driver when it creates or deletes an object.
var (
	errExists  = errors.New("it exists already")
	errMissing = errors.New("it does not exist")
)

// state is the observed state of the kernel.
type state struct {
	device      bool
	routes      []localRoute // ours
	servers     map[service.Address]*observedServer
	hasSets     bool // the sets of virtual servers and of node addresses exist
	serverSet   map[service.Address]bool
	addrSet     map[netip.Addr]bool
	oneTimeCost time.Duration // the part of Read's duration that the next Read does not need
}

// observedServer is a virtual server in the kernel.
type observedServer struct {
	server
	dests      []dest // sorted by address
	destsKnown bool   // dests has been read
	// upstream means that kube-proxy made it.
	upstream bool
}

// Backend keeps the virtual servers of one family as wanted. It implements reconcile.Backend.
type Backend struct {
	family  service.Family
	options Options
	driver  Driver
	// rules are the sets and chains, *rules except in tests of virtual servers alone.
	rules reconcile.Backend
	now   func() time.Time
	// rulesView is what the rules are for, nil if that is not known.
	rulesView *service.Snapshot
	// installed is what the kernel holds, nil if that is not known.
	installed      *installed
	prepared       bool                     // the settings are in place
	owned          map[service.Address]bool // our virtual servers, true if a Service has had it since the start
	poller         poller
	drainingDests  drainingDests
	draining       atomic.Bool // drainingDests is not empty; Watch reads this
	lastDrainCheck time.Time   // of drainingDests
	drainLogged    bool        // the limit of draining has been logged
	node           nodeView
	pending        pendingNodePorts
	// showSharedMark, if set, gets what sharedMark says, see condition.SharedMark.
	showSharedMark func(text string)
	// readsOnce is as ReadOnce says, and kept what Trace has read then.
	readsOnce bool
	kept      *kernelTrace
}

// installed describes virtual servers that match a snapshot. It stores what they were
// made from. Only the kernel stores the servers themselves.
type installed struct {
	snapshot  *service.Snapshot // as passed to Plan
	view      *service.Snapshot // with the real addresses of the node
	localNode localNode
	// addrRefs counts the Ports that need a route to an address.
	addrRefs    map[netip.Addr]int
	failedPorts failedPorts // Ports whose state differs
	readAt      time.Time
}

// resyncDue reports whether to read the kernel again. The timer of the sync period may fire early.
func (b *Backend) resyncDue(h *installed) bool {
	return b.now().Sub(h.readAt) >= b.options.SyncPeriod*9/10
}

// Forget implements reconcile.Backend.
func (b *Backend) Forget() {
	b.installed = nil
	b.rules.Forget()
}

// SetResync implements reconcile.Backend.
func (b *Backend) SetResync(d time.Duration) {
	b.options.SyncPeriod = d
	b.rules.SetResync(d)
}

// Plan implements reconcile.Backend. Its cost is proportional to the difference between want and
// the last snapshot, except once per sync period and when the poller requests to read the kernel.
func (b *Backend) Plan(ctx context.Context, want *service.Snapshot) (reconcile.Plan, error) {
	view, err := b.view(ctx, want)
	if err != nil {
		return nil, err
	}
	rules, err := b.rules.Plan(ctx, view)
	if err != nil {
		return nil, err
	}
	h := b.installed
	fullSync := b.poller.requested.Load() || h == nil || h.view.Node != view.Node || h.snapshot.Incomplete != want.Incomplete || b.resyncDue(h)
	var changes []service.Change
	if !fullSync {
		changes = slices.Collect(service.Diff(h.view, view, b.family))
		fullSync = h.localNode.reservationsChange(changes)
	}
	p := &plan{backend: b, rules: rules, fullSync: fullSync, drainingDests: b.drainingDests.clone(), next: &installed{snapshot: want, view: view}}
	if fullSync || !b.prepared {
		if p.settings, err = b.driver.MissingSettings(ctx, b.currentScope()); err != nil {
			return nil, fmt.Errorf("ask for settings of IPVS: %w", err)
		}
	}
	if !fullSync {
		if err := p.planChanges(ctx, h, changes); err != nil {
			return nil, err
		}
		if err := p.removeDrained(ctx); err != nil {
			return nil, fmt.Errorf("ask for connections of endpoints that left: %w", err)
		}
	} else if err := p.compareAll(ctx, h); err != nil {
		return nil, err
	}
	if p.Empty() {
		p.logDraining(ctx) // an earlier process may have left draining destinations
		b.rulesView = view
		p.recordInstalled()
	}
	return p, nil
}

// currentScope returns which settings are compared.
func (b *Backend) currentScope() settingsScope {
	if b.prepared {
		return scopeRunning
	}
	return scopeStartup
}

// nodeView is the node with its real addresses, as rules and virtual servers need it.
type nodeView struct {
	from, node *service.Node
	snapshot   *service.Snapshot // the latest snapshot with node
	want       *service.Snapshot // the snapshot it was made from
}

// view returns want with the real addresses of the node, the same pointer for the same of both.
func (b *Backend) view(ctx context.Context, want *service.Snapshot) (*service.Snapshot, error) {
	addrs, err := b.driver.NodeAddrs(ctx)
	if err != nil {
		return nil, fmt.Errorf("list the node's addresses: %w", err)
	}
	v := &b.node
	addrs = inOrder(addrs, want.Node.Addrs)
	if v.from == want.Node && slices.Equal(v.node.Addrs, addrs) {
		if v.want == want {
			return v.snapshot, nil
		}
	} else {
		node := *want.Node
		node.Addrs = addrs
		if err := b.fillNodePorts(ctx, want, &node); err != nil {
			return nil, err
		}
		v.from, v.node = want.Node, &node
	}
	v.want = want
	v.snapshot = want.With(want.Generation, v.node, nil)
	return v.snapshot, nil
}

// inOrder puts the addresses that the API names first, in its order.
func inOrder(has, named []netip.Addr) []netip.Addr {
	var first, rest []netip.Addr
	for _, a := range named {
		if slices.Contains(has, a) {
			first = append(first, a)
		}
	}
	for _, a := range has {
		if !slices.Contains(first, a) && !slices.Contains(rest, a) { // links of pods share an address
			rest = append(rest, a)
		}
	}
	return append(first, rest...)
}

// source returns the source address of the node's own connections to Services.
func (v nodeView) source(f service.Family) netip.Addr { return service.FirstOf(v.node.Addrs, f) }

// Cleanup implements reconcile.Backend. Foreign virtual servers stay, and so do those in
// excluded prefixes.
func (b *Backend) Cleanup(ctx context.Context) error {
	b.installed, b.rulesView = nil, nil
	s, err := b.driver.Read(ctx)
	if err != nil {
		return fmt.Errorf("list what IPVS has: %w", err)
	}
	err = removeAll(ctx, b.driver, s, b.options.ownedKeys(s))
	if err == nil {
		err = b.driver.RemoveDevice(ctx)
	}
	return errors.Join(err, b.rules.Cleanup(ctx))
}

// ownedKeys returns the virtual servers in s that we made and may remove.
func (o Options) ownedKeys(s *state) []service.Address {
	var ours []service.Address
	for _, k := range sortedKeys(s.servers) {
		if s.servers[k].owned() && !o.excludes(k.Addr) {
			ours = append(ours, k)
		}
	}
	return ours
}

// removeAll removes our routes and virtual servers.
func removeAll(ctx context.Context, d Driver, s *state, ours []service.Address) error {
	var ops []op
	for _, r := range s.routes {
		ops = append(ops, op{verb: delRoute, route: r})
	}
	for _, k := range ours {
		ops = append(ops, op{verb: delServer, key: k})
	}
	return joinFailures(ops, d.Commit(ctx, ops))
}

// Watch implements reconcile.Backend. It watches changes of chains and of the node's
// addresses. The kernel sends no notifications about virtual servers (kernel:
// net/netfilter/ipvs/ip_vs_ctl.c), so these are polled.
func (b *Backend) Watch(ctx context.Context, touched func()) error {
	return reconcile.WatchAll(ctx, touched, b.driver.Watch, b.rules.Watch, b.watchDraining, b.poller.watch)
}

// watchDraining requests a sync from time to time while destinations drain.
func (b *Backend) watchDraining(ctx context.Context, touched func()) error {
	return reconcile.Every(ctx, drainPollInterval, func() {
		if b.draining.Load() {
			touched()
		}
	})
}

// Close implements reconcile.Backend.
func (b *Backend) Close() error {
	b.driver.close()
	return b.rules.Close()
}

// pollInterval is the interval between two reads of the kernel state if a read is cheap.
// For expensive reads, pollShare limits the cost to one part in pollShare of the time.
const (
	pollInterval = 2 * time.Second
	pollShare    = 100
)

// poller schedules reads of the kernel state between two sync periods. The kernel sends
// no notification when virtual servers change (kernel: net/netfilter/ipvs/ip_vs_ctl.c),
// and clients are refused until they are repaired.
type poller struct {
	requested atomic.Bool
	nextPoll  atomic.Int64 // when the next read is due, Unix time in nanoseconds
}

// polled records a read that began at start.
func (p *poller) polled(start time.Time) {
	now := time.Now()
	p.nextPoll.Store(now.Add(max(pollInterval, pollShare*now.Sub(start))).UnixNano())
}

// watch requests a read when one is due.
func (p *poller) watch(ctx context.Context, touched func()) error {
	return reconcile.Every(ctx, pollInterval, func() {
		if next := p.nextPoll.Load(); next != 0 && time.Now().UnixNano() >= next {
			p.requested.Store(true)
			touched()
		}
	})
}
