// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"context"
	"errors"
	"fmt"
	"time"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/conntrack"
	"kubeproxy/platform/linux/iptables"
)

// Address is the one that listeners of a family have, see Addrs.
type Address interface {
	Has() (bool, error)
	Add() error
	// Remove is to do nothing where there is no such address.
	Remove() error
}

// Backend keeps the listeners of one family and the rules that lead there. It
// implements reconcile.Backend.
type Backend struct {
	family  service.Family
	options Options
	rules   *iptables.Backend
	address Address
	relay   *relay

	targets   map[service.PortName]*target
	listeners map[key]listener
	failed    map[service.PortName]bool // some listener of theirs is missing
	lastPort  uint16                    // that was taken of the range
	// previousPorts has the ports of listeners that another process had, by chain,
	// until the rules are ours; avoid is what that makes unsafe for others.
	previousPorts map[string]uint16
	avoidPorts    map[uint16]bool

	// installed is what is in force, nil while that is not known, and led what the
	// rules were made for. wanted is what the latest round was for.
	installed, redirected, wanted *service.Snapshot
	tracked                       tracked
	// driver and flows are for HandOver, after which handed is true.
	driver     iptables.Driver
	flows      conntrack.Driver
	handedOver bool
}

var _ reconcile.Watcher = (*Backend)(nil)

// key tells one listener from every other.
type key struct {
	name   service.PortName
	policy service.Policy
}

// Parts are what a Backend works through.
type Parts struct {
	Driver  iptables.Driver
	Network Network
	Address Address
	Limits  *Limits
	// Flows are those that the kernel tracks, nil if there are none.
	Flows conntrack.Driver
}

// NewWith returns the Backend for one family that works through p.
func NewWith(f service.Family, o Options, p Parts) *Backend {
	return &Backend{
		family: f, options: o,
		rules:  iptables.NewWith(f, o.rules(), p.Driver),
		driver: p.Driver, flows: p.Flows,
		address: p.Address, relay: newRelay(p.Network, p.Limits, o.udpIdle()),
		targets: map[service.PortName]*target{}, listeners: map[key]listener{}, failed: map[service.PortName]bool{},
	}
}

// Plan implements reconcile.Backend. Endpoints that come and go concern no
// rule, as long as some are left.
func (b *Backend) Plan(ctx context.Context, want *service.Snapshot) (reconcile.Plan, error) {
	if b.previousPorts == nil {
		if err := b.adopt(ctx); err != nil {
			return nil, err
		}
	}
	b.relay.limits.knowPods(want.Node.Pods.Prefixes)
	there, err := b.address.Has()
	if err != nil {
		return nil, fmt.Errorf("look for address %s: %w", Addrs[b.family], err)
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
		b.installed, b.redirected, b.wanted = want, p.redirected, want
		b.track(want)
	}
	return p, nil
}

// compare notes in p which listeners come and go, and which Ports changed.
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

// comparePort is for the Port with a name, nil if there is none any more.
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

// adopt learns from the rules of an earlier process where its listeners were.
// With the same ports, its rules are right again.
func (b *Backend) adopt(ctx context.Context) error {
	all, err := b.rules.Destinations(ctx)
	if err != nil {
		return err
	}
	b.previousPorts, b.avoidPorts = map[string]uint16{}, map[uint16]bool{}
	for chain, to := range all {
		if to.Addr() == Addrs[b.family] {
			b.previousPorts[chain] = to.Port()
			b.avoidPorts[to.Port()] = true
		}
	}
	return nil
}

// Forget implements reconcile.Forgetter. The listeners stay: connections go through
// them.
func (b *Backend) Forget() {
	b.rules.Forget()
	b.installed, b.redirected, b.previousPorts = nil, nil, nil
}

// Suspect implements reconcile.SuspectFinder.
func (b *Backend) Suspect() string { return b.rules.Suspect() }

// Redirected returns the snapshot that the rules are for, whose endpoints are
// listeners; nil before the first round.
func (b *Backend) Redirected() *service.Snapshot { return b.redirected }

// Observe is that of Limits. Both families lack the same.
func (b *Backend) Observe(report func(text, detail string)) { b.relay.limits.Observe(report) }

// Use is that of Limits.
func (b *Backend) Use() Use { return b.relay.limits.Use() }

// Limits returns what the relay may have of the process's open files.
func (b *Backend) Limits() *Limits { return b.relay.limits }

// Tally returns what was done to rules since it was last asked. It is called
// between two rounds.
func (b *Backend) Tally() iptables.Tally { return b.rules.Tally() }

// Cleanup implements reconcile.Backend: it removes what package iptables
// does, and the address.
func (b *Backend) Cleanup(ctx context.Context) error {
	b.installed = nil
	err := b.rules.Cleanup(ctx)
	if there, hasErr := b.address.Has(); hasErr != nil || there {
		if removeErr := errors.Join(hasErr, b.address.Remove()); removeErr != nil {
			err = errors.Join(err, fmt.Errorf("remove address %s: %w", Addrs[b.family], removeErr))
		}
	}
	return err
}

// Close ends all listeners, as the end of the process does. Rules stay.
func (b *Backend) Close() error {
	for k, l := range b.listeners {
		l.close()
		delete(b.listeners, k)
	}
	b.installed = nil
	return b.rules.Close()
}

// watchInterval is how often Watch looks for the address.
const watchInterval = 2 * time.Second

// Watch implements reconcile.Watcher.
func (b *Backend) Watch(ctx context.Context, touched func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		t := time.NewTicker(watchInterval)
		defer t.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-t.C:
			}
			if there, err := b.address.Has(); err == nil && !there {
				touched()
			}
		}
	}()
	return b.rules.Watch(ctx, touched)
}
