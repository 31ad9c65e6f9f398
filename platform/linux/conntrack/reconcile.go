// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"kubeproxy/common/service"
)

// Driver is what is asked of the kernel.
type Driver interface {
	// Dump calls each with the entries that match f and perhaps others, once
	// or, when it had to start again, more often. An error that is
	// errors.ErrUnsupported means that this kernel cannot list its table.
	Dump(ctx context.Context, f Filter, each func(Flow)) error
	// Delete removes the entries and returns how many there were. An entry
	// that has left, even if another one took its place, is no error. A
	// connection that was answered meanwhile stays.
	Delete(ctx context.Context, flows []Flow) (int, error)
	// Local reports that the node takes packets to addr for itself.
	Local(ctx context.Context, addr netip.Addr) (bool, error)
}

// Filter narrows a dump. An unset Addr and a Port of 0 match any; both are
// about the original destination.
type Filter struct {
	Family   service.Family
	Protocol service.Protocol
	// Addr is for IPv4 only. Of IPv6 addresses a kernel, 6.18 among them,
	// hands out those that differ from the one asked for.
	Addr netip.Addr
	Port uint16
	// OneWay leaves out what was answered, where the kernel can.
	OneWay bool
}

// Reconciler removes stale flows of one family. It is not safe for
// concurrent use.
type Reconciler struct {
	Driver Driver
	Family service.Family

	datagrams, connections passState
	budget                 scanBudget
}

// passState is what is known about the entries of some protocols.
type passState struct {
	synced     *service.Snapshot // nothing stale was left for it
	fullResync bool              // the next round looks at every frontend
}

// Sync removes what is stale for now, whose rules must be in force already.
// The first call looks at every frontend, later ones at those that changed
// since the last success. Connections may be left for a later call, see Due. It
// returns how many entries went, also with an error.
func (r *Reconciler) Sync(ctx context.Context, now *service.Snapshot) (int, error) {
	n, err := r.sync(ctx, &r.datagrams, r.datagrams.rules(now, r.Family, Rule.isDatagram), now)
	rules := r.connections.rules(now, r.Family, Rule.isConnection)
	start := time.Now()
	if len(rules) > 0 && !r.budget.allows(start) {
		r.connections.fullResync = true // an endpoint may come and go until then
		return n, err
	}
	more, connErr := r.sync(ctx, &r.connections, rules, now)
	if len(rules) > 0 {
		r.budget.charge(start, time.Since(start))
	}
	return n + more, errors.Join(err, connErr)
}

func (r *Reconciler) sync(ctx context.Context, p *passState, rules []Rule, now *service.Snapshot) (int, error) {
	n, err := r.Reconcile(ctx, rules, now)
	if err == nil {
		p.synced, p.fullResync = now, false
	}
	return n, err
}

// rules returns those that are to be looked at for now, of some protocols.
func (p *passState) rules(now *service.Snapshot, f service.Family, of func(Rule) bool) []Rule {
	rules := Between(p.synced, now, f)
	if p.fullResync {
		rules = append(rules, All(now, f)...)
	}
	return slices.DeleteFunc(rules, func(r Rule) bool { return !of(r) })
}

func (r Rule) isDatagram() bool   { return r.Protocol == service.UDP }
func (r Rule) isConnection() bool { return r.Protocol != service.UDP }

// Resync makes the next Sync look at every frontend again.
func (r *Reconciler) Resync() { r.datagrams.fullResync, r.connections.fullResync = true, true }

// ResyncAfter returns when a Sync may do what an earlier one has left for later, 0 if
// nothing was left.
func (r *Reconciler) ResyncAfter() time.Duration {
	if r.connections.synced == r.datagrams.synced && r.connections.fullResync == r.datagrams.fullResync {
		return 0
	}
	return r.budget.wait(time.Now())
}

// scanBudget bounds the time that looking for stale connections takes. The kernel
// walks its whole table for that, which may take long, and endpoints of TCP come
// and go all day. A client sends its first packet again for minutes.
type scanBudget struct{ usedUntil time.Time }

// Looking takes one part in budgetShare of the time, but for what budgetBurst
// allows after a quiet time.
const (
	budgetShare = 50
	budgetBurst = 10 * time.Second
)

func (e *scanBudget) allows(now time.Time) bool { return e.wait(now) == 0 }

// wait returns how long it is until the next look, 0 if it is due.
func (e *scanBudget) wait(now time.Time) time.Duration {
	return max(e.usedUntil.Add(-budgetBurst).Sub(now), 0)
}

func (e *scanBudget) charge(now time.Time, cost time.Duration) {
	if e.usedUntil.Before(now) {
		e.usedUntil = now
	}
	e.usedUntil = e.usedUntil.Add(budgetShare * cost)
}

// Reconcile removes the flows that are stale by rules and returns how many
// there were, also with an error. The snapshot tells which addresses answer
// NodePorts.
func (r *Reconciler) Reconcile(ctx context.Context, rules []Rule, now *service.Snapshot) (int, error) {
	host := &nodePortLookup{driver: r.Driver, now: now, local: map[netip.Addr]bool{}, frontends: map[frontendKey]bool{}}
	s := &sweep{driver: r.Driver, matcher: newMatcher(rules, func(p service.Protocol, to netip.AddrPort) bool {
		return host.answers(ctx, p, to)
	})}
	var errs []error
	for _, f := range filters(rules) {
		if err := r.Driver.Dump(ctx, f, func(f Flow) { s.visit(ctx, f) }); err != nil {
			errs = append(errs, fmt.Errorf("list %s conntrack entries: %w", f.Family, err))
			break // the next would fail alike
		}
	}
	s.flush(ctx)
	errs = append(errs, s.err, host.err)
	return s.deleted, errors.Join(errs...)
}

// filterLimit is up to how many narrow dumps beat one of a protocol. The
// kernel walks the whole table for each; handing out an entry is what costs.
const filterLimit = 4

// filters returns the dumps that together show every flow that rules are
// about: one per address and NodePort, for IPv6 one per port, or a single one
// per family where that would be many.
func filters(rules []Rule) []Filter {
	var all []Filter
	for _, p := range []service.Protocol{service.UDP, service.TCP, service.SCTP} {
		all = append(all, filtersOf(p, rules)...)
	}
	return all
}

// filtersOf are filters for the rules of one protocol.
func filtersOf(p service.Protocol, rules []Rule) []Filter {
	var narrow, wide []Filter
	for _, r := range rules {
		if r.Protocol != p {
			continue
		}
		w := Filter{Family: r.Family, Protocol: p, OneWay: p != service.UDP}
		if !slices.Contains(wide, w) {
			wide = append(wide, w)
		}
		if len(narrow) <= filterLimit {
			w.Port = r.Port
			if r.Family == service.IPv4 {
				w.Addr = r.Addr
			}
			narrow = widen(narrow, w)
		}
	}
	if len(narrow) > filterLimit {
		return wide
	}
	return narrow
}

// widen adds f. An address that is there with another port gets one filter
// for all its ports.
func widen(to []Filter, f Filter) []Filter {
	if !f.Addr.IsValid() {
		if !slices.Contains(to, f) {
			to = append(to, f)
		}
		return to
	}
	i := slices.IndexFunc(to, func(t Filter) bool { return t.Addr == f.Addr && t.Protocol == f.Protocol })
	if i < 0 {
		return append(to, f)
	}
	if to[i].Port != f.Port {
		to[i].Port = 0
	}
	return to
}

// batch is how many entries are deleted at once. It bounds what a sweep holds
// and keeps the kernel's answers within a default socket buffer.
const batch = 128

// sweep deletes stale flows while a dump goes on.
type sweep struct {
	driver  Driver
	matcher *matcher

	found   []Flow
	deleted int
	err     error // the first that Delete returned
}

func (s *sweep) visit(ctx context.Context, f Flow) {
	if !s.matcher.stale(f) {
		return
	}
	s.found = append(s.found, f)
	if len(s.found) == batch {
		s.flush(ctx)
	}
}

func (s *sweep) flush(ctx context.Context) {
	if len(s.found) > 0 && s.err == nil {
		var n int
		n, s.err = s.driver.Delete(ctx, s.found)
		s.deleted += n
	}
	s.found = s.found[:0]
}

// nodePortLookup knows which addresses answer NodePorts, for the length of one sweep.
type nodePortLookup struct {
	driver Driver
	now    *service.Snapshot

	local     map[netip.Addr]bool
	frontends map[frontendKey]bool
	err       error // the first that Local returned
}

func (h *nodePortLookup) answers(ctx context.Context, p service.Protocol, to netip.AddrPort) bool {
	return h.now.Node.AnswersNodePorts(to.Addr()) && h.isLocal(ctx, to.Addr()) &&
		!h.isFrontend(frontendKey{service.FamilyOf(to.Addr()), p, to})
}

// isLocal asks the kernel, as the API tells only some of a node's addresses.
// An address counts as foreign when the kernel does not say.
func (h *nodePortLookup) isLocal(ctx context.Context, addr netip.Addr) bool {
	known, ok := h.local[addr]
	if ok {
		return known
	}
	is, err := h.driver.Local(ctx, addr)
	if err != nil && h.err == nil {
		h.err = fmt.Errorf("look up whether %s is the node's: %w", addr, err)
	}
	h.local[addr] = is
	return is
}

// isFrontend reports that t is a frontend itself, which goes before NodePorts.
func (h *nodePortLookup) isFrontend(t frontendKey) bool {
	known, ok := h.frontends[t]
	if ok {
		return known
	}
	for p := range h.now.Ports(t.family) {
		if p.Name.Protocol == t.protocol && slices.ContainsFunc(p.Frontends, func(f service.Frontend) bool {
			return f.Port == t.frontend.Port() && f.Addr == t.frontend.Addr()
		}) {
			known = true
			break
		}
	}
	h.frontends[t] = known
	return known
}
