// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"kubeproxy/common/service"
)

// Host is the HNS of a node and what is known of it. The backends of both
// families share one.
type Host struct {
	driver   Driver
	store    Store
	node     string
	notify   func(string)
	now      func() time.Time
	listLock chan struct{} // full while somebody lists

	// patience is how long a resync waits for its listing, 0 for as long as it
	// takes.
	patience time.Duration

	mu           sync.Mutex
	spoils       int                       // looks in a row that changes spoilt
	looking      *look                     // the latest, nil if another listing came after it
	touched      map[service.Family]func() // called after looks that nobody waited for
	listing      Listing
	listed       time.Time
	seenBy       [2]bool         // families that have seen listing
	writeEpoch   int             // counts what was written
	listingEpoch int             // epoch when listing began
	recentlyGone map[string]bool // what was ours until listing showed that it is gone
	record       record
	loaded       bool
	dirty        bool
	saveErrText  string // why the record could not be saved, so that it is said once
	reported     map[string]bool
	// inPlace is false once a change in place was ignored.
	inPlace         bool
	endpointBackoff map[string]backoff // endpoints by ID
	// refusals and halts are load balancers that HNS refused, and Services that
	// lost one by that.
	refusals       map[Key]refusal
	serviceBackoff map[serviceName]backoff
	// portBackoff are pools without ports, and lacking is what was said of them for
	// each family.
	portBackoff   map[portPool]backoff
	shortageTexts [2]string
	onShortage    func(text string)
}

// NewHost returns the Host of the named node. Note is told of decisions, each
// a sentence, once.
func NewHost(d Driver, s Store, node string, notify func(string)) *Host {
	h := &Host{
		store: s, node: node, notify: notify, now: time.Now, listLock: make(chan struct{}, 1), reported: map[string]bool{}, inPlace: true,
		endpointBackoff: map[string]backoff{}, refusals: map[Key]refusal{}, serviceBackoff: map[serviceName]backoff{}, portBackoff: map[portPool]backoff{},
		patience: patience, touched: map[service.Family]func(){},
	}
	h.driver = &noting{d, h}
	return h
}

// reload reads the record and HNS again: another process has changed both.
func (h *Host) reload() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.loaded, h.listed, h.looking = false, time.Time{}, nil
}

// listingTTL is how long the listing of one family is good for the other one,
// whose round begins at about the same time.
const listingTTL = 2 * time.Second

// list lists everything. A family never gets the same listing twice.
func (h *Host) list(ctx context.Context, f service.Family) (Listing, error) {
	h.listLock <- struct{}{}
	defer func() { <-h.listLock }()
	l, known, fresh := h.cachedListing(f)
	if fresh {
		return l, nil
	}
	l, err := h.driver.List(ctx, All) // which may take long, so without the lock
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil {
		h.listed = time.Time{}
		return Listing{}, err
	}
	h.pruneRecord(l, known)
	h.listing, h.listed, h.seenBy, h.looking = l, h.now(), [2]bool{}, nil
	h.seenBy[f] = true
	return l, nil
}

// cachedListing returns the other family's listing if it is fresh, else what is to be
// settled after a new one.
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

// report notes a decision unless it was the last word on its subject.
func (h *Host) report(text string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.reportLocked(text)
}

func (h *Host) reportLocked(text string) {
	if text == "" || h.reported[text] {
		return
	}
	if len(h.reported) >= 256 { // what was said long ago may be said again
		clear(h.reported)
	}
	h.reported[text] = true
	if h.notify != nil {
		h.notify(text)
	}
}

func (h *Host) load() {
	if h.loaded {
		return
	}
	h.loaded = true
	var note string
	h.record, note = readRecord(h.store, h.node)
	h.reportLocked(note)
}

// owns reports that we made the load balancer or endpoint with this ID.
func (h *Host) owns(id string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.load()
	_, lb := h.record.LoadBalancers[id]
	_, e := h.record.Endpoints[id]
	return lb || e
}

// ownedUntilListing reports that the object with this ID is ours or was until the latest
// listing.
func (h *Host) ownedUntilListing(id string) bool {
	if h.owns(id) {
		return true
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.recentlyGone[id]
}

// isPending reports that we meant to make a load balancer with this key.
func (h *Host) isPending(k Key) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.load()
	_, yes := h.record.Pending[k.String()]
	return yes
}

// purposeOf says what the load balancer with this ID is for, as far as known.
func (h *Host) purposeOf(id string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.load()
	return h.record.LoadBalancers[id]
}

// recordBalancer notes a load balancer of ours.
func (h *Host) recordBalancer(lb *LoadBalancer, purpose string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.load()
	if h.record.LoadBalancers[lb.ID] != purpose {
		h.record.LoadBalancers[lb.ID] = purpose
		h.markChanged()
	}
}

// markChanged notes that objects of ours came or went: the record is to be saved,
// and no listing that began before is good for anybody.
func (h *Host) markChanged() {
	h.dirty = true
	h.writeEpoch++
}

// markWritten notes that a family is done writing, be it changes in place that the
// record does not show: a listing that began before is not good any more.
func (h *Host) markWritten() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.writeEpoch++
}

// confirm forgets that load balancers were about to be made: their IDs are
// known.
func (h *Host) confirm(keys map[Key]bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.load()
	if len(h.record.Pending) == 0 {
		return
	}
	for k := range keys {
		if _, intended := h.record.Pending[k.String()]; intended {
			delete(h.record.Pending, k.String())
			h.dirty = true
		}
	}
}

func (h *Host) recordEndpoint(e *Endpoint) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.load()
	if _, known := h.record.Endpoints[e.ID]; !known && len(e.Addrs) > 0 {
		h.record.Endpoints[e.ID] = e.Addrs[0].String()
		h.markChanged()
	}
}

// release forgets an object that is gone.
func (h *Host) release(id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.load()
	before := len(h.record.LoadBalancers) + len(h.record.Endpoints)
	delete(h.record.LoadBalancers, id)
	delete(h.record.Endpoints, id)
	if len(h.record.LoadBalancers)+len(h.record.Endpoints) != before {
		h.markChanged()
	}
}

// clearRecord forgets everything, for a node that is to be left for good.
func (h *Host) clearRecord() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.load()
	h.record, h.dirty = newRecord(h.node), true
}

// recordPending notes load balancers that are about to be made, before they are.
func (h *Host) recordPending(keys map[Key]service.PortName) {
	if len(keys) == 0 {
		return
	}
	h.mu.Lock()
	h.load()
	added := false
	for k, n := range keys {
		if _, known := h.record.Pending[k.String()]; !known {
			h.record.Pending[k.String()], h.dirty, added = n.String(), true, true
		}
	}
	h.mu.Unlock()
	if added {
		h.save()
	}
}

// recordedIDs returns what is in the record, to be settled after a listing that
// begins now.
func (h *Host) recordedIDs() []string {
	h.load()
	var all []string
	for _, of := range []map[string]string{h.record.LoadBalancers, h.record.Endpoints, h.record.Pending} {
		all = slices.AppendSeq(all, maps.Keys(of))
	}
	return all
}

// pruneRecord forgets what was known before a listing and is not in it. An HNS without
// any network may still be coming up, and have more later.
func (h *Host) pruneRecord(l Listing, known []string) {
	if len(l.Networks) == 0 {
		return
	}
	present := map[string]bool{}
	h.recentlyGone = map[string]bool{}
	for _, e := range l.Endpoints {
		present[e.ID] = true
	}
	for _, lb := range l.LoadBalancers {
		present[lb.ID], present[lb.Key.String()] = true, true
	}
	for _, x := range known {
		if present[x] {
			continue
		}
		delete(h.record.LoadBalancers, x)
		delete(h.record.Endpoints, x)
		delete(h.record.Pending, x)
		h.recentlyGone[x], h.dirty = true, true
	}
}

// save writes the record if it changed. That it cannot be written is no
// reason not to forward traffic.
func (h *Host) save() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.dirty {
		return
	}
	var b []byte
	if !h.record.empty() {
		b, _ = json.MarshalIndent(h.record, "", " ") // maps of strings
	}
	if err := h.store.Save(b); err != nil {
		if h.saveErrText != err.Error() {
			h.saveErrText = err.Error()
			h.reportLocked(fmt.Sprintf("The state file cannot be written; after a restart, what we made is known by its looks: %v", err))
		}
		return
	}
	h.dirty, h.saveErrText = false, ""
}

// supportsInPlace reports that this HNS does what it says when a load balancer
// is changed.
func (h *Host) supportsInPlace(v Version) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.inPlace && v.Features().Modify
}

func (h *Host) disableInPlace(v Version) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.inPlace = false
	h.reportLocked(fmt.Sprintf("HNS %s does not change load balancers in place; they are deleted and made again instead", v))
}
