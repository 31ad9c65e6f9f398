// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

// backoff is the period in which no working load balancer is deleted for an endpoint that
// HNS rejects.
type backoff struct {
	delay time.Duration
	until time.Time
}

// minBackoff and maxBackoff are the first and the longest period.
const minBackoff, maxBackoff = 2 * time.Second, 5 * time.Minute

// startBackoff records that HNS now rejects the endpoints.
func (h *Host) startBackoff(ids []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.endpointBackoff) >= 1024 { // mostly of deleted pods
		clear(h.endpointBackoff)
	}
	for _, id := range ids {
		h.endpointBackoff[id] = h.endpointBackoff[id].next(h.now(), minBackoff)
	}
}

// resetBackoff records that HNS accepts the endpoints.
func (h *Host) resetBackoff(ids []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.endpointBackoff) == 0 {
		return
	}
	for _, id := range ids {
		delete(h.endpointBackoff, id)
	}
}

func (h *Host) inBackoff(id string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.now().Before(h.endpointBackoff[id].until)
}

// replaceSkippingBackoff replaces have with lb, without the endpoints in backoff. The
// load balancer cannot be changed in place, so each attempt to add an endpoint removes
// the Service's load balancer for a moment.
func (p *pass) replaceSkippingBackoff(have, lb *LoadBalancer, n service.PortName) error {
	less := lb.withEndpoints(slices.DeleteFunc(slices.Clone(lb.Endpoints), func(id string) bool {
		return !has(have.Endpoints, id) && p.host.inBackoff(id)
	}))
	if len(less.Endpoints) == 0 || len(less.Endpoints) == len(lb.Endpoints) {
		return p.replace(have, lb, n)
	}
	err := error(&reconcile.DegradedError{Err: pendingError(fmt.Sprintf("HNS refused load balancer %s with %s, whose switch port is not there yet; it is tried again in a while", lb.Key, p.formatDiff(less.Endpoints, lb.Endpoints)))})
	if have.equal(less) {
		have.Kind = lb.Kind
		p.recordOwned(have, n)
		return err
	}
	return errors.Join(p.replace(have, less, n), err)
}
