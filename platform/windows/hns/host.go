// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"kubeproxy/common/service"
)

// Host is the HNS of a node, and what this process knows about it. The backends of both
// families share one Host.
type Host struct {
	driver   Driver
	store    Store
	node     string
	notify   func(string)
	now      func() time.Time
	listLock chan struct{} // full during a listing

	// patience is how long a resync waits for its listing, 0 for as long as it
	// takes.
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
	inPlace         bool
	endpointBackoff map[string]backoff // by endpoint ID
	// refusals holds load balancers that HNS rejected. serviceBackoff holds Services that
	// lost a load balancer by that.
	refusals       map[Key]refusal
	serviceBackoff map[serviceName]backoff
	// portBackoff holds pools without ports. shortageTexts is the last report for each
	// family.
	portBackoff   map[portPool]backoff
	shortageTexts [2]string
	// routes are those of all remote endpoints that were made, oddRoutes is whether HNS gives one back in another
	// form, and routesTold whether that was reported.
	routes                map[netip.Addr]*routeAnswer
	oddRoutes, routesTold bool

	onShortage func(text string)
}

// NewHost returns the Host of the named node. It calls notify with each decision, one
// sentence each, once.
func NewHost(d Driver, s Store, node string, notify func(string)) *Host {
	h := &Host{
		store: s, node: node, notify: notify, now: time.Now, listLock: make(chan struct{}, 1), reported: map[string]bool{}, inPlace: true,
		endpointBackoff: map[string]backoff{}, refusals: map[Key]refusal{}, serviceBackoff: map[serviceName]backoff{}, portBackoff: map[portPool]backoff{}, routes: map[netip.Addr]*routeAnswer{},
		patience: listPatience, touched: map[service.Family]func(){},
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

// listingTTL is how long the listing of one family also serves the other one, whose sync
// begins at about the same time.
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

// ownedUntilListing reports whether the object with this ID is ours, or was ours until
// the last listing.
func (h *Host) ownedUntilListing(id string) bool {
	if h.owns(id) {
		return true
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.recentlyGone[id]
}

// isPending reports whether the record contains the intent to create a load balancer with
// this key.
func (h *Host) isPending(k Key) bool {
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
	if key := lb.Key.String(); h.record.LoadBalancers[lb.ID] != purpose || h.record.Keys[lb.ID] != key {
		h.record.LoadBalancers[lb.ID], h.record.Keys[lb.ID] = purpose, key
		h.markChanged()
	}
}

// markChanged records that our objects changed. The record must be saved, and a listing
// that began before is outdated.
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
func (h *Host) confirm(keys map[Key]bool) {
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

// recordedIDs returns the IDs and keys in the record, for the comparison with a listing
// that begins now.
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
		key := lb.Key.String()
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

// save writes the record if it changed. An error is only reported: traffic is more
// important.
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

// supportsInPlace reports whether this HNS really applies changes to a load balancer in
// place.
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

// For each load balancer without direct server return, HNS allocates a block of ports
// from the node's dynamic port range. If none is left, HNS returns the same error as for
// a port that a program listens on (MicrosoftDocs/Virtualization-Documentation, "Load
// balancers are plumbed inconsistently across the cluster nodes").
const (
	// PortBlockSize is the size that portReservationTest.ps1 of microsoft/SDN uses to
	// imitate HNS.
	PortBlockSize = 64
	// UsualDynamicPorts is the size of the range by default: 49152 to 65535.
	UsualDynamicPorts = 16384
)

// PortBlocks counts the load balancers in l with the family and protocol of k that have a
// block of ports.
func (l *Listing) PortBlocks(k Key) int {
	n := 0
	for i := range l.LoadBalancers {
		if lb := &l.LoadBalancers[i]; !lb.DSR && portPoolOf(lb.Key) == portPoolOf(k) {
			n++
		}
	}
	return n
}

// portPool is the source of ports for the load balancers of a family and protocol.
type portPool struct {
	family   service.Family
	protocol service.Protocol
}

func portPoolOf(k Key) portPool { return portPool{k.Family, k.Protocol} }

// OnShortage sets the function that receives reports about a lack of ports, and "" once
// there are enough. Call it before the first sync.
func (h *Host) OnShortage(f func(text string)) { h.onShortage = f }

// portsShort reports whether HNS recently lacked ports for a load balancer like lb, so
// that another attempt is pointless.
func (h *Host) portsShort(lb *LoadBalancer) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !lb.DSR && h.now().Before(h.portBackoff[portPoolOf(lb.Key)].until)
}

// recordPortShortage records that HNS lacks ports.
func (h *Host) recordPortShortage(of portPool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.portBackoff[of] = h.portBackoff[of].next(h.now(), minBackoff)
}

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

// checkPortShortage returns an error if HNS rejected lb, with the error for a port in
// use, because of a lack of dynamic ports.
func (p *pass) checkPortShortage(lb *LoadBalancer) error {
	if lb.DSR || !p.portsExhausted(lb.Key) {
		return nil
	}
	p.host.recordPortShortage(portPoolOf(lb.Key))
	return p.portShortageError(lb)
}

// portsExhausted reports whether no block of ports is left. If the system does not report
// that, it counts the load balancers that need one, as if each had a block of its own.
func (p *pass) portsExhausted(k Key) bool {
	left, err := p.driver.PortsLeft(p.ctx, k)
	if err == nil {
		return !left
	}
	holders := p.model.sortedBalancers(func(lb *LoadBalancer) bool { return !lb.DSR && portPoolOf(lb.Key) == portPoolOf(k) })
	return (len(holders)+1)*PortBlockSize > UsualDynamicPorts
}

// portShortageError returns the error for lb, which is not created now.
func (p *pass) portShortageError(lb *LoadBalancer) error {
	p.missingByPool[portPoolOf(lb.Key)]++
	return postponedError(fmt.Sprintf("HNS refuses load balancer %s: no %d dynamic %s ports of the node are left; %s; it is tried again in a while",
		lb.Key, PortBlockSize, strings.ToUpper(lb.Protocol.String()), p.site.portShortageHint(lb.Key)))
}

// portShortageHint returns the remedy for a lack of ports.
func (s *Site) portShortageHint(k Key) string {
	family, netsh := "ipv4", ""
	if k.Family == service.IPv6 {
		family = "ipv6"
	}
	netsh = fmt.Sprintf("netsh int %s set dynamicportrange %s start=FIRST num=COUNT widens the range", family, k.Protocol)
	switch {
	case !s.Version.Features().DSR:
		return fmt.Sprintf("HNS %s has no direct server return, which needs none: %s", s.Version, netsh)
	case !s.Options.DSR:
		return "--enable-dsr or winkernel.enableDSR serves ClusterIPs without them, and externalTrafficPolicy Local other addresses; " + netsh
	}
	return "externalTrafficPolicy Local serves other addresses than ClusterIPs without them; " + netsh
}

// shortageText describes the lack of ports in the pass, without names of Services. For a
// nil pass it returns "".
func (p *pass) shortageText() string {
	if p == nil {
		return ""
	}
	var all []string
	for _, protocol := range []service.Protocol{service.TCP, service.UDP} {
		k := Key{Family: p.family, Protocol: protocol}
		if n := p.missingByPool[portPoolOf(k)]; n > 0 {
			all = append(all, fmt.Sprintf("%d load balancers over %s and %s are missing: each one without direct server return takes %d dynamic ports of the node, and so many are not left; %s",
				n, p.family, strings.ToUpper(protocol.String()), PortBlockSize, p.site.portShortageHint(k)))
		}
	}
	return strings.Join(all, "; ")
}
