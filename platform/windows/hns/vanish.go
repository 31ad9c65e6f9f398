// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"errors"
	"slices"
)

// createBalancer creates lb, or what is left of it, which it returns, where pods of
// this node have gone.
func (p *pass) createBalancer(lb *LoadBalancer) (made *LoadBalancer, id string, err error) {
	id, err = p.driver.CreateLoadBalancer(p.ctx, *lb)
	if !errors.Is(err, ErrNotFound) {
		return lb, id, err
	}
	left := p.present(lb.Endpoints)
	if len(left) == 0 || len(left) == len(lb.Endpoints) {
		return lb, id, err
	}
	lb = lb.with(left)
	id, err = p.driver.CreateLoadBalancer(p.ctx, *lb)
	return lb, id, err
}

// present returns the endpoints without those of this node that are gone. The
// network plugin removes them and tells nobody, and till all is listed anew the
// Service can have what is left.
func (p *pass) present(ids []string) []string {
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
