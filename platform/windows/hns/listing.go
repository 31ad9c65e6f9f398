// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
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
	spoiled := 0
	if ok {
		spoiled = h.countSpoiled(l)
	}
	switch {
	case spoiled > 0 && spoiled <= maxSpoiled:
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

// recordWrites is an interception. It notes each write before and after the call, because a
// listing may begin or end during the call. Objects are listed and returned as they were
// asked for.
func (h *Host) recordWrites(_ context.Context, r request, do func() (any, error)) (any, error) {
	var objects []string
	switch of := r.of.(type) {
	case LoadBalancer:
		if objects = []string{of.Key.String()}; r.operation != CreateBalancer {
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

// HNS may give an object back in another form than it was asked for: with a flag left out, say, or another source VIP. Such
// an object is not made again at every resync, which would cut its connections each time.

// maxRepairs is how often an object is made again for the same difference.
const maxRepairs = 2

// maxForms bounds what is remembered of objects, most of which are gone.
const maxForms = 1 << 16

// form is the properties of a load balancer that HNS could give back in another form.
type form struct {
	TargetPort   uint16
	SourceVIP    netip.Addr
	DSR          bool
	Flags        PortFlags
	Distribution Distribution
	Unsupported  bool
}

func (lb *LoadBalancer) form() form {
	return form{lb.TargetPort, lb.SourceVIP, lb.DSR, lb.Flags, lb.Distribution, lb.Unsupported}
}

func (lb *LoadBalancer) setForm(f form) {
	lb.TargetPort, lb.SourceVIP, lb.DSR, lb.Flags, lb.Distribution, lb.Unsupported = f.TargetPort, f.SourceVIP, f.DSR, f.Flags, f.Distribution, f.Unsupported
}

// differences names the fields of HNS in which g differs from f, each with both values.
func (f form) differences(g form) string {
	var d fieldDifferences
	d.add("InternalPort", f.TargetPort, g.TargetPort)
	d.add("SourceVIP", addrText(f.SourceVIP), addrText(g.SourceVIP))
	d.add("direct server return", f.DSR, g.DSR)
	d.add("Flags of its port", f.Flags, g.Flags)
	d.add("DistributionType", f.Distribution, g.Distribution)
	d.add("other properties", f.Unsupported, g.Unsupported)
	return strings.Join(d, ", ")
}

type fieldDifferences []string

func (d *fieldDifferences) add(field string, asked, got any) {
	if asked != got {
		*d = append(*d, fmt.Sprintf("%s %v, not %v", field, got, asked))
	}
}

// answer is what HNS gives back for a form that it was asked for. The record keeps it: a new process would make the
// object again otherwise.
type answer struct {
	Asked, Got form
	Repairs    int // that led to the same
	Settled    bool
}

// noteMade notes how HNS gave back a load balancer that it has just made.
func (h *Host) noteMade(asked, made *LoadBalancer) {
	a := answer{Asked: asked.form(), Got: made.form(), Settled: true}
	defer h.locked()()
	if len(h.record.Forms) >= maxForms {
		clear(h.record.Forms)
	}
	k := asked.Key.String()
	if h.record.Forms[k].Asked != a.Asked {
		delete(h.record.Forms, k)
	}
	if made.Key != asked.Key || a.Asked == a.Got {
		return
	}
	h.record.Forms[k], h.dirty = a, true
	h.reportLocked("HNS gives load balancers back in another form than it was asked for, and they count as right: " + a.Asked.differences(a.Got))
}

// noteRepair notes that have is replaced by want.
func (h *Host) noteRepair(have, want *LoadBalancer) {
	defer h.locked()()
	k := want.Key.String()
	a := h.record.Forms[k]
	if a.Asked != want.form() || a.Got != have.form() {
		a = answer{Asked: want.form(), Got: have.form()}
	}
	if a.Asked == a.Got {
		return // other endpoints
	}
	a.Repairs++
	a.Settled = a.Repairs >= maxRepairs
	h.record.Forms[k], h.dirty = a, true
}

// forgetForm forgets how HNS gives back a load balancer that nobody wants any more.
func (h *Host) forgetForm(k Key) {
	defer h.locked()()
	delete(h.record.Forms, k.String())
}

// endpointRoute is where a remote endpoint leads.
type endpointRoute struct {
	MAC      string
	Provider netip.Addr
}

func routeOf(e *Endpoint) endpointRoute { return endpointRoute{e.MAC, e.Provider} }

// routeAnswer is what HNS gives back for the route of a remote endpoint of ours.
type routeAnswer struct {
	Asked, Got endpointRoute
	Repairs    int
	Settled    bool
}

func (r *routeAnswer) differs(e *Endpoint) bool {
	return misrouted(e, Target{MAC: r.Asked.MAC, Provider: r.Asked.Provider})
}

// differences names the fields of HNS in which the answer differs, each with both values.
func (r *routeAnswer) differences() string {
	var d fieldDifferences
	d.add("MacAddress", r.Asked.MAC, r.Got.MAC)
	d.add("ProviderAddress", addrText(r.Asked.Provider), addrText(r.Got.Provider))
	return strings.Join(d, ", ")
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
	if r == nil || r.differs(&asked) {
		r = &routeAnswer{Asked: routeOf(&asked)}
		h.routes[a] = r
	}
	if r.Got.MAC != "" { // a listing had it in this form
		r.Repairs++
		r.Settled = r.Settled || r.Repairs >= maxRepairs
	}
	h.oddRoutes = h.oddRoutes || r.Settled || r.differs(&made)
	if r.differs(&made) {
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
		case !r.differs(e):
			r.Got, r.Repairs, r.Settled = endpointRoute{}, 0, false
		case r.Settled && routeOf(e) == r.Got:
			if !h.routesTold {
				h.routesTold = true
				h.reportLocked(fmt.Sprintf("HNS has remote endpoints in another form than it was asked for, and they are left so: the one of %s with %s", e.Addrs[0], r.differences()))
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
		k := lb.Key.String()
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
		if a := h.record.Forms[lb.Key.String()]; a.Settled && a.Repairs > 0 && a.Asked == lb.form() {
			w.limitForm("load balancer "+lb.Key.String(), a.Asked.differences(a.Got), a.Repairs)
		}
		for _, t := range lb.Targets {
			if r := h.routes[t.Addr]; r != nil && r.Settled && r.Repairs > 0 && !told[t.Addr] {
				told[t.Addr] = true
				w.limitForm("the remote endpoint of "+t.Addr.String(), r.differences(), r.Repairs)
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
