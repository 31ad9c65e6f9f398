// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"kubeproxy/common/service"
)

// target selects among the endpoints of one Service port.
type target struct {
	mu       sync.Mutex
	lists    [2]roundRobin       // by policy
	draining [2][]netip.AddrPort // by policy
	affinity time.Duration
	clients  affinityTable

	name       service.PortName // never changes
	unserved   int              // unserved clients since the last report
	reportedAt time.Time        // time of the last report
}

// roundRobin selects endpoints in turn.
type roundRobin struct {
	endpoints []netip.AddrPort // sorted
	next      int
}

func newTarget(name service.PortName) *target {
	t := &target{name: name}
	for i := range t.lists { // start at random, so that nodes differ
		t.lists[i].next = int(rand.Int32())
	}
	return t
}

// update sets the endpoints and affinity of p.
func (t *target) update(p *service.Port) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lists[service.PolicyCluster].endpoints = addrs(p.Cluster)
	t.lists[service.PolicyLocal].endpoints = addrs(p.Local)
	t.draining[service.PolicyCluster] = addrs(p.Draining)
	t.draining[service.PolicyLocal] = addrs(onNode(p.Draining))
	t.affinity = p.Affinity
	if p.Affinity == 0 {
		t.clients = affinityTable{}
	}
}

// onNode returns the endpoints of this node.
func onNode(endpoints []service.Endpoint) []service.Endpoint {
	return slices.DeleteFunc(slices.Clone(endpoints), func(e service.Endpoint) bool { return !e.Local })
}

func addrs(endpoints []service.Endpoint) []netip.AddrPort {
	all := make([]netip.AddrPort, len(endpoints))
	for i, e := range endpoints {
		all[i] = e.Addr
	}
	return all
}

// listenerClaim returns the claim of a listener.
func (t *target) listenerClaim() claim {
	return claim{files: 1, service: serviceName{t.name.Namespace, t.name.Name}}
}

// clientClaim returns the claim of a client.
func (t *target) clientClaim(client netip.Prefix, files int) claim {
	c := t.listenerClaim()
	c.files, c.client = files, client
	return c
}

// choose returns an endpoint for a client, one that is not in tried if possible. It
// returns false if there is no endpoint.
func (t *target) choose(policy service.Policy, client netip.Addr, tried []netip.AddrPort) (netip.AddrPort, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := &t.lists[policy]
	if len(l.endpoints) == 0 {
		return netip.AddrPort{}, false
	}
	now := time.Now()
	if t.affinity > 0 && len(tried) == 0 {
		if e, known := t.clients.lookup(client, now, t.affinity); known && l.has(e) {
			return e, true
		}
	}
	e := l.pick(tried)
	if t.affinity > 0 {
		t.clients.store(client, e, now, t.affinity)
	}
	return e, true
}

func (l *roundRobin) has(e netip.AddrPort) bool {
	_, found := slices.BinarySearchFunc(l.endpoints, e, netip.AddrPort.Compare)
	return found
}

func (l *roundRobin) pick(tried []netip.AddrPort) netip.AddrPort {
	var e netip.AddrPort
	for range l.endpoints {
		l.next = (l.next + 1) % len(l.endpoints)
		if e = l.endpoints[l.next]; !slices.Contains(tried, e) {
			break
		}
	}
	return e
}

// forget removes the affinity of client to e, so that its next connection uses another
// endpoint.
func (t *target) forget(client netip.Addr, e netip.AddrPort) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.clients.forget(client, e)
}

// serves reports whether a flow that began at e for policy may continue.
func (t *target) serves(policy service.Policy, e netip.AddrPort) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.lists[policy].has(e) || slices.Contains(t.draining[policy], e)
}
