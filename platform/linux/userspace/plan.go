// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

// plan is the change from the installed state to a snapshot.
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

// Empty implements reconcile.Plan.
func (p *plan) Empty() bool {
	return len(p.changes) == 0 && len(p.opens) == 0 && len(p.closes) == 0 && !p.addrMissing && p.rules.Empty()
}

// Outcome implements reconcile.Plan.
func (p *plan) Outcome() reconcile.Outcome {
	out := p.rules.Outcome()
	if p.addrMissing && !p.firstRound {
		out.Drift = append(out.Drift, fmt.Sprintf("missing: address %s", p.backend.addr()))
	}
	return out
}

// String implements reconcile.Plan.
func (p *plan) String() string {
	var s strings.Builder
	if p.addrMissing {
		fmt.Fprintf(&s, "+ address %s\n", p.backend.addr())
	}
	for _, k := range p.opens {
		fmt.Fprintf(&s, "+ %s\n", k)
	}
	for _, c := range p.changes {
		if c.New != nil {
			fmt.Fprintf(&s, "~ %s (%s): %d endpoints, %d of them here\n", c.New.Name, c.New.Name.Protocol, len(c.New.Cluster), len(c.New.Local))
		}
	}
	s.WriteString(p.rules.String())
	for _, k := range p.closes {
		fmt.Fprintf(&s, "- %s\n", k)
	}
	return s.String()
}

// String describes the listener.
func (k key) String() string {
	return fmt.Sprintf("listener of %s (%s) for policy %s", k.name, k.name.Protocol, k.policy)
}

// Apply implements reconcile.Plan. Listeners open before rules redirect to them, and
// close when no rule does any more.
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
	b.setRedirected(p.redirected)
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
		for _, policy := range []service.Policy{service.PolicyCluster, service.PolicyLocal} {
			if l := b.listeners[key{name, policy}]; l != nil {
				l.refresh()
			}
		}
	}
}

// transitional returns p for the time until the rules have changed. The rules still
// redirect to a listener that is closing. Its clients get what p's policies allow, and
// never an endpoint of another node for policy Local. If rules cannot be changed, that
// time has no end.
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

// closeLater closes a listener to which no rule redirects any more, after arrivalGrace
// for connections that are still arriving.
func (b *Backend) closeLater(k key) {
	if l := b.listeners[k]; l != nil {
		time.AfterFunc(b.relay.arrivalGrace, l.close)
		b.removeListener(k, l)
	}
}
