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

// errForeign means that a foreign virtual server exists where a Service needs one.
var errForeign = errors.New("another program has a virtual server there")

// compareAll fills p with the change from the kernel state to p.next. Differences that
// do not come from changes since h are drift.
func (p *plan) compareAll(ctx context.Context, h *installed) error {
	b := p.backend
	start := time.Now()
	defer func() { b.poller.polled(start) }()
	b.installed = nil // until p has been applied
	if b.prepared {
		for _, s := range p.settings {
			p.alteredSettings = append(p.alteredSettings, "altered: setting "+s)
		}
	}
	s, err := b.driver.Read(ctx)
	var oneTimeCost time.Duration
	if err == nil {
		oneTimeCost, err = b.completeOwned(ctx, s)
	}
	if err != nil {
		return fmt.Errorf("list what IPVS has: %w", err)
	}
	b.updateOwned(s)
	start = start.Add(oneTimeCost + s.oneTimeCost) // the next Read takes less time
	b.poller.requested.Store(false)
	p.next.readAt, p.next.localNode = b.now(), newLocalNode(p.next.view, b.family)
	if h != nil {
		before := &plan{backend: b, drainingDests: p.drainingDests.clone(), next: &installed{view: h.view, localNode: h.localNode}}
		before.compare(s)
		p.knownToRules = map[key]bool{}
		for port := range h.view.Ports(b.family) {
			p.markKnown(port, h.localNode)
		}
		p.unmarkFailed(h)
		p.drift = before.describeDrift(h.failedPorts)
		p.previousAddrs = h.addrRefs
	}
	p.compare(s)
	return nil
}

// markKnown records that the installed rules cover the virtual servers of port, which
// may be nil, see planServer.
func (p *plan) markKnown(port *service.Port, at localNode) {
	if port == nil {
		return
	}
	for _, w := range p.backend.options.servers(port, at) {
		if !w.refused {
			p.knownToRules[w.key] = true
		}
	}
}

// compare plans the change from s to p.next.
func (p *plan) compare(s *state) {
	b, view := p.backend, p.next.view
	if !s.device {
		p.setup = []op{{verb: addDevice}}
	}
	p.compareSets(s)
	p.next.addrRefs = map[netip.Addr]int{}
	routed := map[netip.Addr]netip.Addr{}
	for _, r := range s.routes {
		routed[r.addr] = r.source
	}
	seen := map[key]bool{}
	hasRoute := func(a netip.Addr) bool {
		_, found := routed[a]
		return found
	}
	for port := range view.Ports(b.family) {
		p.comparePort(port, s, hasRoute, seen)
		countAddrs(p.next.addrRefs, port, view.Node, 1)
	}
	p.compareRoutes(routed)
	maps.DeleteFunc(p.drainingDests, func(k key, _ map[netip.AddrPort]time.Time) bool { return !seen[k] })
	p.removeLeftovers(s, seen)
}

// compareSets plans the changes of two sets. The set of virtual servers must contain all
// of them, including foreign ones, because chains reject what is not in it. The set of
// node addresses must contain those that exist after the change.
func (p *plan) compareSets(s *state) {
	if !s.hasSets {
		p.setup = append(p.setup, op{verb: addSets})
	}
	own := ownAddrs(p.next.view.Node, p.backend.family)
	for _, a := range sortedAddrs(s.addrSet) {
		if !slices.Contains(own, a) {
			p.setup = append(p.setup, op{verb: delAddrFromSet, route: localRoute{addr: a}})
		}
	}
	for _, a := range own {
		if !s.addrSet[a] {
			p.addrSetOps = append(p.addrSetOps, op{verb: addAddrToSet, route: localRoute{addr: a}})
		}
	}
	for _, k := range sortedKeys(s.servers) {
		if !s.serverSet[k] {
			p.setup = append(p.setup, op{verb: addServerToSet, key: k})
		}
	}
	for _, k := range sortedKeys(s.serverSet) {
		if s.servers[k] == nil {
			p.setup = append(p.setup, op{verb: delServerFromSet, key: k})
		}
	}
}

// comparePort plans the change from s to the virtual servers of port, and adds them to
// seen. hasRoute reports whether an address has a route.
func (p *plan) comparePort(port *service.Port, s *state, hasRoute func(netip.Addr) bool, seen map[key]bool) {
	b, u := p.backend, unit{port: port}
	for _, w := range b.options.servers(port, p.next.localNode) {
		_, owned := b.owned[w.key]
		p.compareServer(&u, s.servers[w.key], w, hasRoute(w.addr) && owned)
		seen[w.key] = true
		if owned {
			b.owned[w.key] = true
		}
	}
	p.add(u)
}

// compareRoutes plans a route with the right source for each address.
func (p *plan) compareRoutes(routed map[netip.Addr]netip.Addr) {
	source := nodeView{node: p.next.view.Node}.source(p.backend.family)
	for _, a := range sortedAddrs(p.next.addrRefs) {
		if from, found := routed[a]; !found || from != source {
			p.addRoutes = append(p.addRoutes, op{verb: addRoute, route: localRoute{a, source}})
		}
	}
	for _, a := range sortedAddrs(routed) {
		if p.next.addrRefs[a] == 0 && (p.previousAddrs[a] > 0 || !p.next.view.Incomplete) {
			p.deleteRoutes = append(p.deleteRoutes, op{verb: delRoute, route: localRoute{addr: a}})
		}
	}
}

// compareServer plans the change from l, nil if it does not exist, to w. owned means that
// the node has w's address for Services only and that we made the server: then l is ours,
// even if it was changed. A virtual server of kube-proxy is adopted with its connections.
func (p *plan) compareServer(u *unit, l *observedServer, w desiredServer, owned bool) {
	k := w.key
	foreign := l != nil && !l.owned()
	switch {
	case foreign && p.backend.options.excludes(k.addr), foreign && !owned && !l.upstream:
		if len(w.endpoints) > 0 {
			u.err = errors.Join(u.err, fmt.Errorf("%s: %w", k, errForeign))
		}
		return
	case l == nil:
		delete(p.drainingDests, k)
		p.planServer(u, desiredServer{}, w, p.knownToRules[k])
		return
	case l.server.normalized() != w.server.normalized():
		u.beforeRules = append(u.beforeRules, op{verb: setServer, key: k, server: w.server})
	}
	stay := p.compareDests(u, l, w)
	if len(w.endpoints) == 0 && stay == 0 {
		// Deleting the server deletes its destinations.
		u.beforeRules = slices.DeleteFunc(u.beforeRules, func(o op) bool { return o.key == k })
		u.afterRules = slices.DeleteFunc(u.afterRules, func(o op) bool { return o.key == k })
		u.deleteServer(w)
		delete(p.drainingDests, k)
		if p.drainedServers == nil {
			p.drainedServers = map[key]bool{}
		}
		p.drainedServers[k] = !slices.ContainsFunc(l.dests, func(x dest) bool { return x.weight > 0 })
	}
}

// compareDests plans the change from l's destinations to w's. It returns how many of the
// other destinations stay for now.
func (p *plan) compareDests(u *unit, l *observedServer, w desiredServer) (stay int) {
	k, now := w.key, p.backend.now()
	held := map[netip.AddrPort]dest{}
	for _, x := range l.dests {
		held[x.addr] = x
	}
	m := destChanges{preservesClientIP: w.preservesClientIP, emptied: len(w.endpoints) == 0, refused: w.refused}
	for _, e := range w.endpoints {
		x, found := held[e.Addr]
		delete(held, e.Addr)
		p.drainingDests.remove(k, e.Addr)
		set := op{verb: setDest, key: k, dest: dest{addr: e.Addr, weight: 1}}
		switch {
		case !found:
			set.verb = addDest
			m.add = append(m.add, set)
		case x.weight == 0:
			m.add = append(m.add, set)
		case x.weight != 1 || x.wrongMode:
			u.beforeRules = append(u.beforeRules, set)
		}
		m.keepsDest = m.keepsDest || found && x.weight > 0
	}
	p.drainingDests.retain(k, l.dests)
	for _, x := range l.dests {
		if _, extraneous := held[x.addr]; !extraneous {
			continue
		}
		switch {
		case k.connectionless():
			m.del = append(m.del, p.removeDest(k, x))
			continue
		case x.weight > 0:
			m.del = append(m.del, p.removeDest(k, x))
		default:
			p.drainingDests.add(k, x.addr, now)
		}
		if x.weight == 0 && p.drainingDests.finished(k, x, now) {
			u.beforeRules = append(u.beforeRules, op{verb: delDest, key: k, dest: x})
			p.drainingDests.remove(k, x.addr)
			continue
		}
		stay++
	}
	// After a failed sync, the rules may admit clients to a server without destinations.
	m.knownToRules = p.knownToRules[k] || len(m.del) > 0
	u.schedule(m)
	return stay
}

// removeLeftovers deletes virtual servers that an earlier process left, if that is
// allowed, and those that Services of this process no longer have.
func (p *plan) removeLeftovers(s *state, seen map[key]bool) {
	var u unit
	for _, k := range sortedKeys(s.servers) {
		stays := p.next.view.Incomplete || p.backend.options.excludes(k.addr)
		if seen[k] || !s.servers[k].owned() || stays && !p.backend.owned[k] {
			continue
		}
		u.beforeRules = append(u.beforeRules, op{verb: delServer, key: k})
		p.removed = append(p.removed, &service.Port{
			Name: service.PortName{Protocol: k.proto}, Family: p.backend.family,
			Frontends: []service.Frontend{k.frontend()},
		})
	}
	p.add(u)
}

// describeDrift describes the foreign changes that make p necessary. Drained
// destinations are not drift, and neither is what an earlier sync could not do.
func (p *plan) describeDrift(d failedPorts) []string {
	p.units = d.excludeFrom(p.units)
	var r reconcile.DriftReport
	for _, o := range p.ops() {
		if o.verb == delDest && o.dest.weight == 0 || o.verb == delServer && p.drainedServers[o.key] || p.causedByOthers(o) {
			continue
		}
		r.Add(func() string { return driftText(o) })
	}
	return r.Lines()
}

// causedByOthers reports whether o may be needed because another process made or deleted
// a virtual server of its own.
func (p *plan) causedByOthers(o op) bool {
	_, owned := p.backend.owned[o.key]
	return o.verb == delServerFromSet || o.verb == addServerToSet && !owned
}

// portError wraps err with the Port of u.
func (u *unit) portError(err error) error {
	if u.port == nil {
		return err
	}
	return &reconcile.PortError{Family: u.port.Family, Name: u.port.Name, Err: err}
}
