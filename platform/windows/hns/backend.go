// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
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
	for _, lb := range next.model.sortedBalancers(b.family) {
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
func (n *state) setLimits(name service.PortName, w DesiredState) {
	delete(n.limits, name)
	delete(n.notes, name)
	if len(w.Limits) > 0 {
		n.limits[name] = w.Limits
	}
	if len(w.Notes) > 0 {
		n.notes[name] = w.Notes
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

// owns reports whether lb, whose key was in the last snapshot, is ours.
func (b *Backend) owns(at *state, lb *LoadBalancer) bool {
	p := pass{host: b.host, model: at.model}
	return p.owns(lb)
}

// dryRun computes what p would do.
func (b *Backend) dryRun(ctx context.Context, p *plan) {
	p.dry = newDryPass(ctx, b.host, &p.next.site, b.family, p.next.model)
	p.dry.do(p.work)
}
