// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"kubeproxy/common/service"
)

// The names of our endpoints, which identify them.
const (
	remotePrefix  = "kube-proxy-remote-"
	sourceVIPName = "kube-proxy-source-vip"
)

// remoteName has dashes for colons: nothing public says that a name of HNS may have them.
func remoteName(a netip.Addr) string { return remotePrefix + strings.ReplaceAll(a.String(), ":", "-") }

// ownsEndpoint reports whether this proxy created e.
func ownsEndpoint(e *Endpoint) bool {
	return e.Name == sourceVIPName || strings.HasPrefix(e.Name, remotePrefix)
}

// ensureEndpoint returns the ID of the endpoint for t. It creates remote endpoints.
func (p *pass) ensureEndpoint(t Target) (string, error) {
	switch t.Location {
	case Root:
		e := p.model.endpointNamed(p.site.Options.RootEndpoint)
		if e == nil {
			p.waiting = true
			return "", pendingError(fmt.Sprintf("health checks of the load balancer cannot reach the node: network %q has no endpoint %q: want --root-hnsendpoint-name", p.site.Network.Name, p.site.Options.RootEndpoint))
		}
		if !slices.ContainsFunc(e.Addrs, func(a netip.Addr) bool { return service.FamilyOf(a) == p.family }) {
			p.waiting = true
			return "", pendingError(fmt.Sprintf("health checks of the load balancer cannot reach the node over %s: endpoint %q has no such address", p.family, e.Name))
		}
		return e.ID, nil
	case Local, Unknown:
		if e := p.model.endpointAt(t.Addr, Local); e != nil {
			if remote := p.model.endpointAt(t.Addr, Remote); remote != nil { // of a pod that had the address before
				p.released[remote.ID] = leftoverName("", Key{})
			}
			return e.ID, nil
		}
	}
	if t.Location == Local {
		p.waiting = true
		p.moved = p.moved || p.dry && p.model.moved(t.Addr)
		if other := p.model.elsewhere(t.Addr); other != "" {
			return "", pendingError(fmt.Sprintf("endpoint %s is in network %q, not in %q, which is for Services: see the network plugin and the CNI configuration of the container runtime", t.Addr, other, p.site.Network.Name))
		}
		return "", pendingError(fmt.Sprintf("endpoint %s is of this node, but network %q does not have it yet: the network plugin makes it", t.Addr, p.site.Network.Name))
	}
	if e := p.model.endpointAt(t.Addr, Remote); e != nil {
		if misrouted(e, t) && !ownsEndpoint(e) {
			return "", fmt.Errorf("endpoint %s leads elsewhere, and is not ours: %s, want %s", e.ID, e.describe(), t.describe())
		}
		return e.ID, nil
	}
	return p.createEndpoint(t)
}

// misrouted reports whether e does not lead to t. A MAC that is not known, of the node in a dump, fits all.
func misrouted(e *Endpoint, t Target) bool {
	return t.MAC != "" && !equalMAC(e.MAC, t.MAC) || t.Provider.IsValid() && e.Provider.IsValid() && e.Provider != t.Provider
}

func (p *pass) createEndpoint(t Target) (string, error) {
	if err := p.createErrs[t.Addr]; err != nil {
		return "", err // one attempt is enough, but each Service reports the error
	}
	request := Endpoint{
		Name: remoteName(t.Addr), Network: p.site.Network.ID, Addrs: []netip.Addr{t.Addr},
		MAC: t.MAC, Provider: t.Provider, Remote: true,
	}
	e, err := p.driver.CreateEndpoint(p.ctx, request)
	if err != nil {
		p.createErrs[t.Addr] = err
		return "", err
	}
	p.addChange(service.PortName{}, "+ endpoint %s", e.describe())
	p.model.putEndpoint(&e)
	if !p.dry {
		p.host.recordEndpoint(&e)
	}
	return e.ID, nil
}

// describe returns a text about e for plans and errors.
func (e *Endpoint) describe() string {
	var addrs []string
	for _, a := range e.Addrs {
		addrs = append(addrs, a.String())
	}
	s := strings.Join(addrs, ",")
	if !e.Remote {
		return s + " local"
	}
	s += " remote " + cmp.Or(e.MAC, "the node's MAC")
	if e.Provider.IsValid() {
		s += " via " + e.Provider.String()
	}
	return s
}

// describe returns a text about the remote endpoint for t.
func (t *Target) describe() string {
	e := Endpoint{Addrs: []netip.Addr{t.Addr}, MAC: t.MAC, Provider: t.Provider, Remote: true}
	return e.describe()
}

// detach removes endpoints with a wrong route from our load balancers and deletes them,
// so that correct ones can be created.
func (p *pass) detach(misrouted []*Endpoint) {
	if len(misrouted) == 0 {
		return
	}
	wrong := map[string]bool{}
	for _, e := range misrouted {
		wrong[e.ID] = true
	}
	for _, lb := range p.balancersUsing(wrong) {
		if p.fatal != nil {
			return
		}
		remaining := *lb
		remaining.ID = ""
		remaining.Endpoints = slices.DeleteFunc(slices.Clone(lb.Endpoints), func(id string) bool { return wrong[id] })
		n := leftoverName(p.host.purposeOf(lb.ID), lb.Key)
		if !p.owns(lb) {
			p.fail(n, fmt.Errorf("load balancer %s, which is not ours, has an endpoint of ours that leads to the wrong node", lb.ID))
		} else if len(remaining.Endpoints) == 0 {
			p.drop(lb, n)
		} else if err := p.ensureBalancer(&remaining, n); err != nil {
			p.fail(n, err)
		}
	}
	for _, e := range misrouted {
		p.removeEndpoint(e, leftoverName("", Key{}))
	}
}

// balancersUsing returns the load balancers that have one of the endpoints, in key order.
func (p *pass) balancersUsing(of map[string]bool) []*LoadBalancer {
	return p.balancers(func(lb *LoadBalancer) bool {
		return slices.ContainsFunc(lb.Endpoints, func(id string) bool { return of[id] })
	})
}

// balancers returns the load balancers for which fit returns true, in key order.
func (p *pass) balancers(fit func(*LoadBalancer) bool) []*LoadBalancer {
	seen := map[string]*LoadBalancer{}
	for m := p.model; m != nil; m = m.base {
		for k, lb := range m.balancers {
			if _, newer := seen[k]; !newer {
				seen[k] = lb
			}
		}
	}
	var all []*LoadBalancer
	for _, lb := range seen {
		if lb != nil && fit(lb) {
			all = append(all, lb)
		}
	}
	slices.SortFunc(all, func(a, b *LoadBalancer) int { return a.Key.Compare(b.Key) })
	return all
}

// deleteUnused deletes our endpoints that are no longer needed.
func (p *pass) deleteUnused(w *work) {
	for _, e := range w.unused {
		if _, known := p.released[e.ID]; !known {
			p.released[e.ID] = leftoverName("", Key{})
		}
	}
	for _, u := range w.units {
		for _, a := range u.releasedAddrs {
			if e := p.model.endpointAt(a, Remote); e != nil {
				p.released[e.ID] = u.name
			}
		}
	}
	var unused []*Endpoint
	for id := range p.released {
		e := p.model.endpoint(id)
		if e != nil && p.isUnused(e, w) {
			unused = append(unused, e)
		}
	}
	slices.SortFunc(unused, func(a, b *Endpoint) int { return a.Addrs[0].Compare(b.Addrs[0]) })
	for _, e := range unused {
		p.removeEndpoint(e, p.released[e.ID])
	}
}

// isUnused reports whether e is ours and only load balancers may still need it.
func (p *pass) isUnused(e *Endpoint, w *work) bool {
	switch {
	case len(e.Addrs) == 0 || !ownsEndpoint(e):
		return false
	case !e.Remote: // a source VIP, which load balancers refer to by its address
		return slices.Contains(w.unused, e) && !p.usedAsSourceVIP(e)
	}
	return e.Network != p.model.network || !slices.ContainsFunc(e.Addrs, func(a netip.Addr) bool { return p.retains(a, w) }) || slices.Contains(w.unused, e)
}

// retains reports whether the remote endpoint with address a stays although no load
// balancer has it. Connections to a terminating or unready pod need it
// (microsoft/Windows-Containers#631). If a pod of this node received the address, the
// remote endpoint must be deleted (kubernetes/kubernetes#130963).
func (p *pass) retains(a netip.Addr, w *work) bool {
	return w.inUse(a) || w.listed(a) && p.model.endpointAt(a, Local) == nil
}

// usedAsSourceVIP reports whether a load balancer of any owner uses e as its source VIP.
func (p *pass) usedAsSourceVIP(e *Endpoint) bool {
	return len(p.balancers(func(lb *LoadBalancer) bool { return e.HasAddr(lb.SourceVIP) })) > 0
}

// removeEndpoint deletes e unless a load balancer of any owner has it.
func (p *pass) removeEndpoint(e *Endpoint, n service.PortName) {
	if p.fatal != nil || p.model.refCount(e.ID) > 0 || p.uncertain[e.ID] {
		return
	}
	if err := p.driver.DeleteEndpoint(p.ctx, e.ID); err != nil && !errors.Is(err, ErrNotFound) {
		p.fail(n, err)
		return
	}
	p.addChange(service.PortName{}, "- endpoint %s", e.describe())
	p.model.removeEndpoint(e)
	if !p.dry {
		p.host.release(e.ID)
	}
}

// leftoverName returns a name for an object that belongs to no Service of the snapshot.
func leftoverName(purpose string, k Key) service.PortName {
	if n := service.ParsePortName(purpose); n != (service.PortName{}) {
		n.Protocol = k.Protocol
		return n
	}
	return service.PortName{Namespace: unknownNamespace, Name: "leftover"}
}

// unknownNamespace is the namespace in a name that stands for no known Service.
const unknownNamespace = "-"

// formatEndpoints formats the addresses of endpoints.
func (p *pass) formatEndpoints(ids []string) string {
	return "[" + strings.Join(p.endpointTexts(ids), " ") + "]"
}

func (p *pass) endpointTexts(ids []string) []string {
	var all []netip.Addr
	var odd []string
	for _, id := range ids {
		e := p.model.endpoint(id)
		switch {
		case e == nil:
			odd = append(odd, "missing:"+id)
		case len(e.Addrs) == 0:
			odd = append(odd, e.Name)
		default:
			all = append(all, e.addrIn(p.family))
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	var texts []string
	for _, a := range all {
		texts = append(texts, a.String())
	}
	return append(texts, odd...)
}

// addrIn returns the address of e in family f, otherwise its first one.
func (e *Endpoint) addrIn(f service.Family) netip.Addr {
	for _, a := range e.Addrs {
		if service.FamilyOf(a) == f {
			return a
		}
	}
	return e.Addrs[0]
}

// formatDiff formats the difference between two sorted lists of endpoints, by address:
// before Apply, endpoints have other IDs.
func (p *pass) formatDiff(from, to []string) string {
	var parts []string
	for _, text := range p.endpointTexts(notIn(from, to)) {
		parts = append(parts, "-"+text)
	}
	for _, text := range p.endpointTexts(notIn(to, from)) {
		parts = append(parts, "+"+text)
	}
	return "[" + strings.Join(parts, " ") + "]"
}

// has reports whether the sorted list all has x.
func has(all []string, x string) bool {
	_, found := slices.BinarySearch(all, x)
	return found
}

// notIn returns the elements of all that others lacks. Both are sorted.
func notIn(all, others []string) []string {
	var rest []string
	for _, x := range all {
		for len(others) > 0 && others[0] < x {
			others = others[1:]
		}
		if len(others) == 0 || others[0] != x {
			rest = append(rest, x)
		}
	}
	return rest
}

// dryRunDriver is the driver of dry passes. Every call succeeds and has no effect.
type dryRunDriver struct{ created int }

func (d *dryRunDriver) id() string {
	d.created++
	return fmt.Sprintf("new-%08d", d.created)
}

func (d *dryRunDriver) List(context.Context, ObjectKinds) (Listing, error) { return Listing{}, nil }

func (d *dryRunDriver) CreateEndpoint(_ context.Context, e Endpoint) (Endpoint, error) {
	e.ID = d.id()
	return e, nil
}

func (d *dryRunDriver) HasEndpoint(context.Context, string) (bool, error) { return true, nil }

func (d *dryRunDriver) DeleteEndpoint(context.Context, string) error { return nil }

func (d *dryRunDriver) CreateLoadBalancer(_ context.Context, lb LoadBalancer) (LoadBalancer, error) {
	lb.ID = d.id()
	return lb, nil
}

func (d *dryRunDriver) UpdateLoadBalancer(_ context.Context, lb LoadBalancer) (LoadBalancer, error) {
	return lb, nil
}

func (d *dryRunDriver) PortsLeft(context.Context, Key) (bool, error) { return true, nil }

func (d *dryRunDriver) DeleteLoadBalancer(context.Context, LoadBalancer) error { return nil }
