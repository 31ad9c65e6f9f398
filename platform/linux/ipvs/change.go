// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"kubeproxy/common/service"
)

// planChanges fills p with the change from h to p.next, without reading the kernel. cs
// are the differences.
func (p *plan) planChanges(ctx context.Context, h *installed, cs []service.Change) error {
	p.next.readAt, p.next.addrRefs, p.next.localNode = h.readAt, h.addrRefs, h.localNode
	p.delta = map[netip.Addr]int{}
	node := p.next.view.Node
	p.recheck = p.portsToRecheck(h, cs)
	if err := p.recheckFailed(ctx, h); err != nil {
		return fmt.Errorf("ask for virtual servers that could not be changed: %w", err)
	}
	held := p.handedOver(cs)
	for _, c := range cs {
		if !p.recheck.ports[c.Name()] {
			p.planPort(c, held)
		}
		countAddrs(p.delta, c.Old, node, -1)
		countAddrs(p.delta, c.New, node, 1)
	}
	source := p.backend.node.source(p.backend.family)
	for _, a := range sortedAddrs(p.delta) {
		switch before, n := h.addrRefs[a], p.delta[a]; {
		case before == 0 && n > 0:
			p.addRoutes = append(p.addRoutes, op{verb: addRoute, route: localRoute{a, source}})
		case before > 0 && before+n == 0:
			p.deleteRoutes = append(p.deleteRoutes, op{verb: delRoute, route: localRoute{addr: a}})
		}
	}
	return nil
}

// handedOver returns the virtual servers that move from one Port to another, as the old
// Port has them.
func (p *plan) handedOver(cs []service.Change) map[key]desiredServer {
	left := map[key]desiredServer{}
	for _, c := range cs {
		if c.Old != nil && (c.New == nil || !slices.EqualFunc(c.Old.Frontends, c.New.Frontends, service.Frontend.SameAddress)) {
			for _, w := range p.backend.options.servers(c.Old, p.next.localNode) {
				left[w.key] = w
			}
		}
	}
	moved := map[key]desiredServer{}
	for _, c := range cs {
		if len(left) == 0 || c.New == nil {
			continue
		}
		for _, w := range p.backend.options.servers(c.New, p.next.localNode) {
			if had, found := left[w.key]; found {
				moved[w.key] = had
			}
		}
	}
	return moved
}

// countAddrs adds n to the counts of the addresses of p, which may be nil.
func countAddrs(counts map[netip.Addr]int, p *service.Port, node *service.Node, n int) {
	if p == nil {
		return
	}
	for _, a := range virtualAddrs(p, node) {
		if counts[a] += n; counts[a] == 0 {
			delete(counts, a)
		}
	}
}

// planPort plans the change of one Port. Virtual servers that it takes from or leaves to
// another Port are in handedOver.
func (p *plan) planPort(c service.Change, handedOver map[key]desiredServer) {
	u := unit{port: c.New}
	old := map[key]desiredServer{}
	if c.New == nil {
		u.port = c.Old
	}
	if c.Old != nil {
		for _, w := range p.backend.options.servers(c.Old, p.next.localNode) {
			old[w.key] = w
		}
	}
	if c.New != nil {
		for _, w := range p.backend.options.servers(c.New, p.next.localNode) {
			had, found := old[w.key]
			if !found {
				had, found = handedOver[w.key]
			}
			p.planServer(&u, had, w, found && !had.refused)
			delete(old, w.key)
		}
	}
	for _, k := range sortedKeys(old) {
		if _, found := handedOver[k]; !found && (len(old[k].endpoints) > 0 || len(p.drainingDests[k]) > 0) {
			u.beforeRules = append(u.beforeRules, op{verb: delServer, key: k})
			delete(p.drainingDests, k)
		}
	}
	p.add(u)
}

// planServer plans the change of one virtual server. known means that the installed rules
// already cover its address. Rules that reject do not count: for connections of the node
// itself, rejecting happens after IPVS (kernel: net/netfilter/ipvs/ip_vs_core.c,
// ip_vs_ops4). So the new rules must be in force before such a server gets destinations.
func (p *plan) planServer(u *unit, old, next desiredServer, known bool) {
	k := next.key
	drained := len(p.drainingDests[k]) > 0
	m := destChanges{knownToRules: known, preservesClientIP: next.preservesClientIP, emptied: len(next.endpoints) == 0, refused: next.refused}
	switch {
	case m.emptied && k.connectionless():
		if len(old.endpoints) > 0 {
			u.deleteServer(next)
		}
		return
	case m.emptied && len(old.endpoints) == 0 && !drained:
	case len(old.endpoints) == 0 && !drained:
		m.add = append(m.add, op{verb: addServer, key: k, server: next.server})
	case old.server != next.server:
		u.beforeRules = append(u.beforeRules, op{verb: setServer, key: k, server: next.server})
	}
	merge(old.endpoints, next.endpoints, func(had, wants bool, a netip.AddrPort) {
		switch {
		case had && !wants:
			m.del = append(m.del, p.removeDest(k, dest{addr: a, weight: 1}))
		case wants && !had && p.drainingDests.has(k, a):
			m.add = append(m.add, op{verb: setDest, key: k, dest: dest{addr: a, weight: 1}})
			p.drainingDests.remove(k, a)
		case wants && !had:
			m.add = append(m.add, op{verb: addDest, key: k, dest: dest{addr: a, weight: 1}})
		default:
			m.keepsDest = true
		}
	})
	u.schedule(m)
}

// destChanges are the changes of the destinations of one virtual server.
type destChanges struct {
	add, del          []op
	knownToRules      bool // the installed rules cover the address
	keepsDest         bool // some destination exists before and after
	emptied           bool // no destination exists after
	refused           bool // the new rules reject, but after IPVS
	preservesClientIP bool // the new rules do not masquerade
}

// schedule places m before or after the change of the rules. There is a destination at
// each moment if there is one before and after. No destination is reachable without
// masquerading if its replies would take another path.
func (u *unit) schedule(m destChanges) {
	switch {
	case m.refused:
		u.beforeRules = append(u.beforeRules, m.del...)
	case m.emptied:
		// The new rules know what to do with new clients.
		u.afterRules = append(u.afterRules, m.del...)
	case m.keepsDest || !m.knownToRules:
		u.beforeRules = append(u.beforeRules, m.del...)
		u.afterRules = append(u.afterRules, m.add...)
	case len(m.del) == 0 || m.preservesClientIP:
		// The old rules admit no client, or they masquerade and the new ones do not.
		u.beforeRules = append(append(u.beforeRules, m.add...), m.del...)
	default:
		u.afterRules = append(append(u.afterRules, m.add...), m.del...)
	}
}

// deleteServer deletes a virtual server without endpoints.
func (u *unit) deleteServer(w desiredServer) {
	o := op{verb: delServer, key: w.key}
	if w.refused {
		u.beforeRules = append(u.beforeRules, o)
		return
	}
	u.afterRules = append(u.afterRules, o)
}

// removeDest lets a destination drain. For a connectionless protocol it deletes it at
// once.
func (p *plan) removeDest(k key, x dest) op {
	if k.connectionless() {
		return op{verb: delDest, key: k, dest: x}
	}
	p.drainingDests.add(k, x.addr, p.backend.now())
	return op{verb: setDest, key: k, dest: dest{addr: x.addr}}
}

// connectionless reports whether the connections of k have no end of their own.
func (k key) connectionless() bool { return k.proto == service.UDP }

// merge walks through two sorted lists at once.
func merge(old, next []service.Endpoint, each func(had, wants bool, a netip.AddrPort)) {
	for len(old) > 0 || len(next) > 0 {
		order := 0
		switch {
		case len(old) == 0:
			order = 1
		case len(next) == 0:
			order = -1
		default:
			order = old[0].Addr.Compare(next[0].Addr)
		}
		switch {
		case order < 0:
			each(true, false, old[0].Addr)
			old = old[1:]
		case order > 0:
			each(false, true, next[0].Addr)
			next = next[1:]
		default:
			each(true, true, next[0].Addr)
			old, next = old[1:], next[1:]
		}
	}
}

func sortedKeys[V any](m map[key]V) []key { return slices.SortedFunc(maps.Keys(m), key.compare) }

func sortedAddrs[V any](m map[netip.Addr]V) []netip.Addr {
	return slices.SortedFunc(maps.Keys(m), netip.Addr.Compare)
}
