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

// rest is how long no load balancer that works is deleted for the sake of an
// endpoint that HNS refuses.
type rest struct {
	pause time.Duration
	until time.Time
}

// How long an endpoint rests the first time, and at most.
const firstRest, longestRest = 2 * time.Second, 5 * time.Minute

// putToRest notes that HNS refuses the endpoints now.
func (h *Host) putToRest(ids []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.resting) >= 1024 { // of pods that have gone, most of them
		clear(h.resting)
	}
	for _, id := range ids {
		h.resting[id] = h.resting[id].longer(h.now(), firstRest)
	}
}

// awaken notes that HNS accepts the endpoints.
func (h *Host) awaken(ids []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.resting) == 0 {
		return
	}
	for _, id := range ids {
		delete(h.resting, id)
	}
}

func (h *Host) rests(id string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.now().Before(h.resting[id].until)
}

// spare makes HNS hold lb, with have in its place and to be replaced for any
// change, but for endpoints that rest: each attempt to add one costs the Service
// its load balancer for a moment.
func (p *pass) spare(have, lb *LoadBalancer, n service.PortName) error {
	less := lb.with(slices.DeleteFunc(slices.Clone(lb.Endpoints), func(id string) bool {
		return !slices.Contains(have.Endpoints, id) && p.host.rests(id)
	}))
	if len(less.Endpoints) == 0 || len(less.Endpoints) == len(lb.Endpoints) {
		return p.replace(have, lb, n)
	}
	err := error(&reconcile.Lacking{Err: pending(fmt.Sprintf("HNS refused load balancer %s with %s, whose switch port is not there yet; it is tried again in a while", lb.Key, p.difference(less.Endpoints, lb.Endpoints)))})
	if have.same(less) {
		have.Kind = lb.Kind
		p.own(have, n)
		return err
	}
	return errors.Join(p.replace(have, less, n), err)
}
