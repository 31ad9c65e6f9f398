// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"context"
	"fmt"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/iptables"
)

// Audit looks at the rules of one family, which lead to listeners of some
// process. It knows nothing but what it reads.
type Audit struct {
	family  service.Family
	options Options
	driver  iptables.Driver
}

// NewAudit returns an Audit of the network namespace of the calling thread. It
// holds resources of the kernel until it is closed.
func NewAudit(f service.Family, o Options) (*Audit, error) {
	d, err := iptables.NewDriver(f, o.Rules)
	if err != nil {
		return nil, err
	}
	return &Audit{f, o, d}, nil
}

// Plan implements reconcile.Backend: it is empty if each Port leads to some
// listener as it should.
func (a *Audit) Plan(ctx context.Context, want *service.Snapshot) (reconcile.Plan, error) {
	redirected, err := a.redirected(ctx, want)
	if err != nil {
		return nil, err
	}
	return a.rules().Plan(ctx, redirected)
}

// Tracked is what Backend.Tracked returns once want is in force.
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

// redirected returns want with the listeners in the place of endpoints that the rules
// lead to.
func (a *Audit) redirected(ctx context.Context, want *service.Snapshot) (*service.Snapshot, error) {
	at, err := a.rules().Destinations(ctx)
	if err != nil {
		return nil, err
	}
	var ports []*service.Port
	for p := range want.Ports(a.family) {
		ports = append(ports, Redirect(p, func(policy service.Policy) (uint16, bool) {
			return at[iptables.ChainOf(p, policy)].Port(), true
		}))
	}
	return service.New(want.Generation, want.Node, ports), nil
}

// rules returns what reads the tables and remembers nothing.
func (a *Audit) rules() *iptables.Backend {
	return iptables.NewWith(a.family, a.options.rules(), a.driver)
}

// Cleanup implements reconcile.Backend. An Audit changes nothing.
func (a *Audit) Cleanup(context.Context) error { return nil }

// Close gives back what it holds of the kernel's.
func (a *Audit) Close() error { return a.rules().Close() }

// Leftovers is what a process in mode userspace leaves besides rules: the address
// of its listeners, in the network namespace of the calling thread.
type Leftovers struct{ Family service.Family }

// String names the place.
func (r Leftovers) String() string { return "address " + Addrs[r.Family].String() }

// Find says what there is, nothing if there is nothing.
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

// Remove removes it.
func (r Leftovers) Remove(context.Context) error {
	if err := (loopback{r.Family}).Remove(); err != nil {
		return fmt.Errorf("remove %s: %w", r, err)
	}
	return nil
}
