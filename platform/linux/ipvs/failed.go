// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

// A Port may fail for a long time, for example if there is a foreign virtual server on
// its address. Each sync then reads the kernel state of this Port, and of nothing else.

// failedPorts are the Ports that a sync failed for, with the virtual servers that it
// tried to change.
type failedPorts map[service.PortName][]key

// maxFailedPorts limits them. Reading more servers one by one takes longer than a list.
const maxFailedPorts = 64

// findFailedPorts returns the Ports that errs are about.
func (p *plan) findFailedPorts(errs []error) failedPorts {
	if len(errs) == 0 {
		return nil
	}
	d := failedPorts{}
	for _, e := range reconcile.PortErrors(errors.Join(errs...)) {
		d[e.Name] = nil
	}
	for _, u := range p.units {
		if u.port == nil {
			continue
		}
		if _, failed := d[u.port.Name]; !failed {
			continue
		}
		for _, o := range slices.Concat(u.beforeRules, u.afterRules) {
			d[u.port.Name] = append(d[u.port.Name], o.key)
		}
	}
	return d
}

// excludeFrom returns units without what concerns d.
func (d failedPorts) excludeFrom(units []unit) []unit {
	in := map[key]bool{}
	for _, keys := range d {
		for _, k := range keys {
			in[k] = true
		}
	}
	var rest []unit
	for _, u := range units {
		if u.port == nil {
			u.beforeRules = slices.DeleteFunc(u.beforeRules, func(o op) bool { return in[o.key] })
		} else if _, found := d[u.port.Name]; found {
			continue
		}
		rest = append(rest, u)
	}
	return rest
}

// unmarkFailed removes from knownToRules the virtual servers of h that may have no
// destinations although the rules admit clients.
func (p *plan) unmarkFailed(h *installed) {
	for name := range h.failedPorts {
		port := h.view.Port(p.backend.family, name)
		if port == nil {
			continue
		}
		for _, w := range p.backend.options.servers(port, h.localNode) {
			if len(w.endpoints) > 0 {
				delete(p.knownToRules, w.key)
			}
		}
	}
}

// recheckSet are the Ports and virtual servers that are compared with the kernel in a
// sync that compares nothing else.
type recheckSet struct {
	ports map[service.PortName]bool
	keys  map[key]bool
}

// portsToRecheck returns the failed Ports of h, and those of cs that share virtual
// servers with them.
func (p *plan) portsToRecheck(h *installed, cs []service.Change) recheckSet {
	d := recheckSet{map[service.PortName]bool{}, map[key]bool{}}
	take := func(name service.PortName) {
		d.ports[name] = true
		for _, s := range []*service.Snapshot{h.view, p.next.view} {
			for _, k := range p.serverKeys(s.Port(p.backend.family, name)) {
				d.keys[k] = true
			}
		}
	}
	for name, keys := range h.failedPorts {
		take(name)
		for _, k := range keys {
			d.keys[k] = true
		}
	}
	for more := len(d.ports) > 0; more; {
		more = false
		for _, c := range cs {
			if !d.ports[c.Name()] && p.affects(c, d.keys) {
				take(c.Name())
				more = true
			}
		}
	}
	return d
}

// serverKeys returns the virtual servers of port, which may be nil.
func (p *plan) serverKeys(port *service.Port) []key {
	if port == nil {
		return nil
	}
	var keys []key
	for _, w := range p.backend.options.servers(port, p.next.localNode) {
		keys = append(keys, w.key)
	}
	return keys
}

// affects reports whether c concerns one of keys.
func (p *plan) affects(c service.Change, keys map[key]bool) bool {
	return slices.ContainsFunc(slices.Concat(p.serverKeys(c.Old), p.serverKeys(c.New)), func(k key) bool { return keys[k] })
}

// recheckFailed reads the kernel state of p.recheck and plans the change to p.next.
func (p *plan) recheckFailed(ctx context.Context, h *installed) error {
	b, d := p.backend, p.recheck
	if len(d.ports) == 0 {
		return nil
	}
	s := &state{servers: map[key]*observedServer{}}
	for _, k := range sortedKeys(d.keys) {
		l, err := b.driver.Server(ctx, k)
		if err != nil {
			return err
		}
		if l == nil {
			delete(b.owned, k)
			continue
		}
		s.servers[k] = l
	}
	b.recordOwned(s)
	p.knownToRules = map[key]bool{}
	for name := range d.ports {
		p.markKnown(h.view.Port(b.family, name), p.next.localNode)
	}
	p.unmarkFailed(h)
	seen := map[key]bool{}
	for _, name := range slices.SortedFunc(maps.Keys(d.ports), service.PortName.Compare) {
		if port := p.next.view.Port(b.family, name); port != nil {
			p.comparePort(port, s, func(a netip.Addr) bool { return h.addrRefs[a] > 0 }, seen)
		}
	}
	for k := range d.keys {
		if !seen[k] {
			delete(p.drainingDests, k)
		}
	}
	p.removeLeftovers(s, seen)
	return nil
}
