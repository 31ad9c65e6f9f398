// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"net/netip"
	"slices"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/iptables"
)

// redirect returns the snapshot for the rules of p: the desired one with listeners
// instead of endpoints. A Port whose rules do not change stays the same pointer.
func (b *Backend) redirect(p *plan) *service.Snapshot {
	want := p.want
	if b.installed == nil || b.redirected == nil {
		return b.redirectAll(p)
	}
	var changes []service.Change
	follow := func(name service.PortName, port *service.Port) {
		c := service.Change{Old: b.redirected.Port(b.family, name)}
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
	if len(changes) == 0 && b.redirected.Node == want.Node && b.redirected.Incomplete == want.Incomplete {
		return b.redirected
	}
	s := b.redirected.With(want.Generation, want.Node, changes)
	s.Incomplete = want.Incomplete
	return s
}

// redirectAll is redirect if it is not known what changed.
func (b *Backend) redirectAll(p *plan) *service.Snapshot {
	var ports []*service.Port
	for port := range p.want.Ports(b.family) {
		redirected := b.redirectPort(port, p.assumeOpen)
		if old := b.redirectedPort(port.Name); old != nil && sameRules(old, redirected) {
			redirected = old
		}
		ports = append(ports, redirected)
	}
	s := service.New(p.want.Generation, p.want.Node, ports)
	s.Incomplete = p.want.Incomplete
	return s
}

// redirectedPort returns the Port that the rules were made for.
func (b *Backend) redirectedPort(name service.PortName) *service.Port {
	if b.redirected == nil {
		return nil
	}
	return b.redirected.Port(b.family, name)
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

// withListeners returns p for the rules, with a listener for each policy that has
// endpoints. listener returns its port, or false if there is none; then p has no
// endpoints for that policy.
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

// sameRules reports whether p and q have the same rules.
func sameRules(p, q *service.Port) bool {
	return p.Internal == q.Internal && p.External == q.External && p.HealthCheck == q.HealthCheck &&
		slices.Equal(p.Cluster, q.Cluster) && slices.Equal(p.Local, q.Local) &&
		slices.EqualFunc(p.Frontends, q.Frontends, service.Frontend.Equal)
}
