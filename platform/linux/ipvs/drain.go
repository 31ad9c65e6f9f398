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

// drainingDests has, by virtual server, the destinations that left and may keep
// their connections for a while, and when they left.
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

// add notes that a drains, from now on unless it does already.
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

// retain forgets what k has drain and is not among held: somebody removed it.
func (d drainingDests) retain(k key, held []dest) {
	for a := range d[k] {
		if !slices.ContainsFunc(held, func(x dest) bool { return x.addr == a }) {
			d.remove(k, a)
		}
	}
}

// finished reports that a has drained, or has had its time.
func (d drainingDests) finished(k key, x dest, now time.Time) bool {
	return x.conns == 0 || now.Sub(d[k][x.addr]) >= DrainTimeout
}

// drainPollInterval is how often what drains is looked at.
const drainPollInterval = 5 * time.Second

// setDraining notes what drains now.
func (b *Backend) setDraining(d drainingDests) {
	b.drainingDests = d
	b.draining.Store(len(d) > 0)
}

// logDraining logs what p has drain, the first time to everybody, and what it
// cuts off.
func (p *plan) logDraining(ctx context.Context) {
	begun, conns := 0, uint32(0)
	for k, at := range p.drainingDests {
		for a := range at {
			if !p.backend.drainingDests.has(k, a) {
				begun++
			}
		}
	}
	for o := range p.ops() {
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

// serversGainingDests returns the virtual servers that get a destination.
func (p *plan) serversGainingDests() map[key]bool {
	all := map[key]bool{}
	for o := range p.ops() {
		if o.verb == addDest {
			all[o.key] = true
		}
	}
	return all
}

// removeDrained plans to remove the destinations that have drained, or have had
// their time.
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
		if len(p.drainingDests[k]) == 0 || p.recheck.keys[k] { // it goes with its Service, or has been looked at
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
