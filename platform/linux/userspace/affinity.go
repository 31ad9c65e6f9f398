// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"container/list"
	"net/netip"
	"time"
)

// maxClients limits the number of clients remembered per Service port. Beyond it, the
// least recently used clients are dropped.
const maxClients = 1 << 15

// affinityTable stores the endpoint of each client. The zero value is empty.
type affinityTable struct {
	byAddr map[netip.Addr]*list.Element
	order  list.List // of *affinityEntry, most recently used at the back
}

type affinityEntry struct {
	addr netip.Addr
	at   netip.AddrPort
	used time.Time
}

// lookup returns the endpoint that addr used less than ttl ago, and counts as a use.
func (c *affinityTable) lookup(addr netip.Addr, now time.Time, ttl time.Duration) (netip.AddrPort, bool) {
	c.expire(now, ttl)
	e, known := c.byAddr[addr]
	if !known {
		return netip.AddrPort{}, false
	}
	x := e.Value.(*affinityEntry)
	x.used = now
	c.order.MoveToBack(e)
	return x.at, true
}

// store records that addr uses the endpoint at.
func (c *affinityTable) store(addr netip.Addr, at netip.AddrPort, now time.Time, ttl time.Duration) {
	if e, known := c.byAddr[addr]; known {
		c.remove(e)
	}
	c.expire(now, ttl)
	if len(c.byAddr) >= maxClients {
		c.remove(c.order.Front())
	}
	if c.byAddr == nil {
		c.byAddr = map[netip.Addr]*list.Element{}
	}
	c.byAddr[addr] = c.order.PushBack(&affinityEntry{addr, at, now})
}

// forget removes addr if its endpoint is at.
func (c *affinityTable) forget(addr netip.Addr, at netip.AddrPort) {
	if e, known := c.byAddr[addr]; known && e.Value.(*affinityEntry).at == at {
		c.remove(e)
	}
}

func (c *affinityTable) expire(now time.Time, ttl time.Duration) {
	for e := c.order.Front(); e != nil && now.Sub(e.Value.(*affinityEntry).used) >= ttl; e = c.order.Front() {
		c.remove(e)
	}
}

func (c *affinityTable) remove(e *list.Element) {
	delete(c.byAddr, e.Value.(*affinityEntry).addr)
	c.order.Remove(e)
}

// peek is lookup without effect: it does not count as a use.
func (c *affinityTable) peek(addr netip.Addr, now time.Time, ttl time.Duration) (netip.AddrPort, bool) {
	e, known := c.byAddr[addr]
	if !known {
		return netip.AddrPort{}, false
	}
	x := e.Value.(*affinityEntry)
	return x.at, now.Sub(x.used) < ttl
}
