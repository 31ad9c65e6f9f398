// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"net/netip"
	"slices"
	"time"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

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

// retains reports whether e, which no load balancer needs, stays for connections: its route is
// right, an EndpointSlice lists its address, and no local pod has it.
func (s *state) retains(e *Endpoint) bool {
	a := e.Addrs[0]
	if s.claims.listed[a] == 0 || s.model.endpointAt(a, Local) != nil {
		return false
	}
	t, err := s.site.target(service.Endpoint{Addr: netip.AddrPortFrom(a, 0), Remote: true})
	return err == nil && !misrouted(e, t)
}

// claims counts the objects that several Service ports share, and the external addresses
// that one port has for itself. The latter take precedence over forwarded health checks.
type claims struct {
	vips   map[netip.Addr]int
	listed map[netip.Addr]int
	shared map[service.Address]int
	plain  map[service.Address]int
	// preserved counts those in shared that a port needs with preserveFlags.
	preserved map[service.Address]int
}

func newClaims() claims {
	return claims{map[netip.Addr]int{}, map[netip.Addr]int{}, map[service.Address]int{}, map[service.Address]int{}, map[service.Address]int{}}
}

// add counts the claims of d n times more: n is -1 for a state that a Service port had.
func (c claims) add(d DesiredState, n int) {
	for _, t := range d.VIPs {
		count(c.vips, t.Addr, n)
	}
	for _, a := range d.Listed {
		count(c.listed, a, n)
	}
	for _, lb := range d.LoadBalancers {
		external := lb.Addr.IsValid() && lb.Flags&VIPExternalIP != 0
		switch {
		case lb.Shared:
			count(c.shared, lb.Address, n)
		case external:
			count(c.plain, lb.Address, n)
		}
		if lb.Shared && lb.Flags&preserveFlags != 0 {
			count(c.preserved, lb.Address, n)
		}
	}
}

// count adds n to the count of k.
func count[K comparable](of map[K]int, k K, n int) {
	if of[k] += n; of[k] == 0 {
		delete(of, k)
	}
}

// shareFlags gives a load balancer that several ports share the flags that one of them needs.
func shareFlags(units []unit, preserved func(service.Address) bool) {
	for _, u := range units {
		for i := range u.desired {
			if x := &u.desired[i]; x.Shared && preserved(x.Address) {
				x.Flags |= preserveFlags
			}
		}
	}
}

// workAll returns the work that changes a listing into the desired state of next.
func (b *binding) workAll(next *state, before *state) *work {
	next.claims = newClaims()
	next.limits, next.notes = map[service.PortName][]error{}, reconcile.Notes{}
	w := &work{}
	wanted, targets := map[service.Address]bool{}, map[netip.Addr]Target{}
	for p := range next.snapshot.Ports(b.family) {
		x := b.host.limitForms(Desired(p, &next.site))
		next.claims.add(x, 1)
		next.setLimits(p.Name, x)
		w.units = append(w.units, unit{name: p.Name, desired: x.LoadBalancers, vips: x.VIPs})
		for _, lb := range x.LoadBalancers {
			wanted[lb.Address] = true
			addTargets(targets, lb.Targets)
		}
		addTargets(targets, x.VIPs)
	}
	w.inUse = func(a netip.Addr) bool { return next.claims.vips[a] > 0 }
	w.listed = func(a netip.Addr) bool { return next.claims.listed[a] > 0 }
	w.units = withoutShadowedHealthChecks(w.units)
	shareFlags(w.units, func(k service.Address) bool { return next.claims.preserved[k] > 0 })
	for _, lb := range next.model.balancersOf(b.family) {
		if wanted[lb.Address] || !b.isLeftover(next, lb) || next.snapshot.Incomplete && !b.wantedBefore(before, next, lb) {
			continue
		}
		n := leftoverName(b.host.purposeOf(lb.ID), lb.Address)
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
func (b *binding) staleEndpoints(at *state) []*Endpoint {
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

// withoutShadowedHealthChecks removes forwarded health checks at the frontend of a Service.
func withoutShadowedHealthChecks(units []unit) []unit {
	plain := map[service.Address]bool{}
	for _, u := range units {
		for _, w := range u.desired {
			plain[w.Address] = plain[w.Address] || !w.Shared
		}
	}
	for i, u := range units {
		units[i].desired = slices.DeleteFunc(u.desired, func(w DesiredLoadBalancer) bool { return w.Shared && plain[w.Address] })
	}
	return units
}

// wantedBefore reports whether the previous snapshot had lb, so that it goes even now.
func (b *binding) wantedBefore(before, next *state, lb *LoadBalancer) bool {
	if before == nil {
		return false
	}
	for c := range service.Diff(before.snapshot, next.snapshot, b.family) {
		if c.Old == nil {
			continue
		}
		for _, w := range Desired(c.Old, &before.site).LoadBalancers {
			if w.Address == lb.Address {
				return true
			}
		}
	}
	return false
}

// isLeftover reports whether lb, which is not desired, was created by this proxy. The
// record shows that, or properties that only our load balancers have.
func (b *binding) isLeftover(at *state, lb *LoadBalancer) bool {
	if b.host.owns(lb.ID) {
		return true
	}
	if len(lb.ExtraKeys) > 0 || lb.Unsupported {
		return false
	}
	if b.host.isPending(lb.Address) {
		return true
	}
	return slices.ContainsFunc(lb.Endpoints, func(id string) bool {
		e := at.model.endpoint(id)
		return e != nil && e.Remote && ownsEndpoint(e)
	})
}

// desiredChange is the change of one Service port's desired state.
type desiredChange struct {
	name     service.PortName
	from, to DesiredState
}

// changeWork collects the work that changes one snapshot into the next.
type changeWork struct {
	*binding
	next, before *state
	changes      []desiredChange
	// gone and wanted are the keys of load balancers of changed ports, before and after.
	gone, wanted map[service.Address]bool
	changed      map[service.PortName]bool
	units        []unit
}

// workChanges returns nil if a Service gives up a key that shadowed forwarded health
// checks. The Services of these health checks did not change, so only planAll finds them.
func (b *binding) workChanges(next, before *state) (*work, []desiredChange) {
	c := &changeWork{binding: b, next: next, before: before, gone: map[service.Address]bool{}, wanted: map[service.Address]bool{}, changed: map[service.PortName]bool{}}
	for x := range service.Diff(before.snapshot, next.snapshot, b.family) {
		c.add(x)
	}
	for _, n := range before.retry {
		if x := next.snapshot.Port(b.family, n); x != nil && !c.changed[n] {
			c.add(service.Change{Old: x, New: x})
		}
	}
	return c.finish(), c.changes
}

// add plans the change of one port, as if no other port had its keys.
func (c *changeWork) add(x service.Change) {
	var from, to DesiredState
	if x.Old != nil {
		from = Desired(x.Old, &c.before.site)
	}
	if x.New != nil {
		to = c.host.limitForms(Desired(x.New, &c.next.site))
	}
	c.changed[x.Name()] = true
	c.changes = append(c.changes, desiredChange{x.Name(), from, to})
	u := unit{name: x.Name(), desired: to.LoadBalancers, vips: to.VIPs}
	for _, lb := range to.LoadBalancers {
		c.wanted[lb.Address] = true
	}
	for _, lb := range from.LoadBalancers {
		c.gone[lb.Address] = true
		if held := c.next.model.balancer(lb.Address); held != nil {
			u.deletes = append(u.deletes, held)
		}
	}
	for _, t := range from.VIPs {
		u.releasedAddrs = append(u.releasedAddrs, t.Addr)
	}
	u.releasedAddrs = append(u.releasedAddrs, from.Listed...)
	c.units = append(c.units, u)
}

func (c *changeWork) delta() claims {
	sum := newClaims()
	for _, x := range c.changes {
		sum.add(x.from, -1)
		sum.add(x.to, 1)
	}
	return sum
}

// finish returns the work without what other ports still need, or nil, see workChanges.
func (c *changeWork) finish() *work {
	had, more := c.before.claims, c.delta()
	plain := func(k service.Address) bool { return had.plain[k]+more.plain[k] > 0 }
	shared := func(k service.Address) bool { return had.shared[k]+more.shared[k] > 0 }
	preserved := func(k service.Address) bool { return had.preserved[k]+more.preserved[k] > 0 }
	for k := range c.gone {
		changed := had.preserved[k] > 0 != preserved(k)
		if shared(k) && (had.plain[k] > 0 && !plain(k) || changed && !c.wanted[k]) {
			return nil
		}
	}
	shareFlags(c.units, preserved)
	for i, u := range c.units {
		c.units[i].desired = slices.DeleteFunc(u.desired, func(x DesiredLoadBalancer) bool { return x.Shared && plain(x.Address) })
		c.units[i].deletes = slices.DeleteFunc(u.deletes, func(lb *LoadBalancer) bool {
			return c.wanted[lb.Address] || shared(lb.Address) || plain(lb.Address) || !c.host.mayChange(lb, c.next.model)
		})
	}
	return &work{
		units:  c.units,
		inUse:  func(a netip.Addr) bool { return had.vips[a]+more.vips[a] > 0 },
		listed: func(a netip.Addr) bool { return had.listed[a]+more.listed[a] > 0 },
	}
}

// drift describes what others changed in our load balancers and endpoints since before was listed.
func (b *binding) drift(before, now *model) []string {
	var r reconcile.DriftReport
	for _, lb := range before.balancersOf(b.family) {
		have := now.balancer(lb.Address)
		switch {
		case !b.host.ownedUntilListing(lb.ID):
		case have == nil:
			r.Add(func() string { return "missing: loadbalancer " + lb.Address.String() })
		case !have.equal(lb):
			r.Add(func() string { return "altered: loadbalancer " + lb.Address.String() })
		}
	}
	for _, e := range before.sortedRemotes(b.family) {
		if (ownsEndpoint(e) || b.host.ownedUntilListing(e.ID)) && now.endpoint(e.ID) == nil {
			r.Add(func() string { return "missing: endpoint " + e.describe() })
		}
	}
	return r.Lines()
}
