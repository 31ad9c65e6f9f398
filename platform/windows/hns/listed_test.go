// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"kubeproxy/common/service"
)

// remote returns the ID of the remote endpoint with an address, "" if there is none.
func (tn *testNode) remote(a string) string {
	for id, e := range tn.hns.endpoints {
		if e.Remote && e.HasAddr(addr(a)) {
			return id
		}
	}
	return ""
}

// withListed returns p with addresses that EndpointSlices list and that get no new
// connections.
func withListed(p *service.Port, addrs ...string) *service.Port {
	for _, a := range addrs {
		p.Listed = append(p.Listed, addr(a))
	}
	return p
}

// The remote endpoint of a pod that is terminating or temporarily unready stays the same
// object while a slice of any Service lists it.
func TestListedEndpointsStay(t *testing.T) {
	for _, v := range []Version{v13, v15} {
		for _, n := range []Network{overlayN, bridgeN} {
			for _, restart := range []bool{false, true} {
				t.Run(fmt.Sprintf("HNS %s, %s, restart %t", v, n.Kind, restart), func(t *testing.T) { listedStays(t, newTestNode(t, v, n), restart) })
			}
		}
	}
}

func listedStays(t *testing.T, b *testNode, restart bool) {
	b.pods("10.244.1.11")
	const a, r1, r2 = "10.244.1.11:80", "10.244.2.11:80@b", "10.244.2.12:80@b"
	other := func(addrs ...string) *service.Port { return withListed(clusterIP("api", "10.96.0.11", a), addrs...) }
	b.converge(snapshot(1, clusterIP("web", "10.96.0.10", a, r1, r2), other()))
	id := b.remote("10.244.2.11")
	for i, s := range []struct {
		situation string
		web, api  *service.Port
		id        string
	}{
		{"not ready", withListed(clusterIP("web", "10.96.0.10", a, r2), "10.244.2.11"), other(), id},
		{"ready again", clusterIP("web", "10.96.0.10", a, r1, r2), other("10.244.2.11"), id},
		{"terminating, in two Services", withListed(clusterIP("web", "10.96.0.10", a), "10.244.2.11", "10.244.2.12"), other("10.244.2.11"), id},
		{"gone from one", clusterIP("web", "10.96.0.10", a), other("10.244.2.11"), id},
		{"gone from both", clusterIP("web", "10.96.0.10", a), other(), ""},
	} {
		if restart {
			b.restart()
		}
		b.converge(snapshot(uint64(i+2), s.web, s.api))
		b.now = b.now.Add(time.Minute) // no resync removes it either
		b.converge(snapshot(uint64(i+2), s.web, s.api))
		if got := b.remote("10.244.2.11"); got != s.id {
			t.Errorf("%s: endpoint %q, want %q", s.situation, got, s.id)
		}
	}
	if got := b.remote("10.244.2.12"); got != "" {
		t.Error("the endpoint of the other pod is left over")
	}
}

// A local pod that receives the address of a terminating remote pod has no remote
// endpoint with that address, whatever slice still lists it.
func TestLocalPodTakesAListedAddress(t *testing.T) {
	const a = "10.244.1.11:80"
	stale := func() *service.Port { return withListed(clusterIP("old", "10.96.0.10", a), "10.244.1.12") }
	for name, want := range map[string][]*service.Port{
		"a slice lists it":     {stale(), clusterIP("new", "10.96.0.11", "10.244.1.12:80")},
		"the next resync sees": {stale()},
	} {
		t.Run(name, func(t *testing.T) {
			b := newTestNode(t, v13, overlayN)
			b.pods("10.244.1.11")
			b.converge(snapshot(1, clusterIP("old", "10.96.0.10", a, "10.244.1.12:80@b")))
			b.converge(snapshot(2, stale()))
			if b.remote("10.244.1.12") == "" {
				t.Fatal("the listed endpoint is gone already")
			}
			b.pods("10.244.1.12")
			if len(want) == 1 {
				b.now = b.now.Add(time.Minute)
			}
			b.converge(snapshot(3, want...))
			if b.remote("10.244.1.12") != "" || !b.hns.hasAddr(overlayN.ID, addr("10.244.1.12"), false) {
				t.Errorf("endpoints %v, want that of the pod here alone", b.hns.endpoints)
			}
		})
	}
}

// A listed endpoint with a wrong route is useless, and is deleted.
func TestListedEndpointLeadsElsewhere(t *testing.T) {
	b := newTestNode(t, v13, overlayN)
	b.pods("10.244.1.11")
	b.converge(snapshot(1, clusterIP("web", "10.96.0.10", "10.244.1.11:80", "10.244.2.11:80@b")))
	want := snapshot(2, withListed(clusterIP("web", "10.96.0.10", "10.244.1.11:80"), "10.244.2.11"))
	b.converge(want)
	moved := overlayN
	moved.Routes = []Route{{prefix("10.244.2.0/24"), netip.MustParseAddr("192.0.2.77")}}
	b.hns.networks[0] = moved
	b.now = b.now.Add(time.Minute)
	b.converge(want)
	if b.remote("10.244.2.11") != "" {
		t.Error("an endpoint that leads to the former node is kept")
	}
}
