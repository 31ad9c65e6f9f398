// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"context"
	"fmt"
	"net/netip"

	"kubeproxy/common/explain"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/iptables"
)

// Audit checks the rules of one family, which redirect to listeners of another process.
// It uses only what it reads from the tables.
type Audit struct {
	reconcile.Base
	family  service.Family
	options Options
	driver  iptables.Driver
}

// NewAudit returns an Audit of the network namespace of the calling thread. The caller
// must close it.
func NewAudit(f service.Family, o Options) (*Audit, error) {
	d, err := iptables.NewDriver(f, o.Rules)
	if err != nil {
		return nil, err
	}
	return &Audit{family: f, options: o, driver: d}, nil
}

// Tracer is an Audit that also follows connections through the listeners of this process.
type Tracer struct {
	*Audit
	relay *Backend
}

// NewTracer returns a Tracer for b, in the network namespace of the calling thread. The
// caller must close it.
func NewTracer(b *Backend) (*Tracer, error) {
	a, err := NewAudit(b.family, b.options)
	if err != nil {
		return nil, err
	}
	return &Tracer{a, b}, nil
}

// Trace returns what rules and listeners do with the first packet of c, see
// Backend.TraceWith.
func (t *Tracer) Trace(ctx context.Context, want *service.Snapshot, c route.Conn, local func(netip.Addr) bool) (*explain.Walk, error) {
	return t.relay.TraceWith(ctx, t.driver, want, c, local)
}

// Plan implements reconcile.Backend. The plan is empty if each Port is redirected
// correctly to some listener.
func (a *Audit) Plan(ctx context.Context, want *service.Snapshot) (reconcile.Plan, error) {
	redirected, err := a.redirected(ctx, want)
	if err != nil {
		return nil, err
	}
	return a.rules().Plan(ctx, redirected)
}

// ReadBack returns the rules of the kernel and those for want, see iptables.Backend.
func (a *Audit) ReadBack(ctx context.Context, want *service.Snapshot) (held, wanted string, err error) {
	redirected, err := a.redirected(ctx, want)
	if err != nil {
		return "", "", err
	}
	return a.rules().ReadBack(ctx, redirected)
}

// Tracked returns what Backend.Tracked returns once want is in force.
func (a *Audit) Tracked(ctx context.Context, want *service.Snapshot) (*service.Snapshot, error) {
	redirected, err := a.redirected(ctx, want)
	if err != nil {
		return nil, err
	}
	var ports []*service.Port
	for p := range want.Ports(a.family) {
		ports = append(ports, merged(redirected.Port(a.family, p.Name), p))
	}
	return service.New(want.Generation, want.Node, ports), nil
}

// redirected returns want with endpoints replaced by the listeners that the rules
// redirect to.
func (a *Audit) redirected(ctx context.Context, want *service.Snapshot) (*service.Snapshot, error) {
	at, err := a.rules().Destinations(ctx)
	if err != nil {
		return nil, err
	}
	var ports []*service.Port
	for p := range want.Ports(a.family) {
		ports = append(ports, a.options.withListeners(p, func(policy service.Policy) (uint16, bool) {
			return at[iptables.ChainOf(p, policy)].Port(), true
		}))
	}
	return service.New(want.Generation, want.Node, ports), nil
}

// rules returns a Backend without state, which reads the tables.
func (a *Audit) rules() *iptables.Backend {
	return iptables.NewWith(a.family, a.options.rules(), a.driver)
}

// Cleanup implements reconcile.Backend. An Audit changes nothing.
func (a *Audit) Cleanup(context.Context) error { return nil }

// Close implements reconcile.Backend.
func (a *Audit) Close() error { return a.rules().Close() }

// Leftovers is what a process in mode userspace leaves besides rules: the address of its
// listeners, in the network namespace of the calling thread.
type Leftovers struct{ Family service.Family }

// String returns a name for the leftovers.
func (r Leftovers) String() string { return "address " + Addrs[r.Family].String() }

// Find describes the leftovers, "" if there are none.
func (r Leftovers) Find(context.Context) (string, error) {
	found, err := loopback{r.Family}.Has()
	if err != nil {
		return "", fmt.Errorf("look for %s: %w", r, err)
	}
	if !found {
		return "", nil
	}
	return "the address of listeners on interface " + loopbackName, nil
}

// Remove removes the address.
func (r Leftovers) Remove(context.Context) error {
	if err := (loopback{r.Family}).Remove(); err != nil {
		return fmt.Errorf("remove %s: %w", r, err)
	}
	return nil
}
