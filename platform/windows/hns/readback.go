// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"context"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

// ReadBack returns the objects that HNS holds for this proxy, and those that it would hold
// for want, in the text and order of Render. It changes nothing.
func (b *Backend) ReadBack(ctx context.Context, want *service.Snapshot) (held, wanted reconcile.Objects, err error) {
	p, err := b.planAll(ctx, want)
	if err != nil {
		return nil, nil, err
	}
	return p.objects(newDryPass(ctx, b.host, &p.next.site, b.family, p.next.model)), p.objects(p.dry), nil
}

// objects returns the objects of the model of at: first those of Service ports, then others
// that this proxy made.
func (p *plan) objects(at *pass) reconcile.Objects {
	b, d := p.backend, &rendering{}
	d.addObjects(b.family, p, at)
	desired := map[Key]bool{}
	for _, u := range p.work.units {
		for _, w := range u.desired {
			desired[w.Key] = true
		}
	}
	for _, lb := range p.next.model.sortedBalancers(b.family) {
		if !desired[lb.Key] && at.model.balancer(lb.Key) != nil && b.isLeftover(p.next, lb) {
			d.LoadBalancers = append(d.LoadBalancers, at.rendered(lb, service.PortName{}))
		}
	}
	for _, e := range p.next.model.sortedRemotes(b.family) {
		if ownsEndpoint(e) && at.model.endpoint(e.ID) != nil {
			d.Endpoints = append(d.Endpoints, newRenderedEndpoint(e, b.family))
		}
	}
	d.sortEndpoints()
	return d.objects()
}
