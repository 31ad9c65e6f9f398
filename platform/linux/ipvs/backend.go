// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/iptables"
)

// Driver is what Backend asks from the kernel, for one family. Its methods
// are called from one goroutine at a time, but for Watch.
type Driver interface {
	// MissingSettings lists the settings of the system that virtual servers need and
	// that are to be made, a line each.
	MissingSettings(ctx context.Context, of settingsScope) ([]string, error)
	// ApplySettings makes them. It is an error if nothing works without one.
	ApplySettings(ctx context.Context, of settingsScope) error
	// Commit does ops applyInOrder. What went wrong is errExists, errMissing, or
	// another error.
	Commit(ctx context.Context, ops []op) map[int]error
	// Read returns all virtual servers, whosever they are, and what of routes
	// is ours. Some may be missing if others went meanwhile.
	Read(ctx context.Context) (*state, error)
	// Server returns one virtual server, nil if there is none.
	Server(ctx context.Context, k key) (*observedServer, error)
	// Dests returns the destinations of one virtual server, none if there is
	// no such server.
	Dests(ctx context.Context, k key) ([]dest, error)
	// NodeAddrs returns the addresses that the node has without us, but for
	// loopback ones, those that need an interface to be told, and those that are
	// not usable yet. The one that its connections to far away come from is the
	// first, and the others are in order.
	NodeAddrs(ctx context.Context) ([]netip.Addr, error)
	// RemoveDevice removes the interface, if nobody else uses it.
	RemoveDevice(ctx context.Context) error
	// Watch calls touched whenever the node's addresses change, until ctx ends.
	Watch(ctx context.Context, touched func()) error
}

// settingsScope tells settings by when they are made.
type settingsScope uint8

const (
	scopeStartup settingsScope = iota // all of them
	// scopeRunning are those that are IPVS's own. Of others, somebody may decide
	// otherwise once they were made.
	scopeRunning
)

// What a driver may find when it makes or removes something.
var (
	errExists  = errors.New("it exists already")
	errMissing = errors.New("it does not exist")
)

// state is what the kernel has.
type state struct {
	device      bool
	routes      []localRoute // ours
	servers     map[key]*observedServer
	hasSets     bool // of virtual servers and of the node's addresses are there
	serverSet   map[key]bool
	addrSet     map[netip.Addr]bool
	oneTimeCost time.Duration // of the time that Read took, what another one will not
}

// observedServer is a virtual server as the kernel has it.
type observedServer struct {
	server
	dests      []dest // sorted by address
	destsKnown bool   // dests are known
	// upstream says that kube-proxy made it.
	upstream bool
}

// Backend keeps one family's virtual servers. It implements
// reconcile.Backend.
type Backend struct {
	family  service.Family
	options Options
	driver  Driver
	rules   reconcile.Watcher // the sets and chains beside
	now     func() time.Time
	// installed is what the kernel holds, nil while that is not known.
	installed      *installed
	prepared       bool         // settings were made, or were right
	owned          map[key]bool // virtual servers that are ours, true for what a Service had since the start
	poller         poller
	drainingDests  drainingDests
	draining       atomic.Bool // drains is not empty; Watch asks
	lastDrainCheck time.Time   // at drains
	drainLogged    bool        // how long something may drain
	node           nodeView
	pending        pendingNodePorts
}

var (
	_ reconcile.Watcher      = (*Backend)(nil)
	_ reconcile.ResyncSetter = (*Backend)(nil)
)

// installed describes virtual servers that are as we want them, by what they
// were made from. They themselves are kept by the kernel alone.
type installed struct {
	snapshot  *service.Snapshot // as it came
	view      *service.Snapshot // with the addresses that the node really has
	localNode localNode
	// addrRefs counts who needs a route to an address.
	addrRefs    map[netip.Addr]int
	failedPorts failedPorts // what is otherwise
	readAt      time.Time
}

// resyncDue reports that the kernel is to be asked again what it holds. A round that
// the sync period brings comes a moment early at times.
func (b *Backend) resyncDue(h *installed) bool {
	return b.now().Sub(h.readAt) >= b.options.SyncPeriod*9/10
}

// Forget implements reconcile.Forgetter.
func (b *Backend) Forget() {
	b.installed = nil
	if r, ok := b.rules.(reconcile.Forgetter); ok {
		r.Forget()
	}
}

// SetResync implements reconcile.ResyncSetter.
func (b *Backend) SetResync(d time.Duration) {
	b.options.SyncPeriod = d
	if r, ok := b.rules.(reconcile.ResyncSetter); ok {
		r.SetResync(d)
	}
}

// Plan implements reconcile.Backend. Its cost follows the difference between
// want and the last snapshot. Once in a sync period at least, and when Watch says
// so, the kernel is asked what it holds.
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
		fullSync = h.reservationsChange(changes)
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
		p.logDraining(ctx) // what an earlier process had drain
		p.recordInstalled()
	}
	return p, nil
}

// currentScope tells which settings are looked at.
func (b *Backend) currentScope() settingsScope {
	if b.prepared {
		return scopeRunning
	}
	return scopeStartup
}

// nodeView is the node as rules and virtual servers see it: with the
// addresses that it really has.
type nodeView struct {
	from, node *service.Node
	snapshot   *service.Snapshot // the latest one that was seen so
	want       *service.Snapshot // what it was made of
}

// view returns want with the addresses that the node has. The same want and
// addresses give the same pointer.
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

// inOrder puts the addresses first that the API names, in its order, and leaves the
// others in theirs.
func inOrder(has, named []netip.Addr) []netip.Addr {
	var first, rest []netip.Addr
	for _, a := range named {
		if slices.Contains(has, a) {
			first = append(first, a)
		}
	}
	for _, a := range has {
		if !slices.Contains(first, a) && !slices.Contains(rest, a) { // pods' links share one
			rest = append(rest, a)
		}
	}
	return append(first, rest...)
}

// source is what the node's own connections to Services come from.
func (v nodeView) source(f service.Family) netip.Addr {
	for _, a := range v.node.Addrs {
		if service.FamilyOf(a) == f {
			return a
		}
	}
	return netip.Addr{}
}

// Cleanup implements reconcile.Backend. Virtual servers of others stay, and
// so do those in excluded prefixes.
func (b *Backend) Cleanup(ctx context.Context) error {
	b.installed = nil
	s, err := b.driver.Read(ctx)
	if err != nil {
		return fmt.Errorf("list what IPVS has: %w", err)
	}
	err = removeAll(ctx, b.driver, s, b.options.ownedKeys(s))
	if s.device && err == nil {
		err = b.driver.RemoveDevice(ctx)
	}
	return errors.Join(err, b.rules.Cleanup(ctx))
}

// ownedKeys returns the virtual servers in s that we made and may remove.
func (o Options) ownedKeys(s *state) []key {
	var ours []key
	for _, k := range sortedKeys(s.servers) {
		if s.servers[k].owned() && !o.excludes(k.addr) {
			ours = append(ours, k)
		}
	}
	return ours
}

// removeAll removes our addresses and virtual servers.
func removeAll(ctx context.Context, d Driver, s *state, ours []key) error {
	var ops []op
	for _, r := range s.routes {
		ops = append(ops, op{verb: delRoute, route: r})
	}
	for _, k := range ours {
		ops = append(ops, op{verb: delServer, key: k})
	}
	return joinFailures(ops, d.Commit(ctx, ops))
}

// Watch implements reconcile.Watcher: it hears of changes to chains and to
// the node's addresses. The kernel tells nobody of changes to virtual servers, so
// these are looked at.
func (b *Backend) Watch(ctx context.Context, touched func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watches := []func(context.Context, func()) error{b.driver.Watch, b.rules.Watch, b.watchDraining, b.poller.watch}
	ended := make(chan error, len(watches))
	for _, watch := range watches {
		go func() {
			err := watch(ctx, touched)
			cancel()
			ended <- err
		}()
	}
	var errs []error
	for range watches {
		errs = append(errs, <-ended)
	}
	return errors.Join(errs...)
}

// watchDraining asks for a round from time to time while something drains.
func (b *Backend) watchDraining(ctx context.Context, touched func()) error {
	return tick(ctx, drainPollInterval, func() {
		if b.draining.Load() {
			touched()
		}
	})
}

// Tally returns what was done to rules since it was last asked. It is called
// between two rounds.
func (b *Backend) Tally() iptables.Tally {
	if r, ok := b.rules.(interface{ Tally() iptables.Tally }); ok {
		return r.Tally()
	}
	return iptables.Tally{}
}
