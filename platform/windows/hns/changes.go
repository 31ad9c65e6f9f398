// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"net/netip"
	"slices"

	"kubeproxy/common/service"
)

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
			return c.wanted[lb.Key] || shared(lb.Key) || plain(lb.Key) || !c.backend.owns(c.next, lb)
		})
	}
	return &work{
		units:  c.units,
		inUse:  func(a netip.Addr) bool { return had.vips[a]+more.vips[a] > 0 },
		listed: func(a netip.Addr) bool { return had.listed[a]+more.listed[a] > 0 },
	}
}
