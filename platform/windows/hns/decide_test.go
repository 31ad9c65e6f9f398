// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"kubeproxy/common/route"
	"kubeproxy/common/service"
)

// trace follows c through what HNS holds: to a load balancer with its address, otherwise,
// on the node, to one without an address. Without either, the connection is not
// translated.
func trace(k *fake, f service.Family, c route.Conn) []netip.AddrPort {
	find := func(vip netip.Addr) *LoadBalancer {
		for _, lb := range k.balancers {
			if lb.Key == (Key{VIP: vip, Family: f, Port: c.To.Port(), Protocol: c.Protocol}) {
				return &lb
			}
		}
		return nil
	}
	lb := find(c.To.Addr())
	if lb == nil && c.ToNode {
		lb = find(netip.Addr{})
	}
	if lb == nil {
		return nil
	}
	var to []netip.AddrPort
	for _, id := range lb.Endpoints {
		e := k.endpoints[id]
		to = append(to, netip.AddrPortFrom(e.addrIn(f), lb.TargetPort))
	}
	slices.SortFunc(to, netip.AddrPort.Compare)
	return to
}

// expected is the result of route.Decide, as far as HNS supports it. HNS cannot reject or
// drop, has neither source ranges nor SCTP, sends all clients to the same endpoints, and
// has one target port.
func expected(v route.Verdict, o Options) []netip.AddrPort {
	if v.Port == nil || v.Frontend.Sources != nil && !o.IgnoreSourceRanges || v.Port.Name.Protocol == service.SCTP {
		return nil
	}
	groups := map[uint16][]netip.AddrPort{}
	for _, e := range v.Port.Endpoints(v.Frontend.Kind) {
		groups[e.Addr.Port()] = append(groups[e.Addr.Port()], e.Addr)
	}
	if len(groups[9090]) > len(groups[8080]) {
		return groups[9090]
	}
	return groups[8080]
}

// Judge compares the result of HNS for c with the expected one. Forwarded health checks
// are not part of Services.
func (n *suiteNode) Judge(t *rapid.T, want *service.Snapshot, c route.Conn) {
	v := route.Decide(want, c)
	got, exp := trace(n.hns, n.draw.family, c), expected(v, n.options)
	if v.Port == nil && len(got) == 1 && got[0].Addr() == rootAddr(n.draw.family) {
		return
	}
	if diff := cmp.Diff(exp, got, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
		t.Fatalf("%+v: %s (-decide +hns):\n%s", c, v.Reason, diff)
	}
}

func rootAddr(f service.Family) netip.Addr {
	return generator{family: f}.nth("10.244.1.250", "fd00:10:244:1::fa", 0)
}

func (tn *testNode) setFamily(f service.Family) {
	h := tn.backend.host
	tn.backend = New(h, f, tn.options, 30*time.Second)
	tn.backend.hostMAC = func(netip.Addr) (string, error) { return "00-15-5d-aa-aa-aa", nil }
}

func (tn *testNode) addRootEndpoint() {
	tn.t.Helper()
	root := Endpoint{Name: "cbr0", Network: tn.hns.networks[0].ID, Addrs: []netip.Addr{rootAddr(tn.backend.family)}}
	if _, err := tn.hns.CreateEndpoint(context.Background(), root); err != nil {
		tn.t.Fatal(err)
	}
}
