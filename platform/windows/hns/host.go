// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"kubeproxy/common/service"
)

// Host is the HNS of a node, and what this process knows of it, shared by both families.
type Host struct {
	driver   Driver
	store    Store
	node     string
	notify   func(string)
	listLock chan struct{} // full during a listing
	backoffs

	// patience is how long a resync waits for its listing, 0 for any time.
	patience time.Duration

	mu           sync.Mutex
	spoiled      int                       // consecutive listings, see countSpoiled
	pending      *pendingList              // the latest, nil if another listing came after it
	touched      map[service.Family]func() // called after listings that no round waited for
	listing      Listing
	listed       time.Time
	seenBy       [2]bool         // families that have received listing
	writeEpoch   int             // counts writes
	listingEpoch int             // writeEpoch at the start of listing
	recentlyGone map[string]bool // IDs of our objects that are missing since the last listing
	record       record
	loaded       bool
	dirty        bool
	saveErrText  string // the last error of save, so that each is reported once
	reported     map[string]bool
	// inPlace is false once HNS ignored a change in place.
	inPlace       bool
	shortageTexts [2]string // the last reports of a lack of ports, by family
	// routes are those of all remote endpoints that were made, oddRoutes is whether HNS gives one back in another
	// form, and routesTold whether that was reported.
	routes                map[netip.Addr]*routeAnswer
	oddRoutes, routesTold bool

	onShortage func(text string)
}

// NewHost returns the Host of the named node. It calls notify once with each decision.
func NewHost(d Driver, s Store, node string, notify func(string)) *Host {
	h := &Host{
		store: s, node: node, notify: notify, backoffs: newBackoffs(), listLock: make(chan struct{}, 1), reported: map[string]bool{}, inPlace: true,
		routes: map[netip.Addr]*routeAnswer{}, patience: listPatience, touched: map[service.Family]func(){},
	}
	h.driver = intercept(d, h.recordWrites)
	return h
}

// reload discards the record and the listing, because another process changed both.
func (h *Host) reload() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.loaded, h.listed, h.pending = false, time.Time{}, nil
}

// report reports a decision, unless it did so before.
func (h *Host) report(text string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.reportLocked(text)
}

func (h *Host) reportLocked(text string) {
	if text == "" || h.reported[text] {
		return
	}
	if len(h.reported) >= 256 { // old reports may be repeated
		clear(h.reported)
	}
	h.reported[text] = true
	if h.notify != nil {
		h.notify(text)
	}
}

// locked locks h, whose record is read then, and returns what unlocks it.
func (h *Host) locked() func() {
	h.mu.Lock()
	h.load()
	return h.mu.Unlock
}

func (h *Host) load() {
	if h.loaded {
		return
	}
	h.loaded = true
	var note string
	h.record, note = readRecord(h.store, h.node)
	for a, r := range h.record.Routes {
		h.routes[a], h.oddRoutes = &r, true
	}
	h.reportLocked(note)
}

// owns reports whether this proxy created the load balancer or endpoint with this ID.
func (h *Host) owns(id string) bool {
	defer h.locked()()
	_, lb := h.record.LoadBalancers[id]
	_, e := h.record.Endpoints[id]
	return lb || e
}

// ownedUntilListing reports whether the object is ours, or was until the last listing.
func (h *Host) ownedUntilListing(id string) bool {
	if h.owns(id) {
		return true
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.recentlyGone[id]
}

// isPending reports whether the record intends a load balancer with this key.
func (h *Host) isPending(k service.Address) bool {
	defer h.locked()()
	_, yes := h.record.Pending[k.String()]
	return yes
}

// purposeOf returns the purpose of the load balancer with this ID, or "" if unknown.
func (h *Host) purposeOf(id string) string {
	defer h.locked()()
	return h.record.LoadBalancers[id]
}

// recordBalancer records a load balancer of ours.
func (h *Host) recordBalancer(lb *LoadBalancer, purpose string) {
	defer h.locked()()
	if key := lb.Address.String(); h.record.LoadBalancers[lb.ID] != purpose || h.record.Keys[lb.ID] != key {
		h.record.LoadBalancers[lb.ID], h.record.Keys[lb.ID] = purpose, key
		h.markChanged()
	}
}

// markChanged records that our objects changed: save the record, drop listings of before.
func (h *Host) markChanged() {
	h.dirty = true
	h.writeEpoch++
}

// markWritten records that a family has finished writing. Its changes in place do not
// show in the record. A listing that began before is outdated.
func (h *Host) markWritten() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.writeEpoch++
}

// confirm removes pending load balancers from the record, because their IDs are known.
func (h *Host) confirm(keys map[service.Address]bool) {
	defer h.locked()()
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
	defer h.locked()()
	if _, known := h.record.Endpoints[e.ID]; !known && len(e.Addrs) > 0 {
		h.record.Endpoints[e.ID] = e.Addrs[0].String()
		h.markChanged()
	}
}

// release removes a deleted object from the record.
func (h *Host) release(id string) {
	defer h.locked()()
	before := len(h.record.LoadBalancers) + len(h.record.Endpoints)
	delete(h.record.LoadBalancers, id)
	delete(h.record.Keys, id)
	delete(h.record.Endpoints, id)
	if len(h.record.LoadBalancers)+len(h.record.Endpoints) != before {
		h.markChanged()
	}
}

// clearRecord empties the record, for a node that the proxy leaves for good.
func (h *Host) clearRecord() {
	defer h.locked()()
	h.record, h.dirty = newRecord(h.node), true
}

// recordPending records load balancers before they are created.
func (h *Host) recordPending(keys map[service.Address]service.PortName) {
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

// recordedIDs returns the record's IDs and keys, to compare a listing that begins now.
func (h *Host) recordedIDs() []string {
	h.load()
	var all []string
	for _, of := range []map[string]string{h.record.LoadBalancers, h.record.Endpoints, h.record.Pending} {
		all = slices.AppendSeq(all, maps.Keys(of))
	}
	return all
}

// pruneRecord removes from the record what was known before a listing and is not in it, or is not in it as ours: a load
// balancer with another key, or an endpoint without a name of ours. The record may be false, and objects of others stay.
// If HNS has no network, it may still be starting, and pruneRecord does nothing.
func (h *Host) pruneRecord(l Listing, known []string) {
	if len(l.Networks) == 0 {
		return
	}
	present := map[string]bool{}
	h.recentlyGone = map[string]bool{}
	for _, e := range l.Endpoints {
		present[e.ID] = ownsEndpoint(&e)
	}
	for _, lb := range l.LoadBalancers {
		key := lb.Address.String()
		present[lb.ID], present[key] = h.record.Keys[lb.ID] == key, true
	}
	for _, x := range known {
		if present[x] {
			continue
		}
		delete(h.record.LoadBalancers, x)
		delete(h.record.Keys, x)
		delete(h.record.Endpoints, x)
		delete(h.record.Pending, x)
		h.recentlyGone[x], h.dirty = true, true
	}
}

// save writes the record if it changed. Traffic matters more than an error, which is reported.
func (h *Host) save() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.dirty {
		return
	}
	var b []byte
	if h.saveRoutes(); !h.record.empty() {
		b, _ = json.MarshalIndent(h.record, "", " ") // maps of strings, which always encode
	}
	if err := h.store.Save(b); err != nil {
		if h.saveErrText != err.Error() {
			h.saveErrText = err.Error()
			h.reportLocked(fmt.Sprintf("The state file cannot be written; after a restart, our objects are recognized by their properties: %v", err))
		}
		return
	}
	h.dirty, h.saveErrText = false, ""
}

// supportsInPlace reports whether this HNS really changes a load balancer in place.
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

// OnShortage sets the function that receives reports about a lack of ports, and "" once
// there are enough. Call it before the first sync.
func (h *Host) OnShortage(f func(text string)) { h.onShortage = f }

// reportShortage reports the lack of ports in a sync of family f, "" if there was none.
func (h *Host) reportShortage(f service.Family, text string) {
	h.mu.Lock()
	before := h.shortageTexts
	h.shortageTexts[f] = text
	now := h.shortageTexts
	h.mu.Unlock()
	if now != before && h.onShortage != nil {
		all := slices.DeleteFunc(now[:], func(s string) bool { return s == "" })
		h.onShortage(strings.Join(all, "; "))
	}
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

// listPatience is how long a round that is a resync waits for a listing. One that
// takes longer goes on while changes are programmed, and a later round uses it.
const listPatience = 100 * time.Millisecond

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

// recordWrites is an interception that notes writes before and after the call, as a listing may
// begin or end during it. Objects appear as they were asked for.
func (h *Host) recordWrites(_ context.Context, r request, do func() (any, error)) (any, error) {
	var objects []string
	switch of := r.of.(type) {
	case LoadBalancer:
		if objects = []string{of.Address.String()}; r.operation != CreateBalancer {
			objects = append(objects, of.ID)
		}
	case string:
		if r.operation == opDeleteEndpoint {
			objects = []string{of}
		}
	}
	h.noteWrite(objects...)
	answer, err := do()
	switch got := answer.(type) {
	case Listing:
		h.asAsked(got.LoadBalancers)
		h.endpointsAsAsked(got.Endpoints)
	case Endpoint:
		if h.noteWrite(got.ID); err == nil {
			answer = h.noteEndpoint(r.of.(Endpoint), got)
		}
	case LoadBalancer:
		if h.noteWrite(got.ID); err == nil {
			answer = h.noteBalancer(r, got)
		}
	}
	h.noteWrite(objects...)
	return answer, err
}

// noteBalancer notes how HNS gave back a load balancer that it has just made or changed,
// and returns one that was changed as it was asked for.
func (h *Host) noteBalancer(r request, got LoadBalancer) LoadBalancer {
	if asked := r.of.(LoadBalancer); r.operation == CreateBalancer {
		h.noteMade(&asked, &got)
		return got
	}
	now := []LoadBalancer{got}
	h.asAsked(now)
	return now[0]
}

// noteMade notes how HNS gave back a load balancer that it has just made.
func (h *Host) noteMade(asked, made *LoadBalancer) {
	a := answer[form]{Asked: asked.form(), Got: made.form(), Settled: true}
	defer h.locked()()
	if len(h.record.Forms) >= maxForms {
		clear(h.record.Forms)
	}
	k := asked.Address.String()
	if h.record.Forms[k].Asked != a.Asked {
		delete(h.record.Forms, k)
	}
	if made.Address != asked.Address || a.Asked == a.Got {
		return
	}
	h.record.Forms[k], h.dirty = a, true
	h.reportLocked("HNS gives load balancers back in another form than it was asked for, and they count as right: " + a.Asked.differences(a.Got))
}

// noteRepair notes that have is replaced by want.
func (h *Host) noteRepair(have, want *LoadBalancer) {
	defer h.locked()()
	k := want.Address.String()
	a := h.record.Forms[k]
	if a.Asked != want.form() || a.Got != have.form() {
		a = answer[form]{Asked: want.form(), Got: have.form()}
	}
	if a.Asked == a.Got {
		return // other endpoints
	}
	a.Repairs++
	a.Settled = a.Repairs >= maxRepairs
	h.record.Forms[k], h.dirty = a, true
}

// forgetForm forgets how HNS gives back a load balancer that nobody wants any more.
func (h *Host) forgetForm(k service.Address) {
	defer h.locked()()
	delete(h.record.Forms, k.String())
}

// noteEndpoint notes how HNS gave back a remote endpoint that it has just made, and returns it as it was asked for.
func (h *Host) noteEndpoint(asked, made Endpoint) Endpoint {
	if !asked.Remote || len(asked.Addrs) == 0 {
		return made
	}
	defer h.locked()()
	a := asked.Addrs[0]
	r := h.routes[a]
	if len(h.routes) >= maxForms { // mostly of deleted pods
		clear(h.routes)
	}
	if r == nil || r.Asked.differs(&asked) {
		r = &routeAnswer{Asked: routeOf(&asked)}
		h.routes[a] = r
	}
	if r.Got.MAC != "" { // a listing had it in this form
		r.Repairs++
		r.Settled = r.Settled || r.Repairs >= maxRepairs
	}
	h.oddRoutes = h.oddRoutes || r.Settled || r.Asked.differs(&made)
	if r.Asked.differs(&made) {
		r.Got, r.Settled = routeOf(&made), true
		made.MAC, made.Provider = asked.MAC, asked.Provider
	}
	return made
}

// endpointsAsAsked is asAsked for endpoints of ours.
func (h *Host) endpointsAsAsked(listed []Endpoint) {
	defer h.locked()()
	for i := range listed {
		e := &listed[i]
		if _, ours := h.record.Endpoints[e.ID]; ours && e.Name == "" && len(e.Addrs) > 0 {
			if e.Name = sourceVIPName; e.Remote {
				e.Name = remoteName(e.Addrs[0])
			}
		}
		if !e.Remote || len(e.Addrs) == 0 || e.Name != remoteName(e.Addrs[0]) {
			continue
		}
		r := h.routes[e.Addrs[0]]
		switch {
		case r == nil:
		case !r.Asked.differs(e):
			r.Got, r.Repairs, r.Settled = endpointRoute{}, 0, false
		case r.Settled && routeOf(e) == r.Got:
			if !h.routesTold {
				h.routesTold = true
				h.reportLocked(fmt.Sprintf("HNS has remote endpoints in another form than it was asked for, and they are left so: the one of %s with %s", e.Addrs[0], r.Asked.differences(r.Got)))
			}
			e.MAC, e.Provider = r.Asked.MAC, r.Asked.Provider
		default:
			r.Got = routeOf(e)
		}
	}
}

// asAsked gives listed load balancers the form that they were asked for, where HNS gives that form back as another one.
func (h *Host) asAsked(listed []LoadBalancer) {
	defer h.locked()()
	if len(h.record.Forms) == 0 {
		return
	}
	for i := range listed {
		lb := &listed[i]
		k := lb.Address.String()
		a, known := h.record.Forms[k]
		switch {
		case !known || len(lb.ExtraKeys) > 0:
		case a.Settled && lb.form() == a.Got:
			lb.setForm(a.Asked)
		case lb.form() == a.Asked: // the repair was of use
			delete(h.record.Forms, k)
			h.dirty = true
		}
	}
}

// limitForms adds what was repaired in vain to the limits of w.
func (h *Host) limitForms(w DesiredState) DesiredState {
	defer h.locked()()
	if len(h.record.Forms) == 0 && !h.oddRoutes {
		return w
	}
	told := map[netip.Addr]bool{}
	for _, lb := range w.LoadBalancers {
		if a := h.record.Forms[lb.Address.String()]; a.Settled && a.Repairs > 0 && a.Asked == lb.form() {
			w.limitForm("load balancer "+lb.Address.String(), a.Asked.differences(a.Got), a.Repairs)
		}
		for _, t := range lb.Targets {
			if r := h.routes[t.Addr]; r != nil && r.Settled && r.Repairs > 0 && !told[t.Addr] {
				told[t.Addr] = true
				w.limitForm("the remote endpoint of "+t.Addr.String(), r.Asked.differences(r.Got), r.Repairs)
			}
		}
	}
	return w
}

func (d *DesiredState) limitForm(object, differences string, repairs int) {
	d.addLimit(nil, "HNS has %s with %s, also after it was made again %d times: it is left so", object, differences, repairs)
}

// saveRoutes puts the routes into the record that HNS gives back in another form.
func (h *Host) saveRoutes() {
	h.record.Routes = map[netip.Addr]routeAnswer{}
	if !h.oddRoutes {
		return
	}
	for _, at := range h.record.Endpoints {
		a, _ := netip.ParseAddr(at)
		if r := h.routes[a]; r != nil && r.Settled {
			h.record.Routes[a] = *r
		}
	}
}

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
