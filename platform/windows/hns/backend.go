// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package hns programs the Windows Host Networking Service (HNS). A service.Snapshot goes
// in. A plan comes out, which creates one load balancer for each frontend and remote
// endpoints for the pods of other nodes. The package decides nothing about Services: the
// snapshot already names the endpoints of each frontend. The network plugin creates
// networks and the endpoints of local pods. Only the driver calls Windows. All other
// files build, and are tested, on any system. A file knows only those before it, in this
// order: objects, model, document, driver, intercept, record, desired, backoff, host, discover,
// pass, work, compare, backend, render, trace, mode.
package hns

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

// Backend programs the load balancers of one family. It implements reconcile.Backend.
type Backend struct {
	reconcile.Base
	binding
	// resync is the maximum age of a listing for incremental plans.
	resync time.Duration
	// state is what HNS holds. It is nil while that is unknown.
	state *state
}

// New returns a Backend for one family. The Backend lists HNS again once its listing is
// older than resync.
func New(h *Host, f service.Family, o Options, resync time.Duration) *Backend {
	return &Backend{binding: binding{h, f, o, hostMAC}, resync: resync}
}

// Plan implements reconcile.Backend. While the listing is fresh enough, its cost follows the
// difference between want and the last snapshot. A round for the same snapshot lists, unless it is
// for endpoints that a Service waited for. Changes wait for the first listing, and for one after a
// doubtful answer alone.
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
	return b.planFrom(ctx, want, before, observed{l, now, now.Sub(start)})
}

// observed is what HNS held at a time, and how long it took to list.
type observed struct {
	Listing
	at   time.Time
	took time.Duration
}

// planFrom plans from a listing. Before is what was known until then.
func (b *Backend) planFrom(ctx context.Context, want *service.Snapshot, before *state, l observed) (*plan, error) {
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
	b.rehearse(ctx, p)
	return p, nil
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
	p.work, p.changes = b.workChanges(&next, h)
	if p.work == nil {
		return b.planAll(ctx, want)
	}
	if b.rehearse(ctx, p); p.dry.waiting && !h.relistEndpoints {
		if err := b.relist(ctx, &next); err != nil {
			return nil, err
		}
		b.rehearse(ctx, p)
	}
	if p.dry.moved { // the network plugin made the network again, under another ID
		return b.planAll(ctx, want)
	}
	return p, nil
}

// relist updates the endpoints: the network plugin makes and deletes those of this node.
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

// rehearse computes what p would do.
func (b *Backend) rehearse(ctx context.Context, p *plan) {
	p.dry = newDryPass(ctx, b.host, &p.next.site, b.family, p.next.model)
	p.dry.perform(p.work)
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

// maxNamed is how many objects an error of --cleanup names.
const maxNamed = 20

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

// Cleanup implements reconcile.Backend. What is ours is known by the record and properties that
// only our objects have. Without the record, load balancers of local pods alone stay. The error
// names what remains, even if HNS reported its deletion.
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
		p.drop(lb, leftoverName(b.host.purposeOf(lb.ID), lb.Address))
	}
	for _, e := range endpoints {
		p.removeEndpoint(e, leftoverName("", service.Address{}))
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
		names = append(names, "load balancer "+lb.Address.String())
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

// plan is the work of one sync. Its changes come from a dry run of the same work. It implements
// reconcile.Plan.
type plan struct {
	backend *Backend
	next    *state
	work    *work
	changes []desiredChange
	// reserve, if not nil, is the source VIP's endpoint that must be created.
	reserve  *Endpoint
	fullSync bool
	drift    []string

	dry *pass // p.work without effects
}

// Empty implements reconcile.Plan. Failures and limits are work that is not done, so they count.
func (p *plan) Empty() bool {
	return len(p.dry.changes)+len(p.dry.failed)+len(p.limits()) == 0 && p.reserve == nil
}

func (p *plan) Outcome() reconcile.Outcome {
	return reconcile.Outcome{
		Err: errors.Join(portErrors(p.backend.family, p.dry.failed, p.limits())...), FullSync: p.fullSync, Drift: p.drift,
		Notes: p.next.notes, Unavailable: p.next.site.Unavailable,
	}
}

// limits returns what HNS cannot provide for each Service port after this plan.
func (p *plan) limits() map[service.PortName][]error {
	if len(p.changes) == 0 {
		return p.next.limits
	}
	all := maps.Clone(p.next.limits)
	for _, x := range p.changes {
		delete(all, x.name)
		if len(x.to.Limits) > 0 {
			all[x.name] = x.to.Limits
		}
	}
	return all
}

func (p *plan) Changes() reconcile.Changes {
	if p.reserve == nil {
		return p.dry.changes
	}
	return append(reconcile.Changes{p.reserveChange()}, p.dry.changes...)
}

// reserveChange is the change that reserves a source VIP.
func (p *plan) reserveChange() reconcile.Change {
	at := "at an address that HNS chooses"
	if len(p.reserve.Addrs) > 0 {
		at = p.reserve.Addrs[0].String()
	}
	return reconcile.Change{Text: fmt.Sprintf("+ endpoint %s %s", p.reserve.Name, at)}
}

// Apply implements reconcile.Plan. If an answer shows that HNS holds something other than
// the listing, Apply lists, compares and applies once more.
func (p *plan) Apply(ctx context.Context) reconcile.Outcome {
	last, err := p.program(ctx)
	out := last.Outcome()
	out.Err, out.FullSync, out.Drift = err, p.fullSync, p.drift
	return out
}

// program makes the changes of p. It returns the last plan that it made.
func (p *plan) program(ctx context.Context) (last *plan, err error) {
	b := p.backend
	b.state = nil
	if err := p.reserveVIP(ctx); err != nil {
		return p, err
	}
	done := p.execute(ctx)
	b.host.save()
	if done.stale && done.fatal == nil {
		again, err := b.planAll(ctx, p.next.snapshot)
		if err == nil {
			p, err = again, again.reserveVIP(ctx)
		}
		if err != nil {
			return p, errors.Join(append(portErrors(b.family, done.failed), err)...)
		}
		done = p.execute(ctx)
		b.host.save()
	}
	if done.fatal != nil {
		return p, fmt.Errorf("program HNS: %w", done.fatal)
	}
	p.finish(done)
	return p, errors.Join(portErrors(b.family, done.failed, p.limits())...)
}

func (p *plan) execute(ctx context.Context) *pass {
	b := p.backend
	b.host.recordPending(p.dry.creates)
	applied := newPass(ctx, b.host, &p.next.site, b.family, p.next.model)
	applied.perform(p.work)
	b.host.markWritten()
	b.host.confirm(applied.owned)
	return applied
}

// reserveVIP creates the source VIP's endpoint if p needs it. HNS may assign another address
// than requested, which changes the desired state of every load balancer.
func (p *plan) reserveVIP(ctx context.Context) error {
	if p.reserve == nil {
		return nil
	}
	b := p.backend
	defer b.host.markWritten()
	e, err := b.host.driver.CreateEndpoint(ctx, *p.reserve)
	if (errors.Is(err, ErrExists) || errors.Is(err, ErrRefused)) && !b.options.SourceVIP.IsValid() && len(p.reserve.Addrs) > 0 {
		free := *p.reserve
		free.Addrs = nil
		e, err = b.host.driver.CreateEndpoint(ctx, free)
	}
	if err != nil {
		return fmt.Errorf("reserve the source VIP in network %q: %w; want --source-vip with an address that is free", p.next.site.Network.Name, err)
	}
	if len(e.Addrs) == 0 {
		return fmt.Errorf("reserve the source VIP in network %q: HNS gave endpoint %s no address; want --source-vip", p.next.site.Network.Name, e.ID)
	}
	b.host.recordEndpoint(&e)
	b.host.report(fmt.Sprintf("Source VIP: reserved %s in network %q as endpoint %s", e.Addrs[0], p.next.site.Network.Name, e.Name))
	p.next.model.putEndpoint(&e)
	p.reserve = nil
	if p.next.site.SourceVIP != e.Addrs[0] {
		p.next.site.SourceVIP = e.Addrs[0]
		p.work = b.workAll(p.next, nil)
		b.rehearse(ctx, p)
	}
	return nil
}

// finish records what HNS holds now, as far as known. A nil pass had nothing to do.
func (p *plan) finish(done *pass) {
	b, next := p.backend, p.next
	if len(p.changes) > 0 {
		p.commitChanges()
	}
	b.reportNotes(next)
	b.host.reportShortage(b.family, done.shortageText())
	if done == nil {
		for _, a := range p.dry.adoptions {
			b.host.recordBalancer(a.lb, a.name.String())
		}
		b.host.confirm(p.dry.owned)
		b.host.save()
		next.clean = true
		b.state = next
		return
	}
	next.clean = len(done.failed) == 0
	next.retry = slices.SortedFunc(maps.Keys(done.failed), service.PortName.Compare)
	next.relistEndpoints = done.relistEndpoints
	if done.stateUnknown || slices.ContainsFunc(slices.Collect(maps.Values(next.limits)), isTemporary) {
		return // the next plan lists
	}
	b.state = next
}

// commitChanges applies the changes to the claims, limits and notes in next.
func (p *plan) commitChanges() {
	if slices.ContainsFunc(p.changes, func(x desiredChange) bool { return len(x.from.Notes)+len(x.to.Notes) > 0 }) {
		p.next.notes = maps.Clone(p.next.notes)
	}
	for _, x := range p.changes {
		p.next.claims.add(x.from, -1)
		p.next.claims.add(x.to, 1)
		p.next.setLimits(x.name, x.to)
	}
	p.changes = nil
}

// isTemporary reports whether a limit may disappear on its own.
func isTemporary(limits []error) bool {
	return slices.ContainsFunc(limits, func(err error) bool { return !errors.Is(err, errors.ErrUnsupported) })
}

// Watch implements reconcile.Backend. A listing that no round waited for finds others' changes.
func (b *Backend) Watch(ctx context.Context, touched func()) error {
	b.host.onListed(b.family, touched)
	<-ctx.Done()
	b.host.onListed(b.family, nil)
	return nil
}

// planListed compares everything with a listing in the background, and the model until it ends.
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
	listing, ok := h.since(l, b.family, b.state.model, b.state.relisted == l)
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
	p, err := b.planFrom(ctx, want, before, observed{listing, l.ended, l.took})
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
	b.rehearse(ctx, p)
	return nil
}
