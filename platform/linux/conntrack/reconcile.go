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

// Driver is the access to the kernel that Reconciler needs.
type Driver interface {
	// Dump calls each for every entry that matches f, and possibly for others. It calls
	// each more than once for an entry if it had to restart. An error that wraps
	// errors.ErrUnsupported means that this kernel cannot dump the table.
	Dump(ctx context.Context, f Filter, each func(Flow)) error
	// Delete deletes flows and returns how many, without error for a missing or replaced one. A
	// connection that got a reply meanwhile is kept.
	Delete(ctx context.Context, flows []Flow) (int, error)
	// Local reports whether addr is a local address of the node.
	Local(ctx context.Context, addr netip.Addr) (bool, error)
}

// MissingModuleError is the lack of the module for the table. It matches errors.ErrUnsupported.
type MissingModuleError struct {
	Module string
	Err    error // of the kernel
}

func (e *MissingModuleError) Error() string {
	return "the kernel lacks the module " + e.Module + ": load it with modprobe"
}

// Is makes errors.ErrUnsupported match.
func (e *MissingModuleError) Is(target error) bool { return target == errors.ErrUnsupported }

// Unwrap returns the error of the kernel.
func (e *MissingModuleError) Unwrap() error { return e.Err }

// Filter restricts a dump by the original destination. Invalid Addr and Port 0 match all.
type Filter struct {
	Family   service.Family
	Protocol service.Protocol
	// Addr works for IPv4 only. For an IPv6 address, kernels up to at least 6.18 return
	// the entries whose address differs from it (kernel:
	// net/netfilter/nf_conntrack_netlink.c, ctnetlink_filter_match_tuple).
	Addr netip.Addr
	Port uint16
	// OneWay omits entries with a reply, Answered those without, if the kernel supports that.
	OneWay, Answered bool
	// Translated omits entries without reply or translated destination, if the kernel can.
	Translated bool
	// AllFamilies asks for the entries of both families, which the kernel finds in one walk.
	// It filters them by OneWay, Answered and Translated only.
	AllFamilies bool
}

// Reconciler deletes stale flows of one family. It is not safe for concurrent use.
type Reconciler struct {
	Driver Driver
	Family service.Family

	datagrams, connections passState
	budget                 scanBudget
}

// passState is the state of the entries of some protocols.
type passState struct {
	synced     *service.Snapshot // the last snapshot for which no stale entry remains
	fullResync bool              // the next sync checks every frontend
}

// Sync deletes the entries that are stale for now. The rules for now must already be in
// force. The first call checks every frontend, later calls check those that changed since
// the last success. It may defer connections to a later call, see ResyncAfter. It returns
// the number of deleted entries, also with an error.
func (r *Reconciler) Sync(ctx context.Context, now *service.Snapshot) (int, error) {
	n, err := r.sync(ctx, &r.datagrams, r.datagrams.rules(now, r.Family, Rule.isDatagram), now)
	if errors.Is(err, errors.ErrUnsupported) { // for connections, too
		r.connections.fullResync = true
		return n, err
	}
	rules := r.connections.rules(now, r.Family, Rule.isConnection)
	start := time.Now()
	if len(rules) > 0 && !r.budget.allows(start) {
		r.connections.fullResync = true // an endpoint may be removed and added again until then
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

// rules returns the rules to check for now, restricted to some protocols.
func (p *passState) rules(now *service.Snapshot, f service.Family, of func(Rule) bool) []Rule {
	rules := Between(p.synced, now, f)
	if p.fullResync {
		rules = append(rules, All(now, f)...)
	}
	return slices.DeleteFunc(rules, func(r Rule) bool { return !of(r) })
}

func (r Rule) isDatagram() bool   { return r.Protocol == service.UDP }
func (r Rule) isConnection() bool { return r.Protocol != service.UDP }

// Resync makes the next Sync check every frontend.
func (r *Reconciler) Resync() { r.datagrams.fullResync, r.connections.fullResync = true, true }

// ResyncAfter returns the time until Sync can do what was deferred, 0 for nothing.
func (r *Reconciler) ResyncAfter() time.Duration {
	if r.connections.synced == r.datagrams.synced && r.connections.fullResync == r.datagrams.fullResync {
		return 0
	}
	return r.budget.wait(time.Now())
}

// scanBudget bounds the time spent on the search for stale connections. Each search makes
// the kernel walk its whole table, which may take long, and TCP endpoints change all day.
// A client retries its first packet for minutes, so the search can wait.
type scanBudget struct{ usedUntil time.Time }

// The search takes 1/budgetShare of the time, and more after an idle period: budgetBurst.
const (
	budgetShare = 50
	budgetBurst = 10 * time.Second
)

func (s *scanBudget) allows(now time.Time) bool { return s.wait(now) == 0 }

// wait returns the time until the next search, 0 if it is due.
func (s *scanBudget) wait(now time.Time) time.Duration {
	return max(s.usedUntil.Add(-budgetBurst).Sub(now), 0)
}

func (s *scanBudget) charge(now time.Time, cost time.Duration) {
	if s.usedUntil.Before(now) {
		s.usedUntil = now
	}
	s.usedUntil = s.usedUntil.Add(budgetShare * cost)
}

// Reconcile deletes the flows that are stale according to rules. It returns their number,
// also with an error. The snapshot provides the addresses for NodePorts.
func (r *Reconciler) Reconcile(ctx context.Context, rules []Rule, now *service.Snapshot) (int, error) {
	host := newHostLookup(r.Driver, now)
	s := &sweep{driver: r.Driver, matcher: host.matcher(ctx, rules)}
	var errs []error
	for _, f := range filters(rules) {
		if err := r.Driver.Dump(ctx, f, func(f Flow) { s.visit(ctx, f) }); err != nil {
			errs = append(errs, fmt.Errorf("list %s conntrack entries: %w", f.Family, err))
			break // the next one would fail too
		}
	}
	s.flush(ctx)
	errs = append(errs, s.err, host.err)
	return s.deleted, errors.Join(errs...)
}

// filterLimit is the most narrow dumps before one of the protocol is cheaper: each walks the whole
// table (kernel: net/netfilter/nf_conntrack_netlink.c, ctnetlink_dump_table), but copying entries
// costs more.
const filterLimit = 4

// filters returns dumps that show every flow of rules: one for each address and NodePort, in IPv6
// for each port, or for the family if these are too many for a protocol.
func filters(rules []Rule) []Filter {
	var all []Filter
	for _, p := range []service.Protocol{service.UDP, service.TCP, service.SCTP} {
		all = append(all, filtersOf(p, rules)...)
	}
	return all
}

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

// widen adds f. Several ports of one address share one filter for all its ports.
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

// batch is the number of entries that are deleted at once. It bounds the memory of a
// sweep and keeps the kernel's answers within a default socket buffer.
const batch = 128

// sweep deletes stale flows during a dump.
type sweep struct {
	driver  Driver
	matcher *matcher

	found   []Flow
	deleted int
	err     error // the first error of Delete
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

// hostLookup caches during a sweep which addresses accept NodePorts, and who is outside.
type hostLookup struct {
	driver Driver
	now    *service.Snapshot

	local     map[netip.Addr]bool
	frontends map[service.Address]bool
	err       error // the first error of Local
}

func newHostLookup(d Driver, now *service.Snapshot) *hostLookup {
	return &hostLookup{driver: d, now: now, local: map[netip.Addr]bool{}, frontends: map[service.Address]bool{}}
}

func (h *hostLookup) matcher(ctx context.Context, rules []Rule) *matcher {
	return newMatcher(rules,
		func(p service.Protocol, to netip.AddrPort) bool { return h.answers(ctx, p, to) },
		func(client netip.Addr) bool { return h.isOutside(ctx, client) })
}

// isOutside reports whether a client is certainly no pod and not the node. If interfaces tell pods
// from others, nobody is: entries have none.
func (h *hostLookup) isOutside(ctx context.Context, client netip.Addr) bool {
	pods := h.now.Node.Pods
	if pods.Interface != "" || pods.InterfacePrefix != "" || pods.Contains(client, "") {
		return false
	}
	return !h.isLocal(ctx, client) && h.err == nil
}

func (h *hostLookup) answers(ctx context.Context, p service.Protocol, to netip.AddrPort) bool {
	return h.now.Node.AnswersNodePorts(to.Addr()) && h.isLocal(ctx, to.Addr()) &&
		!h.isFrontend(service.AddressOf(p, to))
}

// isLocal queries the kernel, because the API contains only some of a node's addresses.
// If the query fails, the address counts as not local.
func (h *hostLookup) isLocal(ctx context.Context, addr netip.Addr) bool {
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

// isFrontend reports whether t is a frontend itself, which precedes NodePorts.
func (h *hostLookup) isFrontend(t service.Address) bool {
	known, ok := h.frontends[t]
	if ok {
		return known
	}
	for p := range h.now.Ports(t.Family) {
		if slices.ContainsFunc(p.Frontends, func(f service.Frontend) bool { return p.Address(f) == t }) {
			known = true
			break
		}
	}
	h.frontends[t] = known
	return known
}

// Retiring returns, for the UDP frontends in family f that from has and to lacks, ports
// without endpoints. A frontend that refuses its clients until their entries are deleted
// stays in the dataplane, so that the next process finds it there if this one is killed in
// between. Once it is gone, nothing tells a stale entry from one that others made.
func Retiring(from, to *service.Snapshot, f service.Family) []*service.Port {
	var gone []*service.Port
	if from == nil || to.Incomplete {
		return nil
	}
	for c := range service.Diff(from, to, f) {
		if c.Old == nil || c.Old.Name.Protocol != service.UDP {
			continue
		}
		var lost []service.Frontend
		for _, x := range c.Old.Frontends {
			if c.New == nil || !slices.ContainsFunc(c.New.Frontends, x.SameAddress) {
				lost = append(lost, x)
			}
		}
		gone = append(gone, retired(c.Old.Name, f, lost)...)
	}
	return withoutTaken(gone, to)
}

// RetiringLeftovers is like Retiring for the frontends that an earlier process left.
func RetiringLeftovers(left []*service.Port, to *service.Snapshot) []*service.Port {
	var gone []*service.Port
	for _, p := range left {
		if p.Name.Protocol == service.UDP {
			gone = append(gone, retired(p.Name, p.Family, p.Frontends)...)
		}
	}
	return withoutTaken(gone, to)
}

// retired returns a port for each frontend. Its name is none that a Service port can have.
func retired(name service.PortName, f service.Family, frontends []service.Frontend) []*service.Port {
	var all []*service.Port
	for _, x := range frontends {
		n := name
		n.Port = fmt.Sprintf("%s(%s)", name.Port, netip.AddrPortFrom(x.Addr, x.Port))
		all = append(all, &service.Port{Name: n, Family: f, Frontends: []service.Frontend{{Kind: x.Kind, Addr: x.Addr, Port: x.Port}}})
	}
	return all
}

// withoutTaken removes the ports whose frontend is one of s, and those that occur twice.
func withoutTaken(ports []*service.Port, s *service.Snapshot) []*service.Port {
	if len(ports) == 0 {
		return nil
	}
	taken := map[service.Address]bool{}
	for p := range s.Ports(ports[0].Family) {
		for _, x := range p.Frontends {
			taken[p.Address(x)] = true
		}
	}
	return slices.DeleteFunc(ports, func(p *service.Port) bool {
		k := p.Address(p.Frontends[0])
		defer func() { taken[k] = true }()
		return taken[k]
	})
}
