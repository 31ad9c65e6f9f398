// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"context"
	"errors"
	"time"

	"kubeproxy/common/service"
)

// listingTTL is how long a listing serves the other family, too, whose sync begins about then.
const listingTTL = 2 * time.Second

// list lists everything. A family never receives the same listing twice.
func (h *Host) list(ctx context.Context, f service.Family) (Listing, error) {
	h.listLock <- struct{}{}
	defer func() { <-h.listLock }()
	l, known, fresh := h.cachedListing(f)
	if fresh {
		return l, nil
	}
	l, err := h.driver.List(ctx, All) // it may take long, so h.mu is not held
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil {
		h.listed = time.Time{}
		return Listing{}, err
	}
	h.pruneRecord(l, known)
	h.listing, h.listed, h.seenBy, h.pending = l, h.now(), [2]bool{}, nil
	h.seenBy[f] = true
	return l, nil
}

// cachedListing returns the listing of the other family if it is recent. Otherwise it
// returns the recorded IDs to compare with a new one.
func (h *Host) cachedListing(f service.Family) (l Listing, known []string, fresh bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.listed.IsZero() || h.seenBy[f] || h.listingEpoch != h.writeEpoch || h.now().Sub(h.listed) >= listingTTL {
		h.listingEpoch = h.writeEpoch
		return Listing{}, h.recordedIDs(), false
	}
	h.seenBy[f] = true
	return h.listing, nil, true
}

func (h *Host) onListed(f service.Family, touched func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.touched[f] = touched
}

// listFor returns the listing that runs or has just ended, never one twice, else a new one.
func (h *Host) listFor(ctx context.Context, f service.Family) *pendingList {
	h.mu.Lock()
	defer h.mu.Unlock()
	if l := h.pending; l != nil && !l.seen[f] && (l.ended.IsZero() || h.now().Sub(l.ended) < listingTTL) {
		return l
	}
	l := &pendingList{begun: time.Now(), done: make(chan struct{}), wrote: map[string]bool{}}
	h.pending = l
	go h.runList(withoutWaiting(context.WithoutCancel(ctx)), l, h.now(), h.recordedIDs())
	return l
}

// pendingNow returns the latest listing, nil if it is out of date.
func (h *Host) pendingNow() *pendingList {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.pending
}

// runList lists.
func (h *Host) runList(ctx context.Context, l *pendingList, start time.Time, known []string) {
	listing, err := h.driver.List(ctx, All)
	h.mu.Lock()
	defer h.mu.Unlock()
	defer close(l.done)
	l.listing, l.err, l.ended = listing, err, h.now()
	l.took = l.ended.Sub(start)
	if h.pending != l { // a newer listing is used
		return
	}
	if err == nil {
		h.pruneRecord(listing, without(known, l.wrote))
	}
	for _, touched := range h.touched {
		if touched != nil && time.Since(l.begun) > h.patience {
			touched()
		}
	}
}

func without(all []string, these map[string]bool) []string {
	var rest []string
	for _, x := range all {
		if !these[x] {
			rest = append(rest, x)
		}
	}
	return rest
}

// await reports whether l ends in time.
func (l *pendingList) await(ctx context.Context, wait time.Duration) bool {
	timer := time.NewTimer(max(wait, 0))
	defer timer.Stop()
	select {
	case <-l.done:
		return true
	default:
	}
	select {
	case <-l.done:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	return false
}

// maxSpoiled is how many listings in a row may be spoiled. Then changes wait for the next one.
const maxSpoiled = 5

// countSpoiled returns how many listings in a row, up to l, were spoiled: each failed because
// an object disappeared meanwhile, perhaps by a change of ours.
func (h *Host) countSpoiled(l *pendingList) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.spoiled++; !errors.Is(l.err, ErrNotFound) || len(l.wrote) == 0 {
		h.spoiled = 0
	}
	return h.spoiled
}

// since returns what HNS holds, for one family: the listing l, except for objects that
// the family wrote since l began, which come from m, as all endpoints do if it has a newer
// listing of these. It is not ok if l is out of date.
func (h *Host) since(l *pendingList, f service.Family, m *model, relisted bool) (_ Listing, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	l.seen[f] = true
	if h.pending != l {
		return Listing{}, false
	}
	if len(l.wrote) == 0 && !relisted {
		return l.listing, true
	}
	merged := Listing{Version: l.listing.Version, Networks: l.listing.Networks}
	wroteEndpoint := func(e *Endpoint) bool {
		return relisted || l.wrote[e.ID] && len(e.Addrs) > 0 && service.FamilyOf(e.Addrs[0]) == f
	}
	wroteBalancer := func(lb *LoadBalancer) bool {
		if lb.Family != f || l.wrote[lb.ID] {
			return lb.Family == f
		}
		// Where only HNS refused to create one, another program has made lb.
		return l.wrote[lb.Address.String()] && m.balancer(lb.Address) != nil
	}
	for i := range l.listing.Endpoints {
		if e := &l.listing.Endpoints[i]; !wroteEndpoint(e) {
			merged.Endpoints = append(merged.Endpoints, *e)
		}
	}
	for i := range l.listing.LoadBalancers {
		if lb := &l.listing.LoadBalancers[i]; !wroteBalancer(lb) {
			merged.LoadBalancers = append(merged.LoadBalancers, *lb)
		}
	}
	for _, e := range m.endpoints {
		if e != nil && wroteEndpoint(e) {
			merged.Endpoints = append(merged.Endpoints, *e)
		}
	}
	for _, lb := range m.balancers {
		if lb != nil && wroteBalancer(lb) {
			merged.LoadBalancers = append(merged.LoadBalancers, *lb)
		}
	}
	return merged, true
}
