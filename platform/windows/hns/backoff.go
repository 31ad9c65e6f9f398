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

// backoff is how long no load balancer that works is deleted for the sake of an
// endpoint that HNS refuses.
type backoff struct {
	delay time.Duration
	until time.Time
}

// How long an endpoint rests the first time, and at most.
const minBackoff, maxBackoff = 2 * time.Second, 5 * time.Minute

// startBackoff notes that HNS refuses the endpoints now.
func (h *Host) startBackoff(ids []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.endpointBackoff) >= 1024 { // of pods that have gone, most of them
		clear(h.endpointBackoff)
	}
	for _, id := range ids {
		h.endpointBackoff[id] = h.endpointBackoff[id].next(h.now(), minBackoff)
	}
}

// resetBackoff notes that HNS accepts the endpoints.
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

// replaceSkippingBackoff makes HNS hold lb, with have in its place and to be replaced for any
// change, but for endpoints that rest: each attempt to add one costs the Service
// its load balancer for a moment.
func (p *pass) replaceSkippingBackoff(have, lb *LoadBalancer, n service.PortName) error {
	less := lb.withEndpoints(slices.DeleteFunc(slices.Clone(lb.Endpoints), func(id string) bool {
		return !slices.Contains(have.Endpoints, id) && p.host.inBackoff(id)
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
