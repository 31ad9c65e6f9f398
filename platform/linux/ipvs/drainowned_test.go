// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"kubeproxy/common/service"
)

// summary returns a line for each virtual server and address in fa.
func (fa *fake) summary() []string {
	var all []string
	for _, at := range sortedKeys(fa.servers) {
		line := at.String()
		for _, a := range slices.SortedFunc(maps.Keys(fa.servers[at].dests), netip.AddrPort.Compare) {
			line += fmt.Sprintf(" %s weight %d", a, fa.servers[at].dests[a].weight)
		}
		all = append(all, line)
	}
	for _, a := range sortedAddrs(fa.routes) {
		all = append(all, "address "+a.String())
	}
	return all
}

// setConnsOf sets the number of connections of the only destination of Service i.
func (fa *fake) setConnsOf(i int, proto service.Protocol, n uint32) {
	s := fa.servers[key{web(i, 0, proto).Frontends[0].Addr, 80, proto}]
	for a, x := range s.dests {
		x.conns = n
		s.dests[a] = x
	}
}

// TestDrainOwned checks that none of our virtual servers accepts new connections, that
// those with connections stay while they have some, and that none stays beyond
// DrainTimeout.
func TestDrainOwned(t *testing.T) {
	k := newFake(service.IPv4)
	o := Options{}
	apply(t, newBackend(service.IPv4, k, o), snapshot(web(0, 1, service.TCP), web(1, 1, service.TCP), web(2, 1, service.UDP)))
	foreign := key{netip.MustParseAddr("192.0.2.9"), 53, service.UDP}
	k.servers[foreign] = &fakeServer{server{scheduler: "wlc"}, map[netip.AddrPort]dest{
		netip.MustParseAddrPort("10.0.0.1:53"): {addr: netip.MustParseAddrPort("10.0.0.1:53"), weight: 7},
	}}
	const theirs = "192.0.2.9:53 udp 10.0.0.1:53 weight 7"
	k.setConnsOf(1, service.TCP, 3)
	k.setConnsOf(2, service.UDP, 1)
	for _, step := range []struct {
		before func()
		lasted time.Duration
		stays  string
		cut    int
		want   []string
	}{
		{nil, 0, "virtual servers: 2, open connections: 4", 0, []string{
			"10.96.0.1:80 tcp 10.244.1.1:8080 weight 0", "10.96.0.2:80 udp 10.244.1.1:8080 weight 0", theirs, "address 10.96.0.1", "address 10.96.0.2"}},
		{func() { k.setConnsOf(1, service.TCP, 0) }, time.Minute, "virtual servers: 1, open connections: 1", 0, []string{
			"10.96.0.2:80 udp 10.244.1.1:8080 weight 0", theirs, "address 10.96.0.2"}},
		{nil, DrainTimeout, "", 1, []string{theirs}},
		{nil, DrainTimeout, "", 0, []string{theirs}},
	} {
		if step.before != nil {
			step.before()
		}
		stays, err := drainOwned(t.Context(), k, o.ownedServers, step.lasted)
		if err != nil || stays.String() != step.stays || len(stays.cut) != step.cut {
			t.Errorf("after %s: %q, %d cut, %v; want %q, %d", step.lasted, stays, len(stays.cut), err, step.stays, step.cut)
		}
		if diff := cmp.Diff(step.want, k.summary()); diff != "" {
			t.Errorf("after %s (-want +got):\n%s", step.lasted, diff)
		}
	}
}

// TestDrainOwnedFails checks that nothing is deleted while new connections may arrive.
func TestDrainOwnedFails(t *testing.T) {
	k := newFake(service.IPv4)
	apply(t, newBackend(service.IPv4, k, Options{}), snapshot(web(0, 1, service.TCP)))
	before := k.summary()
	k.refuse = func(o op) error {
		if o.verb == setDest {
			return errInjected
		}
		return nil
	}
	if _, err := drainOwned(t.Context(), k, Options{}.ownedServers, 0); err == nil {
		t.Error("no error")
	}
	if diff := cmp.Diff(before, k.summary()); diff != "" {
		t.Errorf("(-before +after):\n%s", diff)
	}
}
