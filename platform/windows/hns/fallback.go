// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"errors"
	"slices"
)

// createBalancer creates lb. If local pods were deleted, or their switch ports do not
// exist yet, it creates lb without their endpoints. It returns what it created.
// partialErr is the reason for missing endpoints. before holds the endpoints of the load
// balancer that lb replaces.
func (p *pass) createBalancer(lb *LoadBalancer, before []string) (created *LoadBalancer, id string, partialErr, err error) {
	made, err := p.driver.CreateLoadBalancer(p.ctx, *lb)
	var left []string
	switch {
	case errors.Is(err, ErrNotFound):
		left = p.existingEndpoints(lb.Endpoints)
	case isSwitchPortMissing(err):
		left, partialErr = p.attachedEndpoints(lb.Endpoints, before), err
	}
	if len(left) == 0 || len(left) == len(lb.Endpoints) {
		return lb, made.ID, nil, err
	}
	if partialErr != nil {
		p.host.startBackoff(slices.DeleteFunc(slices.Clone(lb.Endpoints), func(id string) bool { return has(left, id) }))
	}
	lb = lb.withEndpoints(left)
	made, err = p.driver.CreateLoadBalancer(p.ctx, *lb)
	return lb, made.ID, partialErr, err
}

// updateBalancer does the same as createBalancer for a change in place.
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

// isSwitchPortMissing reports whether HNS rejected a load balancer because one of its
// endpoints has no switch port yet (HCN_E_PORT_NOT_FOUND, see microsoft/hcsshim#1043).
// HNS does not name the endpoint.
func isSwitchPortMissing(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Code == 0x803b0007
}

// attachedEndpoints returns the endpoints that are certainly on the switch: remote ones
// need no port there, and others are in load balancers already.
func (p *pass) attachedEndpoints(ids, before []string) []string {
	return slices.DeleteFunc(slices.Clone(ids), func(id string) bool {
		e := p.model.endpoint(id)
		return (e == nil || !e.Remote) && !has(before, id) && p.model.refCount(id) == 0
	})
}

// existingEndpoints returns ids without the local endpoints that no longer exist. The
// network plugin deletes them without a notification. Until the next listing the Service
// uses the remaining ones.
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
