// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package track

import (
	"net/netip"
	"slices"
	"strings"

	"kubeproxy/common/service"
)

// maxEndpoints bounds the endpoints of one Port.
const maxEndpoints = 1 << 16

// candidate is a possible endpoint of one Port.
type candidate struct {
	addr  netip.AddrPort
	state state
}

// chooser picks the endpoints of one Port after another and reuses its memory.
type chooser struct {
	zone       string // of this node, "" while unknown
	candidates []candidate
	cluster    []service.Endpoint
	local      []service.Endpoint
	draining   []service.Endpoint
	listed     []netip.Addr
	excess     int // how many did not fit
	// wantCluster and wantLocal are the states that put a candidate into cluster and local.
	wantCluster, wantLocal state
	filled                 *service.Port // the Port that the lists are for, or nil
	from                   []origin      // where its endpoints come from
}

// fill fills the lists for p from the slices in from, and returns how many endpoints did
// not fit. Ports of one Service usually have the same endpoints, except for the port
// number. Then fill reuses the lists of the Port before.
func (c *chooser) fill(p *service.Port, from []origin, listed bool) (excess int) {
	if c.reusable(p, from) {
		port := from[0].port
		for _, list := range [...][]service.Endpoint{c.cluster, c.local, c.draining} {
			for i := range list {
				list[i].Addr = netip.AddrPortFrom(list[i].Addr.Addr(), port)
			}
		}
		return c.excess
	}
	c.gather(from)
	c.excess = c.choose(p)
	if listed {
		c.pickListed()
	}
	c.filled, c.from = p, append(c.from[:0], from...)
	return c.excess
}

// reusable reports whether the lists are right for p, except for the port number.
func (c *chooser) reusable(p *service.Port, from []origin) bool {
	q := c.filled
	if q == nil || len(from) == 0 || len(from) != len(c.from) ||
		p.Internal != q.Internal || p.External != q.External || (p.Name.Protocol == service.UDP) != (q.Name.Protocol == service.UDP) {
		return false
	}
	for i, s := range from {
		if s.slice != c.from[i].slice || s.port != from[0].port || c.from[i].port != c.from[0].port {
			return false
		}
	}
	return true
}

// invalidate must be called when slices have changed.
func (c *chooser) invalidate() {
	clear(c.from)
	c.filled, c.from = nil, c.from[:0]
}

// gather collects the endpoints of slices, sorted by address and without duplicates. An
// endpoint that moves between slices can be in both for a moment. The copy with the
// longest expected life counts. See
// https://kubernetes.io/docs/concepts/services-networking/endpoint-slices/#duplicate-endpoints.
func (c *chooser) gather(from []origin) {
	c.candidates = c.candidates[:0]
	for _, s := range from {
		c.add(s.slice, s.port)
	}
	slices.SortFunc(c.candidates, func(a, b candidate) int {
		if c := a.addr.Compare(b.addr); c != 0 {
			return c
		}
		return b.state.rank() - a.state.rank()
	})
	c.candidates = slices.CompactFunc(c.candidates, func(a, b candidate) bool { return a.addr == b.addr })
}

// rank orders copies of one endpoint. Those that do not terminate come before those that
// do. Then ready, serving and local ones come first. The rest has a fixed order.
func (s state) rank() int {
	r := int(s)
	for i, fact := range [...]state{local, serving, ready} {
		if s.has(fact) {
			r |= 1 << (16 + i)
		}
	}
	if !s.has(terminating) {
		r |= 1 << 20
	}
	return r
}

func (c *chooser) add(s *slice, port uint16) {
	for i, e := range s.endpoints {
		st := e.state
		if e.hint > 0 && c.zone != "" && listContains(s.zones[e.hint-1], c.zone) {
			st |= forZone
		}
		c.candidates = append(c.candidates, candidate{netip.AddrPortFrom(s.addr(i), port), st})
	}
}

// listContains reports whether a comma-separated list contains item.
func listContains(list, item string) bool {
	for s := range strings.SplitSeq(list, ",") {
		if s == item {
			return true
		}
	}
	return false
}

// choose fills cluster and draining, and local if p needs it. It returns how many
// endpoints did not fit.
func (c *chooser) choose(p *service.Port) int {
	c.cluster, c.wantCluster = c.firstOf(c.cluster, c.topology()|ready, serving|terminating)
	c.local, c.wantLocal = c.local[:0], 0
	if p.Internal == service.PolicyLocal || p.External == service.PolicyLocal {
		c.local, c.wantLocal = c.firstOf(c.local, local|ready, local|serving|terminating)
	}
	c.pickDraining(p)
	excess := max(len(c.cluster), len(c.local)) - maxEndpoints
	c.cluster = c.cluster[:min(len(c.cluster), maxEndpoints)]
	c.local = c.local[:min(len(c.local), maxEndpoints)]
	return max(excess, 0)
}

// pickDraining fills draining with endpoints that serve and were not picked. All lists
// have the order of the candidates. Only UDP needs it: UDP flows have no end of their
// own, so the proxy decides when to cut them.
func (c *chooser) pickDraining(p *service.Port) {
	c.draining = c.draining[:0]
	if p.Name.Protocol != service.UDP {
		return
	}
	c.draining = c.pick(c.draining, serving)
	rest, more := c.cluster, c.local
	c.draining = slices.DeleteFunc(c.draining, func(e service.Endpoint) bool {
		picked := false
		for _, list := range []*[]service.Endpoint{&rest, &more} {
			for len(*list) > 0 && (*list)[0].Addr.Compare(e.Addr) <= 0 {
				picked = picked || (*list)[0].Addr == e.Addr
				*list = (*list)[1:]
			}
		}
		return picked
	})
}

// pickListed fills listed with addresses that choose left out. All lists have the order
// of the candidates. It skips addresses of this node, because the network plugin keeps
// their objects.
func (c *chooser) pickListed() {
	c.listed = c.listed[:0]
	picked, more := c.cluster, c.local
	for _, e := range c.candidates {
		chosen := false
		for _, list := range []*[]service.Endpoint{&picked, &more} {
			for len(*list) > 0 && (*list)[0].Addr.Compare(e.addr) < 0 {
				*list = (*list)[1:]
			}
			chosen = chosen || len(*list) > 0 && (*list)[0].Addr == e.addr
		}
		if a := e.addr.Addr(); !chosen && !e.state.has(local) && (len(c.listed) == 0 || c.listed[len(c.listed)-1] != a) {
			c.listed = append(c.listed, a)
		}
	}
}

// topology returns the state that an endpoint needs to be preferred on this node. Hints
// count only if every ready endpoint has them and at least one matches this node. So a
// partial view never leaves a node without endpoints. Hints for nodes take precedence
// over hints for zones. See
// https://kubernetes.io/docs/concepts/services-networking/topology-aware-routing/.
func (c *chooser) topology() state {
	all, some := c.readyHints()
	switch {
	case all.has(nodeHints) && some.has(forNode):
		return forNode
	case all.has(zoneHints) && some.has(forZone):
		return forZone
	}
	return 0
}

// readyHints returns the hints that every ready endpoint has, and what any of them has.
func (c *chooser) readyHints() (all, some state) {
	all = nodeHints | zoneHints
	for _, e := range c.candidates {
		if e.state.has(ready) {
			all &= e.state
			some |= e.state
		}
	}
	return all, some
}

// firstOf replaces the contents of list with the candidates that have all of best, or if
// there is none, all of second. It also returns which of the two.
func (c *chooser) firstOf(list []service.Endpoint, best, second state) ([]service.Endpoint, state) {
	if list = c.pick(list, best); len(list) > 0 {
		return list, best
	}
	return c.pick(list, second), second
}

// pick replaces the contents of list with the candidates that have all of want.
func (c *chooser) pick(list []service.Endpoint, want state) []service.Endpoint {
	list = list[:0]
	for _, e := range c.candidates {
		if e.state.has(want) {
			list = append(list, service.Endpoint{
				Addr:   e.addr,
				Local:  e.state.has(local),
				Remote: e.state.has(remote),
			})
		}
	}
	return list
}

// shrink releases the memory of an unusually large Port.
func (c *chooser) shrink() {
	if cap(c.candidates) > 4096 {
		*c = chooser{zone: c.zone}
	}
}
