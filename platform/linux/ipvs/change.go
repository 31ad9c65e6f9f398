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

// changes fills p with what leads from h to what p is for, where cs are the
// differences.
func (p *plan) changes(ctx context.Context, h *installed, cs []service.Change) error {
	p.next.read, p.next.addrs, p.next.at = h.read, h.addrs, h.at
	p.delta = map[netip.Addr]int{}
	node := p.next.view.Node
	p.doubted = p.doubt(h, cs)
	if err := p.resolve(ctx, h); err != nil {
		return fmt.Errorf("ask for virtual servers that could not be changed: %w", err)
	}
	held := p.passed(cs)
	for _, c := range cs {
		if !p.doubted.ports[c.Name()] {
			p.port(c, held)
		}
		count(p.delta, c.Old, node, -1)
		count(p.delta, c.New, node, 1)
	}
	source := p.backend.node.source(p.backend.family)
	for _, a := range sortedAddrs(p.delta) {
		switch before, n := h.addrs[a], p.delta[a]; {
		case before == 0 && n > 0:
			p.routes = append(p.routes, op{verb: addRoute, route: localRoute{a, source}})
		case before > 0 && before+n == 0:
			p.unroutes = append(p.unroutes, op{verb: delRoute, route: localRoute{addr: a}})
		}
	}
	return nil
}

// passed returns the virtual servers that go from one Port to another, as the
// one has them that leaves them.
func (p *plan) passed(cs []service.Change) map[key]wanted {
	left := map[key]wanted{}
	for _, c := range cs {
		if c.Old != nil && (c.New == nil || !slices.EqualFunc(c.Old.Frontends, c.New.Frontends, sameAddress)) {
			for _, w := range p.backend.options.servers(c.Old, p.next.at) {
				left[w.key] = w
			}
		}
	}
	passed := map[key]wanted{}
	for _, c := range cs {
		if len(left) == 0 || c.New == nil {
			continue
		}
		for _, w := range p.backend.options.servers(c.New, p.next.at) {
			if had, found := left[w.key]; found {
				passed[w.key] = had
			}
		}
	}
	return passed
}

func sameAddress(a, b service.Frontend) bool {
	return a.Kind == b.Kind && a.Addr == b.Addr && a.Port == b.Port
}

// count counts the addresses of p, which may be nil.
func count(counts map[netip.Addr]int, p *service.Port, node *service.Node, n int) {
	if p == nil {
		return
	}
	for _, a := range virtualAddrs(p, node) {
		if counts[a] += n; counts[a] == 0 {
			delete(counts, a)
		}
	}
}

// port plans the change of one Port. A virtual server that it has from another
// one, or leaves to it, is among those that are passed.
func (p *plan) port(c service.Change, passed map[key]wanted) {
	u := unit{port: c.New}
	old := map[key]wanted{}
	if c.New == nil {
		u.port = c.Old
	}
	if c.Old != nil {
		for _, w := range p.backend.options.servers(c.Old, p.next.at) {
			old[w.key] = w
		}
	}
	if c.New != nil {
		for _, w := range p.backend.options.servers(c.New, p.next.at) {
			had, found := old[w.key]
			if !found {
				had, found = passed[w.key]
			}
			p.server(&u, had, w, found && !had.refused)
			delete(old, w.key)
		}
	}
	for _, k := range sortedKeys(old) {
		if _, found := passed[k]; !found && (len(old[k].endpoints) > 0 || len(p.drains[k]) > 0) {
			u.ops = append(u.ops, op{verb: delServer, key: k})
			delete(p.drains, k)
		}
	}
	p.add(u)
}

// server plans the change of one virtual server, whose address the rules beside
// know already, or not. What they refuse they do not know: they do so behind IPVS
// where the node itself connects, so who is to be dropped then is to be so first.
func (p *plan) server(u *unit, old, next wanted, known bool) {
	k := next.key
	drained := len(p.drains[k]) > 0
	m := moves{known: known, plain: next.plain, closes: len(next.endpoints) == 0, refused: next.refused}
	switch {
	case m.closes && k.drainsNot():
		if len(old.endpoints) > 0 {
			u.end(next)
		}
		return
	case m.closes && len(old.endpoints) == 0 && !drained:
	case len(old.endpoints) == 0 && !drained:
		m.come = append(m.come, op{verb: addServer, key: k, server: next.server})
	case old.server != next.server:
		u.ops = append(u.ops, op{verb: setServer, key: k, server: next.server})
	}
	merge(old.endpoints, next.endpoints, func(had, wants bool, a netip.AddrPort) {
		switch {
		case had && !wants:
			m.leave = append(m.leave, p.leave(k, dest{addr: a, weight: 1}))
		case wants && !had && p.drains.has(k, a):
			m.come = append(m.come, op{verb: setDest, key: k, dest: dest{addr: a, weight: 1}})
			p.drains.remove(k, a)
		case wants && !had:
			m.come = append(m.come, op{verb: addDest, key: k, dest: dest{addr: a, weight: 1}})
		default:
			m.stays = true
		}
	})
	u.move(m)
}

// moves are the changes to one virtual server's destinations.
type moves struct {
	come, leave []op
	known       bool // the rules know the address already
	stays       bool // there is a destination before and after
	closes      bool // there is none after
	refused     bool // the new rules refuse, but behind IPVS
	plain       bool // the new rules do not masquerade for them
}

// move orders m before and after the change of the rules, so that at each moment
// there is a destination if there is one before and after, and none is reached
// that the rules do not masquerade for, though its answers come some other way.
func (u *unit) move(m moves) {
	switch {
	case m.refused:
		u.ops = append(u.ops, m.leave...)
	case m.closes:
		// The rules know better what to do with those who come.
		u.late = append(u.late, m.leave...)
	case m.stays || !m.known:
		u.ops = append(u.ops, m.leave...)
		u.late = append(u.late, m.come...)
	case len(m.leave) == 0 || m.plain:
		// The old rules let nobody in, or masquerade rather than the new ones.
		u.ops = append(append(u.ops, m.come...), m.leave...)
	default:
		u.late = append(append(u.late, m.come...), m.leave...)
	}
}

// end removes a virtual server that has nobody behind it any more.
func (u *unit) end(w wanted) {
	o := op{verb: delServer, key: w.key}
	if w.refused {
		u.ops = append(u.ops, o)
		return
	}
	u.late = append(u.late, o)
}

// leave has a destination drain, or go at once where connections have no end.
func (p *plan) leave(k key, x dest) op {
	if k.drainsNot() {
		return op{verb: delDest, key: k, dest: x}
	}
	p.drains.add(k, x.addr, p.backend.now())
	return op{verb: setDest, key: k, dest: dest{addr: x.addr}}
}

// drainsNot reports that k's connections have no end of their own.
func (k key) drainsNot() bool { return k.proto == service.UDP }

// merge walks two sorted lists at once.
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
