// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package hns programs the Windows Host Networking Service (HNS). A service.Snapshot goes
// in. A plan comes out, which creates one load balancer for each frontend and remote
// endpoints for the pods of other nodes. The package decides nothing about Services: the
// snapshot already names the endpoints of each frontend. The network plugin creates
// networks and the endpoints of local pods. Only the driver calls Windows. All other
// files build, and are tested, on any system.
package hns

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

// Backend programs the load balancers of one family. It implements reconcile.Backend.
type Backend struct {
	reconcile.Base
	host    *Host
	family  service.Family
	options Options
	// hostMAC returns the hardware address of the interface with an address.
	hostMAC func(netip.Addr) (string, error)
	// resync is the maximum age of a listing for incremental plans.
	resync time.Duration
	// state is what HNS holds. It is nil while that is unknown.
	state *state
}

// New returns a Backend for one family. The Backend lists HNS again once its listing is
// older than resync.
func New(h *Host, f service.Family, o Options, resync time.Duration) *Backend {
	return &Backend{host: h, family: f, options: o, hostMAC: hostMAC, resync: resync}
}

// state describes what HNS holds, and the inputs that produced it.
type state struct {
	snapshot     *service.Snapshot
	site         Site
	model        *model
	listedAt     time.Time
	listDuration time.Duration // of the listing
	relisted     *pendingList  // that began before endpoints were listed last
	claims       claims
	limits       map[service.PortName][]error
	notes        reconcile.Notes // cloned before a change
	// retry are the Service ports that wait for a local endpoint.
	retry []service.PortName
	// relistEndpoints means that the next plan lists endpoints again because of retry.
	relistEndpoints bool
	clean           bool // HNS matched the desired state
}

// Plan implements reconcile.Backend. While the last listing is fresh enough, its cost
// follows the difference between want and the last snapshot. A round for the same
// snapshot is a resync, and lists, unless it is for endpoints that a Service waited for.
// Changes wait for the first listing, and for one after a doubtful answer, but for no
// other.
func (b *Backend) Plan(ctx context.Context, want *service.Snapshot) (reconcile.Plan, error) {
	plan := b.planAll
	switch {
	case !b.incremental(want):
	case b.due(want):
		plan = b.planListed
	default:
		plan = b.planChanges
	}
	p, err := plan(ctx, want)
	if err != nil {
		return nil, err
	}
	if p.Empty() { // the caller will not apply it
		p.finish(nil)
	}
	return p, nil
}

// incremental reports whether a plan for want can start from the known state.
func (b *Backend) incremental(want *service.Snapshot) bool {
	h := b.state
	return h != nil && h.snapshot.Node == want.Node && h.snapshot.Incomplete == want.Incomplete
}

// due reports whether another listing is due.
func (b *Backend) due(want *service.Snapshot) bool {
	h := b.state
	switch {
	case h.snapshot != want || len(h.retry) > 0:
		return b.listingAge() > max(b.resync, listPauseFactor*h.listDuration)
	case b.host.patience > 0 && h.listDuration > b.host.patience && b.listingAge() <= h.listDuration:
		return false // a change has used the listing that this round is for
	}
	return h.listDuration <= b.resync/2 || b.listingAge() >= listPauseFactor*h.listDuration
}

// listPauseFactor is the minimum pause between two listings, in multiples of the duration
// of a listing. Slow listings in each sync period would keep HNS busy all the time.
const listPauseFactor = 10

// listingAge returns the time since the last listing.
func (b *Backend) listingAge() time.Duration { return b.host.now().Sub(b.state.listedAt) }

// SetResync implements reconcile.Backend.
func (b *Backend) SetResync(d time.Duration) { b.resync = d }

// Forget implements reconcile.Backend.
func (b *Backend) Forget() {
	b.state = nil
	b.host.reload()
}

// planAll compares the desired state with a new listing.
func (b *Backend) planAll(ctx context.Context, want *service.Snapshot) (*plan, error) {
	before := b.state
	b.state = nil // unknown until a plan was applied
	start := b.host.now()
	l, err := b.host.list(ctx, b.family)
	if err != nil {
		return nil, fmt.Errorf("list what HNS holds: %w", err)
	}
	now := b.host.now()
	return b.planFrom(ctx, want, before, held{l, now, now.Sub(start)})
}

// held is what HNS held at a time, and how long it took to list.
type held struct {
	Listing
	at   time.Time
	took time.Duration
}

// planFrom plans from a listing. Before is what was known until then.
func (b *Backend) planFrom(ctx context.Context, want *service.Snapshot, before *state, l held) (*plan, error) {
	site, reserve, err := b.discover(l.Listing, want.Node)
	if err != nil {
		return nil, err
	}
	p := &plan{backend: b, reserve: reserve, fullSync: true, next: &state{
		snapshot: want, site: site, model: newModel(l.Listing, site.Network.ID), listedAt: l.at, listDuration: l.took,
	}}
	p.work = b.workAll(p.next, before)
	if before != nil && before.clean {
		p.drift = b.drift(before.model, p.next.model)
	}
	b.dryRun(ctx, p)
	return p, nil
}

// workAll returns the work that changes a listing into the desired state of next.
func (b *Backend) workAll(next *state, before *state) *work {
	next.claims = newClaims()
	next.limits, next.notes = map[service.PortName][]error{}, reconcile.Notes{}
	w := &work{}
	wanted, targets := map[Key]bool{}, map[netip.Addr]Target{}
	for p := range next.snapshot.Ports(b.family) {
		x := b.host.limitForms(Desired(p, &next.site))
		next.claims.add(x, 1)
		next.setLimits(p.Name, x)
		w.units = append(w.units, unit{name: p.Name, desired: x.LoadBalancers, vips: x.VIPs})
		for _, lb := range x.LoadBalancers {
			wanted[lb.Key] = true
			addTargets(targets, lb.Targets)
		}
		addTargets(targets, x.VIPs)
	}
	w.inUse = func(a netip.Addr) bool { return next.claims.vips[a] > 0 }
	w.listed = func(a netip.Addr) bool { return next.claims.listed[a] > 0 }
	w.units = withoutShadowedHealthChecks(w.units)
	shareFlags(w.units, func(k Key) bool { return next.claims.preserved[k] > 0 })
	for _, lb := range next.model.balancersOf(b.family) {
		if wanted[lb.Key] || !b.isLeftover(next, lb) || next.snapshot.Incomplete && !b.wantedBefore(before, next, lb) {
			continue
		}
		n := leftoverName(b.host.purposeOf(lb.ID), lb.Key)
		w.units = append(w.units, unit{name: n, deletes: []*LoadBalancer{lb}})
	}
	for _, e := range next.model.sortedRemotes(b.family) {
		t, used := targets[e.Addrs[0]]
		switch {
		case !ownsEndpoint(e):
		case used && misrouted(e, t):
			w.misrouted = append(w.misrouted, e)
		case !used && next.retains(e):
		case !used && !next.snapshot.Incomplete:
			w.unused = append(w.unused, e)
		}
	}
	if !next.snapshot.Incomplete {
		w.unused = append(w.unused, b.staleEndpoints(next)...)
	}
	return w
}

// staleEndpoints returns our endpoints that the present network does not use: those of a
// network that was chosen before, and earlier source VIPs.
func (b *Backend) staleEndpoints(at *state) []*Endpoint {
	var all []*Endpoint
	for _, e := range at.model.endpoints {
		if len(e.Addrs) == 0 || service.FamilyOf(e.Addrs[0]) != b.family || !ownsEndpoint(e) {
			continue
		}
		if e.Network != at.site.Network.ID || !e.Remote && !e.HasAddr(at.site.SourceVIP) && at.site.SourceVIP.IsValid() {
			all = append(all, e)
		}
	}
	return all
}

func addTargets(to map[netip.Addr]Target, targets []Target) {
	for _, t := range targets {
		if t.Location == Remote || t.Location == Unknown {
			to[t.Addr] = t
		}
	}
}

// withoutShadowedHealthChecks removes forwarded health checks whose address and port
// belong to a Service.
func withoutShadowedHealthChecks(units []unit) []unit {
	plain := map[Key]bool{}
	for _, u := range units {
		for _, w := range u.desired {
			plain[w.Key] = plain[w.Key] || !w.Shared
		}
	}
	for i, u := range units {
		units[i].desired = slices.DeleteFunc(u.desired, func(w DesiredLoadBalancer) bool { return w.Shared && plain[w.Key] })
	}
	return units
}

// wantedBefore reports whether the previous snapshot contained lb. Then lb is deleted
// even while the snapshot is incomplete.
func (b *Backend) wantedBefore(before, next *state, lb *LoadBalancer) bool {
	if before == nil {
		return false
	}
	for c := range service.Diff(before.snapshot, next.snapshot, b.family) {
		if c.Old == nil {
			continue
		}
		for _, w := range Desired(c.Old, &before.site).LoadBalancers {
			if w.Key == lb.Key {
				return true
			}
		}
	}
	return false
}

// isLeftover reports whether lb, which is not desired, was created by this proxy. The
// record shows that, or properties that only our load balancers have.
func (b *Backend) isLeftover(at *state, lb *LoadBalancer) bool {
	if b.host.owns(lb.ID) {
		return true
	}
	if len(lb.ExtraKeys) > 0 || lb.Unsupported {
		return false
	}
	if b.host.isPending(lb.Key) {
		return true
	}
	return slices.ContainsFunc(lb.Endpoints, func(id string) bool {
		e := at.model.endpoint(id)
		return e != nil && e.Remote && ownsEndpoint(e)
	})
}

// setLimits records what HNS cannot provide for a Service port.
func (s *state) setLimits(name service.PortName, w DesiredState) {
	delete(s.limits, name)
	delete(s.notes, name)
	if len(w.Limits) > 0 {
		s.limits[name] = w.Limits
	}
	if len(w.Notes) > 0 {
		s.notes[name] = w.Notes
	}
}

// planChanges plans the step from one snapshot to the next.
func (b *Backend) planChanges(ctx context.Context, want *service.Snapshot) (*plan, error) {
	h := b.state
	next := *h
	next.snapshot, next.retry, next.relistEndpoints = want, nil, false
	if h.relistEndpoints {
		if err := b.relist(ctx, &next); err != nil {
			return nil, err
		}
	}
	p := &plan{backend: b, next: &next}
	p.work = b.workChanges(p, h)
	if p.work == nil {
		return b.planAll(ctx, want)
	}
	if b.dryRun(ctx, p); p.dry.waiting && !h.relistEndpoints {
		if err := b.relist(ctx, &next); err != nil {
			return nil, err
		}
		b.dryRun(ctx, p)
	}
	if p.dry.moved { // the network plugin made the network again, under another ID
		return b.planAll(ctx, want)
	}
	return p, nil
}

// relist updates the endpoints. The network plugin creates and deletes those of this
// node.
func (b *Backend) relist(ctx context.Context, next *state) error {
	next.relisted = b.host.pendingNow()
	l, err := b.host.driver.List(ctx, Endpoints)
	if err != nil {
		b.state = nil
		return fmt.Errorf("list the endpoints that HNS holds: %w", err)
	}
	next.model = next.model.withEndpoints(l.Endpoints)
	return nil
}

// dryRun computes what p would do.
func (b *Backend) dryRun(ctx context.Context, p *plan) {
	p.dry = newDryPass(ctx, b.host, &p.next.site, b.family, p.next.model)
	p.dry.do(p.work)
}

// Prepare creates what the proxy needs before it programs anything: it chooses the
// network and reserves the source VIP. It does not wait for missing objects.
func (b *Backend) Prepare(ctx context.Context, node *service.Node) error {
	p, err := b.planAll(ctx, service.New(0, node, nil))
	if err != nil {
		return err
	}
	err = p.reserveVIP(ctx)
	b.host.save()
	return err
}

// Pending lists what Prepare would create, one a line. It creates nothing.
func (b *Backend) Pending(ctx context.Context, node *service.Node) ([]string, error) {
	p, err := b.planAll(ctx, service.New(0, node, nil))
	if err != nil || p.reserve == nil {
		return nil, err
	}
	return []string{p.reserveChange().Text}, nil
}

// changeWork collects the work that changes one snapshot into the next.
type changeWork struct {
	*plan
	before *state
	// gone and wanted are the keys of load balancers of changed ports, before and after.
	gone, wanted map[Key]bool
	changed      map[service.PortName]bool
	units        []unit
}

// workChanges returns nil if a Service gives up a key that shadowed forwarded health
// checks. The Services of these health checks did not change, so only planAll finds them.
func (b *Backend) workChanges(p *plan, before *state) *work {
	c := &changeWork{plan: p, before: before, gone: map[Key]bool{}, wanted: map[Key]bool{}, changed: map[service.PortName]bool{}}
	for x := range service.Diff(before.snapshot, p.next.snapshot, b.family) {
		c.add(x)
	}
	for _, n := range before.retry {
		if x := p.next.snapshot.Port(b.family, n); x != nil && !c.changed[n] {
			c.add(service.Change{Old: x, New: x})
		}
	}
	return c.finish()
}

// add plans the change of one port, as if no other port had its keys.
func (c *changeWork) add(x service.Change) {
	var from, to DesiredState
	if x.Old != nil {
		from = Desired(x.Old, &c.before.site)
	}
	if x.New != nil {
		to = c.backend.host.limitForms(Desired(x.New, &c.next.site))
	}
	c.changed[x.Name()] = true
	c.changes = append(c.changes, desiredChange{x.Name(), from, to})
	u := unit{name: x.Name(), desired: to.LoadBalancers, vips: to.VIPs}
	for _, lb := range to.LoadBalancers {
		c.wanted[lb.Key] = true
	}
	for _, lb := range from.LoadBalancers {
		c.gone[lb.Key] = true
		if held := c.next.model.balancer(lb.Key); held != nil {
			u.deletes = append(u.deletes, held)
		}
	}
	for _, t := range from.VIPs {
		u.releasedAddrs = append(u.releasedAddrs, t.Addr)
	}
	u.releasedAddrs = append(u.releasedAddrs, from.Listed...)
	c.units = append(c.units, u)
}

// finish returns the work without what other ports still need, or nil, see workChanges.
func (c *changeWork) finish() *work {
	had, more := c.before.claims, c.delta()
	plain := func(k Key) bool { return had.plain[k]+more.plain[k] > 0 }
	shared := func(k Key) bool { return had.shared[k]+more.shared[k] > 0 }
	preserved := func(k Key) bool { return had.preserved[k]+more.preserved[k] > 0 }
	for k := range c.gone {
		changed := had.preserved[k] > 0 != preserved(k)
		if shared(k) && (had.plain[k] > 0 && !plain(k) || changed && !c.wanted[k]) {
			return nil
		}
	}
	shareFlags(c.units, preserved)
	for i, u := range c.units {
		c.units[i].desired = slices.DeleteFunc(u.desired, func(x DesiredLoadBalancer) bool { return x.Shared && plain(x.Key) })
		c.units[i].deletes = slices.DeleteFunc(u.deletes, func(lb *LoadBalancer) bool {
			return c.wanted[lb.Key] || shared(lb.Key) || plain(lb.Key) || !c.backend.host.mayChange(lb, c.next.model)
		})
	}
	return &work{
		units:  c.units,
		inUse:  func(a netip.Addr) bool { return had.vips[a]+more.vips[a] > 0 },
		listed: func(a netip.Addr) bool { return had.listed[a]+more.listed[a] > 0 },
	}
}

// maxNamed is how many objects an error of --cleanup names.
const maxNamed = 20

// drift describes what other processes changed in our load balancers and endpoints since
// before was listed.
func (b *Backend) drift(before, now *model) []string {
	var r reconcile.DriftReport
	for _, lb := range before.balancersOf(b.family) {
		have := now.balancer(lb.Key)
		switch {
		case !b.host.ownedUntilListing(lb.ID):
		case have == nil:
			r.Add(func() string { return "missing: loadbalancer " + lb.Key.String() })
		case !have.equal(lb):
			r.Add(func() string { return "altered: loadbalancer " + lb.Key.String() })
		}
	}
	for _, e := range before.sortedRemotes(b.family) {
		if (ownsEndpoint(e) || b.host.ownedUntilListing(e.ID)) && now.endpoint(e.ID) == nil {
			r.Add(func() string { return "missing: endpoint " + e.describe() })
		}
	}
	return r.Lines()
}

// maxReportedNotes bounds the notes that are reported one by one.
const maxReportedNotes = 10

// reportNotes reports what works differently from what Services request.
func (b *Backend) reportNotes(h *state) {
	n := 0
	for _, name := range slices.SortedFunc(maps.Keys(h.notes), service.PortName.Compare) {
		for _, note := range h.notes[name] {
			if n++; n <= maxReportedNotes {
				b.host.report(fmt.Sprintf("Service port %s (%s, %s): %s", name, name.Protocol, b.family, note.Text))
			}
		}
	}
	if n > maxReportedNotes {
		b.host.report(fmt.Sprintf("More Service ports work a little differently (%s): %d in all", b.family, n))
	}
}

// Cleanup implements reconcile.Backend. The record and properties that only our objects
// have identify what is ours. Without the record, load balancers that use only local pods
// cannot be identified, and stay. The error names what remains of ours, even if HNS
// reported its deletion.
func (b *Backend) Cleanup(ctx context.Context) error {
	b.state = nil
	l, err := b.host.list(ctx, b.family)
	if err != nil {
		return fmt.Errorf("list what HNS holds: %w", err)
	}
	at := &state{site: Site{Version: l.Version}, model: newModel(l, "")}
	balancers, endpoints := b.leftovers(at)
	p := newPass(ctx, b.host, &at.site, b.family, at.model)
	for _, lb := range balancers {
		p.drop(lb, leftoverName(b.host.purposeOf(lb.ID), lb.Key))
	}
	for _, e := range endpoints {
		p.removeEndpoint(e, leftoverName("", Key{}))
	}
	b.host.markWritten()
	errs := append(portErrors(b.family, p.failed), p.fatal)
	if len(balancers)+len(endpoints) > 0 && p.fatal == nil {
		if l, err = b.host.list(ctx, b.family); err != nil {
			errs = append(errs, fmt.Errorf("list what HNS holds now: %w", err))
		} else {
			at.model = newModel(l, "")
		}
	}
	if len(l.Networks) == 0 {
		b.host.clearRecord()
	}
	b.host.save()
	return errors.Join(append(errs, b.leftoverError(at))...)
}

// leftovers returns our objects in the family, sorted by key and by address.
func (b *Backend) leftovers(at *state) (balancers []*LoadBalancer, endpoints []*Endpoint) {
	for _, lb := range at.model.balancersOf(b.family) {
		if b.isLeftover(at, lb) {
			balancers = append(balancers, lb)
		}
	}
	for _, e := range at.model.endpoints {
		if ownsEndpoint(e) && len(e.Addrs) > 0 && service.FamilyOf(e.Addrs[0]) == b.family {
			endpoints = append(endpoints, e)
		}
	}
	slices.SortFunc(endpoints, func(a, b *Endpoint) int {
		return cmp.Or(a.Addrs[0].Compare(b.Addrs[0]), cmp.Compare(a.ID, b.ID))
	})
	return balancers, endpoints
}

// leftoverError returns an error that names what could not be removed.
func (b *Backend) leftoverError(at *state) error {
	var names []string
	balancers, endpoints := b.leftovers(at)
	for _, lb := range balancers {
		names = append(names, "load balancer "+lb.Key.String())
	}
	for _, e := range endpoints {
		name := "endpoint " + e.Name
		for _, lb := range at.model.balancersUsing(map[string]bool{e.ID: true}) {
			if !b.isLeftover(at, lb) {
				name += fmt.Sprintf(" (load balancer %s, which is not ours, leads to it)", lb.ID)
			}
		}
		names = append(names, name)
	}
	if len(names) == 0 {
		return nil
	}
	if n := len(names); n > maxNamed {
		names = append(names[:maxNamed], fmt.Sprintf("and %d more", n-maxNamed))
	}
	return fmt.Errorf("still in HNS: %s; once it can be removed, another --cleanup does it", strings.Join(names, ", "))
}
