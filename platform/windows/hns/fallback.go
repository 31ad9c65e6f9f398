// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"errors"
	"slices"
)

// createBalancer creates lb, or what is left of it, which it returns, where pods of
// this node have gone or are not on the switch yet. Without is what then lacks, and
// before are the endpoints of the load balancer that it replaces.
func (p *pass) createBalancer(lb *LoadBalancer, before []string) (created *LoadBalancer, id string, partialErr, err error) {
	id, err = p.driver.CreateLoadBalancer(p.ctx, *lb)
	var left []string
	switch {
	case errors.Is(err, ErrNotFound):
		left = p.existingEndpoints(lb.Endpoints)
	case isSwitchPortMissing(err):
		left, partialErr = p.attachedEndpoints(lb.Endpoints, before), err
	}
	if len(left) == 0 || len(left) == len(lb.Endpoints) {
		return lb, id, nil, err
	}
	if partialErr != nil {
		p.host.startBackoff(slices.DeleteFunc(slices.Clone(lb.Endpoints), func(id string) bool { return slices.Contains(left, id) }))
	}
	lb = lb.withEndpoints(left)
	id, err = p.driver.CreateLoadBalancer(p.ctx, *lb)
	return lb, id, partialErr, err
}

// updateBalancer is the like of createBalancer for a change in place.
func (p *pass) updateBalancer(lb LoadBalancer, before []string) (sent, got LoadBalancer, partialErr, err error) {
	got, err = p.driver.UpdateLoadBalancer(p.ctx, lb)
	if !isSwitchPortMissing(err) {
		return lb, got, nil, err
	}
	left := p.attachedEndpoints(lb.Endpoints, before)
	if len(left) == 0 || len(left) == len(lb.Endpoints) {
		return lb, got, nil, err
	}
	lb.Endpoints, partialErr = left, err
	got, err = p.driver.UpdateLoadBalancer(p.ctx, lb)
	return lb, got, partialErr, err
}

// isSwitchPortMissing reports that HNS refuses a load balancer because an endpoint of it,
// HNS does not say which, has no port on the switch yet.
func isSwitchPortMissing(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Code == 0x803b0007
}

// attachedEndpoints returns the endpoints that are surely on the switch: those elsewhere need
// no port there, and others are in load balancers.
func (p *pass) attachedEndpoints(ids, before []string) []string {
	return slices.DeleteFunc(slices.Clone(ids), func(id string) bool {
		e := p.model.endpoint(id)
		return (e == nil || !e.Remote) && !slices.Contains(before, id) && p.model.refCount(id) == 0
	})
}

// existingEndpoints returns the endpoints without those of this node that are gone. The
// network plugin removes them and tells nobody, and till all is listed anew the
// Service can have what is left.
func (p *pass) existingEndpoints(ids []string) []string {
	return slices.DeleteFunc(slices.Clone(ids), func(id string) bool {
		e := p.model.endpoint(id)
		if e == nil || e.Remote {
			return false
		}
		has, err := p.driver.HasEndpoint(p.ctx, id)
		if has || err != nil {
			return false
		}
		p.model.removeEndpoint(e)
		p.stale = true
		return true
	})
}
