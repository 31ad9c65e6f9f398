// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"time"

	"k8s.io/klog/v2"
)

// drainingDests are the destinations that drain, by virtual server, with the time when
// draining began.
type drainingDests map[key]map[netip.AddrPort]time.Time

func (d drainingDests) clone() drainingDests {
	c := make(drainingDests, len(d))
	for k, at := range d {
		c[k] = maps.Clone(at)
	}
	return c
}

func (d drainingDests) has(k key, a netip.AddrPort) bool {
	_, found := d[k][a]
	return found
}

// add records that a drains, from now on unless it already does.
func (d drainingDests) add(k key, a netip.AddrPort, now time.Time) {
	if d[k] == nil {
		d[k] = map[netip.AddrPort]time.Time{}
	}
	if !d.has(k, a) {
		d[k][a] = now
	}
}

func (d drainingDests) remove(k key, a netip.AddrPort) {
	if delete(d[k], a); len(d[k]) == 0 {
		delete(d, k)
	}
}

// retain removes the destinations of k that are not in held: another process deleted
// them.
func (d drainingDests) retain(k key, held []dest) {
	for a := range d[k] {
		if !slices.ContainsFunc(held, func(x dest) bool { return x.addr == a }) {
			d.remove(k, a)
		}
	}
}

// finished reports whether x has no connections or has reached DrainTimeout.
func (d drainingDests) finished(k key, x dest, now time.Time) bool {
	return x.conns == 0 || now.Sub(d[k][x.addr]) >= DrainTimeout
}

// drainPollInterval is the interval between two checks of draining destinations.
const drainPollInterval = 5 * time.Second

// setDraining stores the draining destinations.
func (b *Backend) setDraining(d drainingDests) {
	b.drainingDests = d
	b.draining.Store(len(d) > 0)
}

// logDraining logs which draining p begins and which connections it cuts off. The first
// begin is logged at level 0, later ones at level 2.
func (p *plan) logDraining(ctx context.Context) {
	begun, conns := 0, uint32(0)
	for k, at := range p.drainingDests {
		for a := range at {
			if !p.backend.drainingDests.has(k, a) {
				begun++
			}
		}
	}
	for _, o := range p.ops() {
		if o.verb == delDest && !o.key.connectionless() {
			conns += o.dest.conns
		}
	}
	log := klog.FromContext(ctx)
	if begun > 0 {
		level := 2
		if !p.backend.drainLogged {
			level, p.backend.drainLogged = 0, true
		}
		log.V(level).Info("Endpoints that left keep their connections until these end", "destinations", begun, "atMost", DrainTimeout)
	}
	if conns > 0 {
		log.Info("Endpoints that left a while ago lost the connections that they still had", "connections", conns, "after", DrainTimeout)
	}
}

// serversGainingDests returns the virtual servers that get a new destination.
func (p *plan) serversGainingDests() map[key]bool {
	all := map[key]bool{}
	for _, o := range p.ops() {
		if o.verb == addDest {
			all[o.key] = true
		}
	}
	return all
}

// removeDrained plans to delete the destinations that have drained or have reached
// DrainTimeout.
func (p *plan) removeDrained(ctx context.Context) error {
	b := p.backend
	now := b.now()
	if len(b.drainingDests) == 0 || now.Sub(b.lastDrainCheck) < drainPollInterval/2 {
		return nil
	}
	b.lastDrainCheck = now
	var u unit
	arriving := p.serversGainingDests()
	for _, k := range sortedKeys(b.drainingDests) {
		if len(p.drainingDests[k]) == 0 || p.recheck.keys[k] { // with its Service, or checked
			continue
		}
		held, err := b.driver.Dests(ctx, k)
		if err != nil {
			return err
		}
		p.drainingDests.retain(k, held)
		left := len(held)
		for _, x := range held {
			if b.drainingDests.has(k, x.addr) && p.drainingDests.has(k, x.addr) && p.drainingDests.finished(k, x, now) {
				u.beforeRules = append(u.beforeRules, op{verb: delDest, key: k, dest: x})
				p.drainingDests.remove(k, x.addr)
				left--
			}
		}
		if left == 0 && len(held) > 0 && !arriving[k] {
			u.afterRules = append(u.afterRules, op{verb: delServer, key: k})
		}
	}
	p.add(u)
	return nil
}
