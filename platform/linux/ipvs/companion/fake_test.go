// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package companion

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/iptables"
	"kubeproxy/test/generate"
	"kubeproxy/test/xtables"
)

// node is a simulated node with the set of virtual servers, which package ipvs
// maintains.
type node struct {
	sets   *xtables.Sets
	tables *xtables.System
	clock  time.Time
}

const resync = 30 * time.Second

func newNode(t fataler, f service.Family) *node {
	sets := xtables.NewSets()
	if err := errors.Join(sets.Create(VirtualServerSet(f)), sets.Create(NodeIPSet(f))); err != nil {
		t.Fatalf("%v", err)
	}
	clear(sets.Steps)
	return &node{sets, xtables.New(sets), time.Unix(1e9, 0)}
}

// start returns the Backend of a process that starts on n.
func (n *node) start(f service.Family) *Backend {
	chains := iptables.NewWith(f, Options{MasqueradeBit: 14}.Chains(f), n.tables)
	b := NewWith(f, chains, n.sets, func() time.Time { return n.clock })
	b.SetResync(resync)
	return b
}

type fataler interface{ Fatalf(string, ...any) }

func apply(t fataler, b *Backend, want *service.Snapshot) *plan {
	return generate.Apply(t, b, want).(*plan)
}

func planOf(t *testing.T, b *Backend, want *service.Snapshot) reconcile.Plan {
	t.Helper()
	return generate.Plan(t, b, want)
}

// held returns the elements of one of our sets, as text.
func (n *node) held(set string) []string {
	h := n.sets.ByName[setName(service.IPv4, set)]
	if h == nil {
		return nil
	}
	all := []string{}
	members, _ := n.sets.Members(h.Set)
	for _, m := range members {
		all = append(all, h.Text(m.Entry))
	}
	return all
}

// web is a Service with an external address that is masqueraded.
func web(i int) *service.Port {
	return &service.Port{
		Name: service.PortName{Namespace: "shop", Name: fmt.Sprintf("web-%d", i), Protocol: service.TCP},
		Frontends: []service.Frontend{
			{Addr: netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), Port: 80},
			{Kind: service.ExternalIP, Addr: netip.AddrFrom4([4]byte{203, 0, byte(i >> 8), byte(i)}), Port: 80},
		},
		Cluster: []service.Endpoint{{Addr: netip.MustParseAddrPort("10.244.1.1:8080"), Local: true}},
	}
}

// withoutEndpoints is a Service without endpoints.
func withoutEndpoints(i int) *service.Port {
	p := web(i)
	p.Cluster = nil
	return p
}

func snapshot(ports ...*service.Port) *service.Snapshot {
	return service.New(1, &service.Node{NodePorts: service.AnyAddress(), Addrs: []netip.Addr{generate.NodeAddr[0]}}, ports)
}
