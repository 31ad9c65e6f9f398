// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/conntrack"
	"kubeproxy/platform/linux/iptables"
)

// Address is the one that listeners of a family have, see Addrs. One that is the
// node's is neither added nor removed.
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
	directory directory                 // of listeners and rules, for others
	failed    map[service.PortName]bool // at least one of their listeners is missing
	lastPort  uint16                    // last port that was tried in the range
	// previousPorts are the ports of an earlier process's listeners, by chain, until the
	// rules are ours. avoidPorts are the ports that other listeners must not use
	// meanwhile.
	previousPorts map[string]uint16
	avoidPorts    map[uint16]bool

	// installed is the snapshot in force, nil if that is not known. redirected is the
	// snapshot that the rules were made for. wanted is that of the latest sync.
	installed, redirected, wanted *service.Snapshot
	tracked                       tracked
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
	}
}

// addr is the address of the listeners.
func (b *Backend) addr() netip.Addr { return b.options.addr(b.family) }

// Plan implements reconcile.Backend. A change of endpoints changes no rule, as long as
// some are left.
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
	p := &plan{backend: b, want: want, addrMissing: !there, firstRound: b.redirected == nil, assumeOpen: true}
	b.compare(p)
	p.redirected = b.redirect(p)
	rules, err := b.rules.Plan(ctx, p.redirected)
	if err != nil {
		return nil, err
	}
	p.rules = rules
	if p.Empty() {
		b.installed, b.wanted = want, want
		b.setRedirected(p.redirected)
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

// comparePort compares the listeners of the Port with this name. port is nil if it was
// deleted.
func (b *Backend) comparePort(p *plan, name service.PortName, port *service.Port) {
	for _, policy := range []service.Policy{service.PolicyCluster, service.PolicyLocal} {
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

// Forget implements reconcile.Backend. The listeners stay open, because connections
// pass through them.
func (b *Backend) Forget() {
	b.rules.Forget()
	b.installed, b.previousPorts = nil, nil
	b.setRedirected(nil)
}

// Redirected returns the snapshot that the rules are for, whose endpoints are listeners.
// It is nil before the first sync.
func (b *Backend) Redirected() *service.Snapshot { return b.redirected }

// Observe calls Limits.Observe. Both families share the limits.
func (b *Backend) Observe(report func(text, detail string)) { b.relay.limits.Observe(report) }

// Use calls Limits.Use.
func (b *Backend) Use() Use { return b.relay.limits.Use() }

// Limits returns the limits of the relay's open files.
func (b *Backend) Limits() *Limits { return b.relay.limits }

// Cleanup implements reconcile.Backend. It removes the rules, see
// iptables.Backend.Cleanup, and the address.
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
