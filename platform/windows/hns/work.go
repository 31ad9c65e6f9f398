// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

// unit is the work for a Service port: its desired state, and objects it no longer needs.
type unit struct {
	name          service.PortName
	desired       []DesiredLoadBalancer
	vips          []Target
	deletes       []*LoadBalancer
	releasedAddrs []netip.Addr // addresses whose remote endpoints may be unused
}

// work is the input of a pass.
type work struct {
	units []unit
	// misrouted are our remote endpoints with a wrong route.
	misrouted []*Endpoint
	// unused are endpoints that may be unused.
	unused []*Endpoint
	// inUse reports whether an endpoint is needed other than by load balancers.
	inUse func(netip.Addr) bool
	// listed reports whether an EndpointSlice lists an address of another node.
	listed func(netip.Addr) bool
}

// perform applies w in an order that interrupts no Service for long. Urgent Services come
// first. An endpoint is created before the load balancers that use it. It is deleted
// after them, when no load balancer of any owner uses it. Unneeded load balancers are
// deleted before others are created, because they occupy ports.
func (p *pass) perform(w *work) {
	slices.SortStableFunc(w.units, func(a, b unit) int {
		return cmp.Or(priority(a.name)-priority(b.name), a.name.Compare(b.name))
	})
	p.detach(w.misrouted)
	for _, u := range w.units {
		if urgent(u.name) {
			p.ensureAll(u)
		}
	}
	for _, u := range w.units {
		for _, lb := range u.deletes {
			p.drop(lb, u.name)
		}
	}
	for _, u := range w.units {
		if !urgent(u.name) {
			p.ensureAll(u)
		}
	}
	p.deleteUnused(w)
}

func priority(n service.PortName) int {
	if urgent(n) {
		return 0
	}
	return 1
}

// urgent reports whether other Services depend on this one: the API and DNS.
func urgent(n service.PortName) bool {
	api := n.Namespace == "default" && n.Name == "kubernetes"
	dns := n.Namespace == "kube-system" && slices.Contains([]string{"dns", "dns-tcp"}, n.Port)
	return api || dns
}

func (p *pass) ensureAll(u unit) {
	for _, t := range u.vips {
		if p.fatal != nil {
			return
		}
		if _, err := p.ensureEndpoint(t); err != nil {
			p.fail(u.name, err)
		}
	}
	for i := range u.desired {
		if p.fatal != nil {
			return
		}
		if err := p.ensure(&u.desired[i]); err != nil {
			p.fail(u.name, err)
		}
	}
}

// ensure makes HNS hold w, with the endpoints that exist, or changes nothing if none does.
func (p *pass) ensure(w *DesiredLoadBalancer) error {
	lb := w.LoadBalancer
	lb.Endpoints = make([]string, 0, len(w.Targets))
	var missing []error
	for _, t := range w.Targets {
		id, err := p.ensureEndpoint(t)
		if p.fatal != nil {
			return nil
		}
		if err != nil {
			missing = append(missing, err)
			continue
		}
		lb.Endpoints = append(lb.Endpoints, id)
	}
	slices.Sort(lb.Endpoints)
	lb.Endpoints = slices.Compact(lb.Endpoints)
	if len(lb.Endpoints) == 0 && !w.Shared {
		return errors.Join(missing...)
	}
	for i, err := range missing {
		missing[i] = &reconcile.DegradedError{Err: err}
	}
	if len(lb.Endpoints) > 0 {
		missing = append(missing, p.ensureBalancer(&lb, w.PortName))
	}
	return errors.Join(missing...)
}

// ensureEndpoint returns the ID of the endpoint for t. It creates remote endpoints.
func (p *pass) ensureEndpoint(t Target) (string, error) {
	if t.Location == Root {
		return p.rootEndpoint()
	}
	remote := p.model.endpointAt(t.Addr, Remote)
	if t.Location != Remote {
		if pod := p.model.endpointAt(t.Addr, Local); pod != nil {
			p.releaseUnnamed(remote) // it is of a pod that had the address before
			return pod.ID, nil
		}
	}
	switch {
	case t.Location == Local:
		return "", p.waitForPod(t.Addr)
	case remote == nil:
		return p.createEndpoint(t)
	case misrouted(remote, t) && !ownsEndpoint(remote):
		return "", fmt.Errorf("endpoint %s leads elsewhere, and is not ours: %s, want %s", remote.ID, remote.describe(), t.describe())
	}
	return remote.ID, nil
}

// rootEndpoint returns the ID of the node's own endpoint, which the network plugin makes.
func (p *pass) rootEndpoint() (string, error) {
	e := p.model.endpointNamed(p.site.Options.RootEndpoint)
	switch {
	case e == nil:
		p.waiting = true
		return "", pendingError(fmt.Sprintf("health checks of the load balancer cannot reach the node: network %q has no endpoint %q: want --root-hnsendpoint-name", p.site.Network.Name, p.site.Options.RootEndpoint))
	case !e.inFamily(p.family):
		p.waiting = true
		return "", pendingError(fmt.Sprintf("health checks of the load balancer cannot reach the node over %s: endpoint %q has no such address", p.family, e.Name))
	}
	return e.ID, nil
}

// waitForPod records that a pod of this node has no endpoint yet, and returns the reason.
func (p *pass) waitForPod(a netip.Addr) error {
	p.waiting = true
	p.moved = p.moved || p.dry && p.model.moved(a)
	if other := p.model.elsewhere(a); other != "" {
		return pendingError(fmt.Sprintf("endpoint %s is in network %q, not in %q, which is for Services: see the network plugin and the CNI configuration of the container runtime", a, other, p.site.Network.Name))
	}
	return pendingError(fmt.Sprintf("endpoint %s is of this node, but network %q does not have it yet: the network plugin makes it", a, p.site.Network.Name))
}

// releaseUnnamed releases e, if there is one, for no Service port in particular.
func (p *pass) releaseUnnamed(e *Endpoint) {
	if e != nil {
		p.released[e.ID] = leftoverName("", service.Address{})
	}
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

// detach removes endpoints with a wrong route from our load balancers, and deletes them.
func (p *pass) detach(misrouted []*Endpoint) {
	if len(misrouted) == 0 {
		return
	}
	wrong := map[string]bool{}
	for _, e := range misrouted {
		wrong[e.ID] = true
	}
	for _, lb := range p.model.balancersUsing(wrong) {
		if p.fatal != nil {
			return
		}
		remaining := *lb
		remaining.ID = ""
		remaining.Endpoints = slices.DeleteFunc(slices.Clone(lb.Endpoints), func(id string) bool { return wrong[id] })
		n := leftoverName(p.host.purposeOf(lb.ID), lb.Address)
		if !p.host.mayChange(lb, p.model) {
			p.fail(n, fmt.Errorf("load balancer %s, which is not ours, has an endpoint of ours that leads to the wrong node", lb.ID))
		} else if len(remaining.Endpoints) == 0 {
			p.drop(lb, n)
		} else if err := p.ensureBalancer(&remaining, n); err != nil {
			p.fail(n, err)
		}
	}
	for _, e := range misrouted {
		p.removeEndpoint(e, leftoverName("", service.Address{}))
	}
}

// deleteUnused deletes our endpoints that are no longer needed.
func (p *pass) deleteUnused(w *work) {
	for _, e := range w.unused {
		if _, known := p.released[e.ID]; !known {
			p.releaseUnnamed(e)
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
	return len(p.model.sortedBalancers(func(lb *LoadBalancer) bool { return e.HasAddr(lb.SourceVIP) })) > 0
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
