// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

// errForeign is why a virtual server is not made.
var errForeign = errors.New("somebody else has a virtual server there")

// all fills p with what leads from what the kernel holds to what p is for.
// What of that has nothing to do with changes since h is drift.
func (p *plan) all(ctx context.Context, h *installed) error {
	b := p.backend
	start := time.Now()
	defer func() { b.looks.done(start) }()
	b.have = nil // until p was applied
	if b.prepared {
		for _, s := range p.settings {
			p.altered = append(p.altered, "altered: setting "+s)
		}
	}
	s, err := b.driver.Read(ctx)
	var once time.Duration
	if err == nil {
		once, err = b.complete(ctx, s)
	}
	if err != nil {
		return fmt.Errorf("list what IPVS has: %w", err)
	}
	b.note(s)
	start = start.Add(once + s.once) // the next look costs less
	b.looks.wanted.Store(false)
	p.next.read, p.next.at = b.now(), newSite(p.next.view, b.family)
	if h != nil {
		before := &plan{backend: b, drains: p.drains.clone(), next: &installed{view: h.view, at: h.at}}
		before.compare(s)
		p.known = map[key]bool{}
		for port := range h.view.Ports(b.family) {
			p.know(port, h.at)
		}
		p.unknown(h)
		p.drift = before.repairs(h.doubts)
		p.had = h.addrs
	}
	p.compare(s)
	return nil
}

// know notes that the rules beside know port, which may be nil, see server.
func (p *plan) know(port *service.Port, at site) {
	if port == nil {
		return
	}
	for _, w := range p.backend.options.servers(port, at) {
		if !w.refused {
			p.known[w.key] = true
		}
	}
}

// compare plans what leads from s to p.next.
func (p *plan) compare(s *state) {
	b, view := p.backend, p.next.view
	if !s.device {
		p.first = []op{{verb: addDevice}}
	}
	p.compareServed(s)
	p.next.addrs = map[netip.Addr]int{}
	routed := map[netip.Addr]netip.Addr{}
	for _, r := range s.routes {
		routed[r.addr] = r.source
	}
	seen := map[key]bool{}
	led := func(a netip.Addr) bool {
		_, found := routed[a]
		return found
	}
	for port := range view.Ports(b.family) {
		p.comparePort(port, s, led, seen)
		count(p.next.addrs, port, view.Node, 1)
	}
	p.compareRoutes(routed)
	maps.DeleteFunc(p.drains, func(k key, _ map[netip.AddrPort]time.Time) bool { return !seen[k] })
	p.leftovers(s, seen)
}

// compareServed plans what leads from the set of virtual servers in s to all that
// there are, others' as well, as chains refuse what is not in it, and from the set
// of the node's addresses to those that there are once all is made.
func (p *plan) compareServed(s *state) {
	if !s.sets {
		p.first = append(p.first, op{verb: addSets})
	}
	own := ownAddrs(p.next.view.Node, p.backend.family)
	for _, a := range sortedAddrs(s.own) {
		if !slices.Contains(own, a) {
			p.first = append(p.first, op{verb: closeAddr, route: localRoute{addr: a}})
		}
	}
	for _, a := range own {
		if !s.own[a] {
			p.opens = append(p.opens, op{verb: openAddr, route: localRoute{addr: a}})
		}
	}
	for _, k := range sortedKeys(s.servers) {
		if !s.served[k] {
			p.first = append(p.first, op{verb: openServer, key: k})
		}
	}
	for _, k := range sortedKeys(s.served) {
		if s.servers[k] == nil {
			p.first = append(p.first, op{verb: closeServer, key: k})
		}
	}
}

// comparePort plans what leads from what s has of port to what it wants, and adds
// its virtual servers to seen. led says whether there is a route to an address.
func (p *plan) comparePort(port *service.Port, s *state, led func(netip.Addr) bool, seen map[key]bool) {
	b, u := p.backend, unit{port: port}
	for _, w := range b.options.servers(port, p.next.at) {
		_, made := b.made[w.key]
		p.compareServer(&u, s.servers[w.key], w, led(w.addr) && made)
		seen[w.key] = true
		if made {
			b.made[w.key] = true
		}
	}
	p.add(u)
}

// compareRoutes wants a route for each address, from where it should be.
func (p *plan) compareRoutes(routed map[netip.Addr]netip.Addr) {
	source := nodeView{node: p.next.view.Node}.source(p.backend.family)
	for _, a := range sortedAddrs(p.next.addrs) {
		if from, found := routed[a]; !found || from != source {
			p.routes = append(p.routes, op{verb: addRoute, route: localRoute{a, source}})
		}
	}
	for _, a := range sortedAddrs(routed) {
		if p.next.addrs[a] == 0 && (p.had[a] > 0 || !p.next.view.Partial) {
			p.unroutes = append(p.unroutes, op{verb: delRoute, route: localRoute{addr: a}})
		}
	}
}

// compareServer plans what leads from l, nil if there is none, to w. owned
// says that w's address is the node's for Services only and that we made it, so
// that l is ours, whatever became of it. What kube-proxy made is taken over with
// its connections.
func (p *plan) compareServer(u *unit, l *listed, w wanted, owned bool) {
	k := w.key
	foreign := l != nil && !l.ours()
	switch {
	case foreign && p.backend.options.excludes(k.addr), foreign && !owned && !l.upstream:
		if len(w.endpoints) > 0 {
			u.err = errors.Join(u.err, fmt.Errorf("%s: %w", k, errForeign))
		}
		return
	case l == nil:
		delete(p.drains, k)
		p.server(u, wanted{}, w, p.known[k])
		return
	case l.server.sharp() != w.server.sharp():
		u.ops = append(u.ops, op{verb: setServer, key: k, server: w.server})
	}
	stay := p.compareDests(u, l, w)
	if len(w.endpoints) == 0 && stay == 0 {
		// Its destinations go with it.
		u.ops = slices.DeleteFunc(u.ops, func(o op) bool { return o.key == k })
		u.late = slices.DeleteFunc(u.late, func(o op) bool { return o.key == k })
		u.end(w)
		delete(p.drains, k)
		if p.ended == nil {
			p.ended = map[key]bool{}
		}
		p.ended[k] = !slices.ContainsFunc(l.dests, func(x dest) bool { return x.weight > 0 })
	}
}

// compareDests plans what leads from l's destinations to w's, and returns how
// many of the others stay for now.
func (p *plan) compareDests(u *unit, l *listed, w wanted) (stay int) {
	k, now := w.key, p.backend.now()
	held := map[netip.AddrPort]dest{}
	for _, x := range l.dests {
		held[x.addr] = x
	}
	m := moves{plain: w.plain, closes: len(w.endpoints) == 0, refused: w.refused}
	for _, e := range w.endpoints {
		x, found := held[e.Addr]
		delete(held, e.Addr)
		p.drains.remove(k, e.Addr)
		set := op{verb: setDest, key: k, dest: dest{addr: e.Addr, weight: 1}}
		switch {
		case !found:
			set.verb = addDest
			m.come = append(m.come, set)
		case x.weight == 0:
			m.come = append(m.come, set)
		case x.weight != 1 || x.astray:
			u.ops = append(u.ops, set)
		}
		m.stays = m.stays || found && x.weight > 0
	}
	p.drains.keep(k, l.dests)
	for _, x := range l.dests {
		if _, stray := held[x.addr]; !stray {
			continue
		}
		switch {
		case k.drainsNot():
			m.leave = append(m.leave, p.leave(k, x))
			continue
		case x.weight > 0:
			m.leave = append(m.leave, p.leave(k, x))
		default:
			p.drains.add(k, x.addr, now)
		}
		if x.weight == 0 && p.drains.over(k, x, now) {
			u.ops = append(u.ops, op{verb: delDest, key: k, dest: x})
			p.drains.remove(k, x.addr)
			continue
		}
		stay++
	}
	// After a round that failed, rules may let clients in to one that is empty.
	m.known = p.known[k] || len(m.leave) > 0
	u.move(m)
	return stay
}

// leftovers removes virtual servers that an earlier process left, where that may
// be, and those that Services of this one no longer have.
func (p *plan) leftovers(s *state, seen map[key]bool) {
	var u unit
	for _, k := range sortedKeys(s.servers) {
		stays := p.next.view.Partial || p.backend.options.excludes(k.addr)
		if seen[k] || !s.servers[k].ours() || stays && !p.backend.made[k] {
			continue
		}
		u.ops = append(u.ops, op{verb: delServer, key: k})
		p.removed = append(p.removed, &service.Port{
			Name: service.PortName{Protocol: k.proto}, Family: p.backend.family,
			Frontends: []service.Frontend{k.frontend()},
		})
	}
	p.add(u)
}

// driftLines bounds what is said about drift.
const driftLines = 20

// repairs says what others must have done that p is needed. Destinations that
// have drained are nobody's doing, nor is what an earlier round could not do.
func (p *plan) repairs(d doubts) []string {
	p.units = d.without(p.units)
	var lines []string
	n := 0
	for o := range p.ops() {
		if o.verb == delDest && o.dest.weight == 0 || o.verb == delServer && p.ended[o.key] || p.followsOthers(o) {
			continue
		}
		if n++; n <= driftLines {
			lines = append(lines, drifted(o))
		}
	}
	if n > driftLines {
		lines = append(lines, fmt.Sprintf("and %d more", n-driftLines))
	}
	return lines
}

// followsOthers reports that o may be needed as somebody made or removed a virtual
// server of his own.
func (p *plan) followsOthers(o op) bool {
	_, made := p.backend.made[o.key]
	return o.verb == closeServer || o.verb == openServer && !made
}

// failed names the Port that u is about.
func (u *unit) failed(err error) error {
	if u.port == nil {
		return err
	}
	return &reconcile.PortError{Family: u.port.Family, Name: u.port.Name, Err: err}
}
