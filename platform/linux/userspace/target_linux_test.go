// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"kubeproxy/common/service"
)

func endpoint(n int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 0, byte(n)}), 8080)
}

func who(n int) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, byte(n >> 8), byte(n)}) }

// TestRoundRobin checks that all endpoints are selected in turn, except one that was
// tried.
func TestRoundRobin(t *testing.T) {
	x := newTarget(service.PortName{})
	x.update(port("web", service.TCP, endpoint(1), endpoint(2), endpoint(3)))
	var seen []netip.AddrPort
	for range 6 {
		e, _ := x.choose(service.PolicyCluster, who(1), nil)
		seen = append(seen, e)
	}
	if !slices.Equal(seen[:3], seen[3:]) || seen[0] == seen[1] || seen[1] == seen[2] || seen[0] == seen[2] {
		t.Errorf("in turn came %v", seen)
	}
	for range 6 {
		if e, _ := x.choose(service.PolicyCluster, who(1), []netip.AddrPort{endpoint(1), endpoint(3)}); e != endpoint(2) {
			t.Errorf("after 1 and 3 comes %s", e)
		}
	}
	if _, ok := x.choose(service.PolicyLocal, who(1), nil); ok {
		t.Error("there is an endpoint for policy Local")
	}
}

// TestAffinity checks that clients return to their endpoint until their affinity expires
// or the endpoint is removed.
func TestAffinity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newTarget(service.PortName{})
		p := port("web", service.TCP, endpoint(1), endpoint(2), endpoint(3))
		p.Local, p.Affinity = p.Cluster[:2], 10*time.Second
		x.update(p)
		first, _ := x.choose(service.PolicyCluster, who(1), nil)
		for range 5 {
			time.Sleep(9 * time.Second)
			if e, _ := x.choose(service.PolicyCluster, who(1), nil); e != first {
				t.Fatalf("came to %s, was at %s", e, first)
			}
			_, _ = x.choose(service.PolicyCluster, who(2), nil) // other clients have no influence
		}
		if x.forget(who(1), endpoint(9)); len(x.clients.byAddr) != 2 {
			t.Error("forgotten for an endpoint that it did not use")
		}
		x.forget(who(1), first)
		if e, _ := x.choose(service.PolicyCluster, who(1), nil); e == first {
			t.Errorf("came back to %s, which does not answer", e)
		}
		time.Sleep(11 * time.Second)
		_, _ = x.choose(service.PolicyCluster, who(3), nil)
		if n := len(x.clients.byAddr); n != 1 || x.clients.order.Len() != 1 {
			t.Errorf("%d clients are remembered, want the last", n)
		}
		at, _ := x.choose(service.PolicyCluster, who(3), nil)
		q := port("web", service.TCP, endpoint(1), endpoint(2), endpoint(3))
		q.Affinity = p.Affinity
		q.Cluster = slices.DeleteFunc(q.Cluster, func(e service.Endpoint) bool { return e.Addr == at })
		x.update(q)
		if e, _ := x.choose(service.PolicyCluster, who(3), nil); e == at {
			t.Errorf("led to %s, which left", e)
		}
	})
}

// TestClientsAreBounded checks that the least recently used clients are dropped.
func TestClientsAreBounded(t *testing.T) {
	var c affinityTable
	now := time.Unix(1000, 0)
	for i := range maxClients + 10 {
		addr := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		c.store(addr, endpoint(1), now, time.Hour)
		_, _ = c.lookup(netip.AddrFrom4([4]byte{10, 0, 0, 0}), now, time.Hour)
	}
	if len(c.byAddr) != maxClients || c.order.Len() != maxClients {
		t.Errorf("%d clients are remembered, want %d", len(c.byAddr), maxClients)
	}
	if _, known := c.lookup(netip.AddrFrom4([4]byte{10, 0, 0, 0}), now, time.Hour); !known {
		t.Error("the one that comes all the time is forgotten")
	}
	if _, known := c.lookup(netip.AddrFrom4([4]byte{10, 0, 0, 1}), now, time.Hour); known {
		t.Error("the oldest is remembered")
	}
}
