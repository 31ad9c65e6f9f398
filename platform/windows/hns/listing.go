// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"kubeproxy/common/service"
)

// listPatience is how long a round that is a resync waits for a listing. One that
// takes longer goes on while changes are programmed, and a later round uses it.
const listPatience = 100 * time.Millisecond

// LoopbackDSR counts the pods in a network, and those of them that can connect to themselves with direct
// server return.
func (l *Listing) LoopbackDSR(network string) (pods, ready int) {
	for i := range l.Endpoints {
		e := &l.Endpoints[i]
		if e.Network != network || !e.usedByPod() {
			continue
		}
		if pods++; e.LoopbackDSR {
			ready++
		}
	}
	return pods, ready
}

// PodsElsewhere returns the addresses of pods in networks other than the given one, by the name of the network.
func (l *Listing) PodsElsewhere(network string) map[string][]netip.Addr {
	names, found := map[string]string{}, map[string][]netip.Addr{}
	for _, n := range l.Networks {
		names[n.ID] = n.Name
	}
	for i := range l.Endpoints {
		if e := &l.Endpoints[i]; e.Network != network && e.usedByPod() {
			name := cmp.Or(names[e.Network], e.Network)
			found[name] = append(found[name], e.Addrs...)
		}
	}
	return found
}

// pendingList is a listing that goes on while changes are programmed. Its information
// about objects that were written meanwhile is not used.
type pendingList struct {
	begun   time.Time
	done    chan struct{}   // closed when the rest is set
	wrote   map[string]bool // IDs and keys that were written since it began
	seen    [2]bool         // families that have used it
	listing Listing
	ended   time.Time
	took    time.Duration
	err     error
}

// Watch implements reconcile.Backend. Changes by others are found when a listing ends
// that no round waited for.
func (b *Backend) Watch(ctx context.Context, touched func()) error {
	b.host.onListed(b.family, touched)
	<-ctx.Done()
	b.host.onListed(b.family, nil)
	return nil
}

func (h *Host) onListed(f service.Family, touched func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.touched[f] = touched
}

// planListed compares everything with a listing that runs in the background. Until it has
// ended, changes are planned from the model.
func (b *Backend) planListed(ctx context.Context, want *service.Snapshot) (*plan, error) {
	h := b.host
	if h.patience == 0 {
		return b.planAll(ctx, want)
	}
	l := h.listFor(ctx, b.family)
	var wait time.Duration
	if b.state.snapshot == want {
		wait = time.Until(l.begun.Add(h.patience))
	}
	if !l.await(ctx, wait) {
		return b.planChanges(ctx, want)
	}
	listing, ok := h.since(l, b.family, b.state)
	switch {
	case ok && h.invalidated(l):
		return b.planChanges(ctx, want) // and the next round begins another
	case !ok || errors.Is(l.err, ErrNotFound):
		return b.planAll(ctx, want)
	}
	before := b.state
	b.state = nil
	if l.err != nil {
		return nil, fmt.Errorf("list what HNS holds: %w", l.err)
	}
	p, err := b.planFrom(ctx, want, before, held{listing, l.ended, l.took})
	if err == nil && p.dry.waiting { // the endpoint may have come after the listing had passed it
		err = b.relistAll(ctx, p, before)
	}
	return p, err
}

// relistAll lists the endpoints again for p, which was planned from a listing.
func (b *Backend) relistAll(ctx context.Context, p *plan, before *state) error {
	if err := b.relist(ctx, p.next); err != nil {
		return err
	}
	p.work = b.workAll(p.next, before)
	b.dryRun(ctx, p)
	return nil
}

// listFor returns the listing that runs or has just ended, else a new one. A family never
// gets the same one twice.
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

// maxInvalidated is how many consecutive listings may fail because of changes.
const maxInvalidated = 5

// invalidated records that l failed because an object disappeared meanwhile, perhaps by a
// change of ours. After too many such failures, changes wait for the next listing.
func (h *Host) invalidated(l *pendingList) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !errors.Is(l.err, ErrNotFound) || len(l.wrote) == 0 {
		h.spoils = 0
		return false
	}
	h.spoils++
	return h.spoils <= maxInvalidated
}

// since returns what HNS holds, for one family: the listing l, except for objects that
// the family wrote since l began, which come from the model. It is not ok if l is out of
// date.
func (h *Host) since(l *pendingList, f service.Family, before *state) (_ Listing, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	l.seen[f] = true
	if h.pending != l {
		return Listing{}, false
	}
	if len(l.wrote) == 0 && before.relisted != l {
		return l.listing, true
	}
	merged := Listing{Version: l.listing.Version, Networks: l.listing.Networks}
	wroteEndpoint := func(e *Endpoint) bool {
		return before.relisted == l || l.wrote[e.ID] && len(e.Addrs) > 0 && service.FamilyOf(e.Addrs[0]) == f
	}
	wroteBalancer := func(lb *LoadBalancer) bool {
		if lb.Family != f || l.wrote[lb.ID] {
			return lb.Family == f
		}
		// Where only HNS refused to create one, another program has made lb.
		return l.wrote[lb.Key.String()] && before.model.balancer(lb.Key) != nil
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
	for _, e := range before.model.endpoints {
		if e != nil && wroteEndpoint(e) {
			merged.Endpoints = append(merged.Endpoints, *e)
		}
	}
	for _, lb := range before.model.balancers {
		if lb != nil && wroteBalancer(lb) {
			merged.LoadBalancers = append(merged.LoadBalancers, *lb)
		}
	}
	return merged, true
}

// noteWrite notes objects that are written, by ID or key.
func (h *Host) noteWrite(objects ...string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.pending == nil {
		return
	}
	for _, x := range objects {
		h.pending.wrote[x] = true
	}
}

// writeRecorder is a Driver that notes each write before and after the call, because a
// listing may begin or end during the call. Load balancers are listed as they were asked for.
type writeRecorder struct {
	Driver
	host *Host
}

// List implements Driver.
func (n *writeRecorder) List(ctx context.Context, what ObjectKinds) (Listing, error) {
	l, err := n.Driver.List(ctx, what)
	n.host.asAsked(l.LoadBalancers)
	n.host.endpointsAsAsked(l.Endpoints)
	return l, err
}

// CreateEndpoint implements Driver.
func (n *writeRecorder) CreateEndpoint(ctx context.Context, e Endpoint) (Endpoint, error) {
	made, err := n.Driver.CreateEndpoint(ctx, e)
	n.host.noteWrite(made.ID)
	if err == nil {
		made = n.host.noteEndpoint(e, made)
	}
	return made, err
}

// DeleteEndpoint implements Driver.
func (n *writeRecorder) DeleteEndpoint(ctx context.Context, id string) error {
	n.host.noteWrite(id)
	defer n.host.noteWrite(id)
	return n.Driver.DeleteEndpoint(ctx, id)
}

// CreateLoadBalancer implements Driver.
func (n *writeRecorder) CreateLoadBalancer(ctx context.Context, lb LoadBalancer) (LoadBalancer, error) {
	n.host.noteWrite(lb.Key.String())
	made, err := n.Driver.CreateLoadBalancer(ctx, lb)
	n.host.noteWrite(lb.Key.String(), made.ID)
	if err == nil {
		n.host.noteMade(&lb, &made)
	}
	return made, err
}

// UpdateLoadBalancer implements Driver.
func (n *writeRecorder) UpdateLoadBalancer(ctx context.Context, lb LoadBalancer) (LoadBalancer, error) {
	n.host.noteWrite(lb.ID, lb.Key.String())
	defer n.host.noteWrite(lb.ID, lb.Key.String())
	now, err := n.Driver.UpdateLoadBalancer(ctx, lb)
	got := []LoadBalancer{now}
	n.host.asAsked(got)
	return got[0], err
}

// DeleteLoadBalancer implements Driver.
func (n *writeRecorder) DeleteLoadBalancer(ctx context.Context, lb LoadBalancer) error {
	n.host.noteWrite(lb.ID, lb.Key.String())
	defer n.host.noteWrite(lb.ID, lb.Key.String())
	return n.Driver.DeleteLoadBalancer(ctx, lb)
}
