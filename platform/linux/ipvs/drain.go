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

// drains has, by virtual server, the destinations that left and may keep
// their connections for a while, and when they left.
type drains map[key]map[netip.AddrPort]time.Time

func (d drains) clone() drains {
	c := make(drains, len(d))
	for k, at := range d {
		c[k] = maps.Clone(at)
	}
	return c
}

func (d drains) has(k key, a netip.AddrPort) bool {
	_, found := d[k][a]
	return found
}

// add notes that a drains, from now on unless it does already.
func (d drains) add(k key, a netip.AddrPort, now time.Time) {
	if d[k] == nil {
		d[k] = map[netip.AddrPort]time.Time{}
	}
	if !d.has(k, a) {
		d[k][a] = now
	}
}

func (d drains) remove(k key, a netip.AddrPort) {
	if delete(d[k], a); len(d[k]) == 0 {
		delete(d, k)
	}
}

// keep forgets what k has drain and is not among held: somebody removed it.
func (d drains) keep(k key, held []dest) {
	for a := range d[k] {
		if !slices.ContainsFunc(held, func(x dest) bool { return x.addr == a }) {
			d.remove(k, a)
		}
	}
}

// over reports that a has drained, or has had its time.
func (d drains) over(k key, x dest, now time.Time) bool {
	return x.conns == 0 || now.Sub(d[k][x.addr]) >= DrainBound
}

// drainEvery is how often what drains is looked at.
const drainEvery = 5 * time.Second

// drain notes what drains now.
func (b *Backend) drain(d drains) {
	b.drains = d
	b.draining.Store(len(d) > 0)
}

// tellDrains logs what p has drain, the first time to everybody, and what it
// cuts off.
func (p *plan) tellDrains(ctx context.Context) {
	begun, conns := 0, uint32(0)
	for k, at := range p.drains {
		for a := range at {
			if !p.backend.drains.has(k, a) {
				begun++
			}
		}
	}
	for o := range p.ops() {
		if o.verb == delDest && !o.key.drainsNot() {
			conns += o.dest.conns
		}
	}
	log := klog.FromContext(ctx)
	if begun > 0 {
		level := 2
		if !p.backend.told {
			level, p.backend.told = 0, true
		}
		log.V(level).Info("Endpoints that left keep their connections until these end", "destinations", begun, "atMost", DrainBound)
	}
	if conns > 0 {
		log.Info("Endpoints that left a while ago lost the connections that they still had", "connections", conns, "after", DrainBound)
	}
}

// arriving returns the virtual servers that get a destination.
func (p *plan) arriving() map[key]bool {
	all := map[key]bool{}
	for o := range p.ops() {
		if o.verb == addDest {
			all[o.key] = true
		}
	}
	return all
}

// endDrains plans to remove the destinations that have drained, or have had
// their time.
func (p *plan) endDrains(ctx context.Context) error {
	b := p.backend
	now := b.now()
	if len(b.drains) == 0 || now.Sub(b.looked) < drainEvery/2 {
		return nil
	}
	b.looked = now
	var u unit
	arriving := p.arriving()
	for _, k := range sortedKeys(b.drains) {
		if len(p.drains[k]) == 0 || p.doubted.keys[k] { // it goes with its Service, or has been looked at
			continue
		}
		held, err := b.driver.Dests(ctx, k)
		if err != nil {
			return err
		}
		p.drains.keep(k, held)
		left := len(held)
		for _, x := range held {
			if b.drains.has(k, x.addr) && p.drains.has(k, x.addr) && p.drains.over(k, x, now) {
				u.ops = append(u.ops, op{verb: delDest, key: k, dest: x})
				p.drains.remove(k, x.addr)
				left--
			}
		}
		if left == 0 && len(held) > 0 && !arriving[k] {
			u.late = append(u.late, op{verb: delServer, key: k})
		}
	}
	p.add(u)
	return nil
}
