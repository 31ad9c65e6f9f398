// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"net/netip"
	"testing"

	"kubeproxy/common/service"
)

// TestEntries looks up a client's entries among those of others, and checks which ones a
// Reconciler deletes.
func TestEntries(t *testing.T) {
	at := netip.MustParseAddrPort
	client, to, endpoint, gone := at("10.244.1.7:1001"), at("10.96.0.10:53"), at("10.244.2.1:53"), at("10.244.2.2:53")
	p := &service.Port{
		Name: service.PortName{Namespace: "dns", Name: "dns", Protocol: service.UDP}, Family: service.IPv4,
		Frontends: []service.Frontend{{Kind: service.ClusterIP, Addr: to.Addr(), Port: to.Port()}},
		Cluster:   []service.Endpoint{{Addr: endpoint}},
	}
	flow := func(src, dst, replySrc netip.AddrPort) Flow {
		return Flow{Protocol: service.UDP, Src: src, Dst: dst, ReplySrc: replySrc, ReplyDst: src}
	}
	other := netip.AddrPortFrom(client.Addr(), 1002)
	k := &fake{table: []Flow{
		flow(other, to, gone), flow(client, to, endpoint), flow(client, at("10.96.0.11:53"), gone), flow(at("10.244.1.8:1001"), to, gone),
	}}
	got, err := Entries(t.Context(), k, service.New(1, &service.Node{}, []*service.Port{p}), Client{service.UDP, client.Addr(), to})
	if err != nil || len(got) != 2 || got[0].Src != client || got[0].Stale || got[1].Src != other || !got[1].Stale {
		t.Errorf("%+v, %v; want a good and a stale one", got, err)
	}
}
