// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubeproxy/common/service"
)

// TestUpstreamSet recognizes kube-proxy's ipsets by name and type.
func TestUpstreamSet(t *testing.T) {
	for _, tt := range []struct {
		family     service.Family
		name, kind string
		proto      service.Protocol
		is         bool
	}{
		{service.IPv4, "KUBE-CLUSTER-IP", "hash:ip,port", 0, true},
		{service.IPv4, "KUBE-CLUSTER-IP", "hash:ip", 0, false},
		{service.IPv4, "KUBE-6-CLUSTER-IP", "hash:ip,port", 0, false},
		{service.IPv6, "KUBE-CLUSTER-IP", "hash:ip,port", 0, false},
		{service.IPv6, "KUBE-6-CLUSTER-IP", "hash:ip,port", 0, true},
		{service.IPv6, "KUBE-6-LOAD-BALANCER-SOURCE-CID", "hash:ip,port,net", 0, true},
		{service.IPv6, "KUBE-6-LOAD-BALANCER-SOURCE-CIDR", "hash:ip,port,net", 0, false},
		{service.IPv6, "KUBE-6-NODE-PORT-LOCAL-SCTP-HAS", "hash:ip,port", service.SCTP, true},
		{service.IPv4, "KUBE-NODE-PORT-TCP", "bitmap:port", service.TCP, true},
		{service.IPv4, "KUBE-NODE-PORT-LOCAL-UDP", "bitmap:port", service.UDP, true},
		{service.IPv4, "KUBE-NODE-PORT-SCTP", "bitmap:port", service.SCTP, true},
		{service.IPv4, "KUBE-HEALTH-CHECK-NODE-PORT", "bitmap:port", 0, true},
		{service.IPv4, "KUBE-MINE", "hash:ip,port", 0, false},
		{service.IPv4, "", "", 0, false},
	} {
		if proto, is := upstreamSet(tt.family, tt.name, tt.kind); proto != tt.proto || is != tt.is {
			t.Errorf("%s %s %s: %v, %t; want %v, %t", tt.family, tt.name, tt.kind, proto, is, tt.proto, tt.is)
		}
	}
}

// TestUpstreamOwnedServers distinguishes kube-proxy's virtual servers from ours and from
// foreign ones.
func TestUpstreamOwnedServers(t *testing.T) {
	addr := netip.MustParseAddr
	u := &upstreamState{
		addrs: map[netip.Addr]bool{addr("10.96.0.1"): true, addr("10.97.0.1"): true},
		node:  map[netip.Addr]bool{addr("192.0.2.1"): true},
		ports: map[service.Address]bool{{Port: 30080, Protocol: service.TCP}: true},
	}
	s := &state{servers: map[service.Address]*observedServer{}}
	for k, flags := range map[service.Address]uint32{
		addressAt(addr("10.96.0.1"), 80, service.TCP):    0,
		addressAt(addr("10.96.0.1"), 81, service.TCP):    flagOwned,
		addressAt(addr("10.97.0.1"), 80, service.TCP):    0, // excluded
		addressAt(addr("192.0.2.1"), 30080, service.TCP): flagPersistent,
		addressAt(addr("192.0.2.1"), 30080, service.UDP): 0, // another protocol
		addressAt(addr("192.0.2.1"), 443, service.TCP):   0, // not a NodePort
		addressAt(addr("192.0.2.7"), 30080, service.TCP): 0, // not the node
	} {
		s.servers[k] = &observedServer{server: server{flags: flags}}
	}
	e := u.ownedServers(s, Options{Exclude: []netip.Prefix{netip.MustParsePrefix("10.97.0.0/16")}})
	got := []string{}
	for _, k := range e.servers {
		got = append(got, nameOf(k))
	}
	for _, a := range sortedAddrs(e.addrOps) {
		got = append(got, e.addrOps[a].text())
	}
	want := []string{"10.96.0.1:80 tcp", "192.0.2.1:30080 tcp", "- address 10.96.0.1 of interface kube-ipvs0"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestUpstreamAdopted adopts kube-proxy's virtual servers and their endpoints, and no
// foreign ones.
func TestUpstreamAdopted(t *testing.T) {
	for _, made := range []bool{true, false} {
		t.Run(fmt.Sprint(made), func(t *testing.T) {
			k := newFake(service.IPv4)
			p := web(0, 1, service.TCP)
			at := addressAt(p.Frontends[0].Addr, 80, service.TCP)
			held := dest{addr: p.Cluster[0].Addr, weight: 1, conns: 3}
			k.servers[at] = &fakeServer{server{scheduler: "rr"}, map[netip.AddrPort]dest{held.addr: held}}
			if made {
				k.upstream = []service.Address{at}
			}
			b := newBackend(service.IPv4, k, Options{})
			plan := planOf(t, b, snapshot(p))
			took := slices.Contains(lines(plan), "~ virtual server 10.96.0.0:80 tcp, scheduler rr # shop/web-0")
			if err := plan.Apply(t.Context()).Err; took != made || (err == nil) != made {
				t.Errorf("taken over %t, %v\n%s", took, err, plan.Changes())
			}
			if got := k.servers[at]; got.owned() != made || got.dests[held.addr] != held {
				t.Errorf("there is %v", got)
			}
		})
	}
}
