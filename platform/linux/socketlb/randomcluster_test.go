// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package socketlb

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"kubeproxy/common/route"
	"kubeproxy/common/service"
)

// randomCluster is a random cluster that changes.
type randomCluster struct {
	*rand.Rand
	family   service.Family
	ports    map[service.PortName]*service.Port
	snapshot *service.Snapshot
}

func newRandomCluster(seed uint64, f service.Family) *randomCluster {
	w := &randomCluster{Rand: rand.New(rand.NewPCG(seed, 1)), family: f, ports: map[service.PortName]*service.Port{}}
	w.snapshot = service.New(1, &service.Node{Name: "a"}, nil)
	return w
}

func (r *randomCluster) addr(net, n int) netip.Addr {
	if r.family == service.IPv4 {
		return netip.AddrFrom4([4]byte{10, byte(net), byte(n >> 8), byte(n)})
	}
	return netip.AddrFrom16([16]byte{0: 0xfd, 2: byte(net), 14: byte(n >> 8), 15: byte(n)})
}

// step changes some ports.
func (r *randomCluster) step() {
	var changes []service.Change
	for range 1 + r.IntN(4) {
		n := r.IntN(40)
		name := service.PortName{Namespace: "shop", Name: fmt.Sprintf("s%02d", n), Protocol: service.TCP}
		old := r.ports[name]
		if slices.ContainsFunc(changes, func(c service.Change) bool { return c.Name() == name }) {
			continue
		}
		next := r.port(name, n)
		switch {
		case old == nil && next == nil:
			continue
		case next == nil:
			delete(r.ports, name)
		default:
			r.ports[name] = next
		}
		changes = append(changes, service.Change{Old: old, New: next})
	}
	node := r.snapshot.Node
	if r.IntN(20) == 0 {
		node = &service.Node{Name: "a", MasqueradeAll: !node.MasqueradeAll}
	}
	r.snapshot = r.snapshot.With(r.snapshot.Generation+1, node, changes)
}

func (r *randomCluster) port(name service.PortName, n int) *service.Port {
	if r.IntN(4) == 0 {
		return nil
	}
	p := &service.Port{Name: name, Family: r.family}
	// Addresses move between Services: n and n+100 take turns with the parity of a draw.
	p.Frontends = append(p.Frontends, service.Frontend{Kind: service.ClusterIP, Addr: r.addr(96, n), Port: uint16(80 + r.IntN(2))})
	if r.IntN(3) == 0 {
		p.Frontends = append(p.Frontends, service.Frontend{Kind: service.ExternalIP, Addr: r.addr(97, n), Port: 80})
	}
	for i := range r.IntN(12) {
		p.Cluster = append(p.Cluster, service.Endpoint{Addr: netip.AddrPortFrom(r.addr(1, n*16+i), 8080)})
	}
	switch r.IntN(6) {
	case 0:
		p.Affinity = time.Hour
	case 1:
		p.Internal = service.PolicyLocal
		if len(p.Cluster) > 2 {
			p.Local = p.Cluster[:2]
		}
	}
	return p
}

func (r *randomCluster) judge(t *testing.T, k *fake) {
	t.Helper()
	for n := range 40 {
		for port := range uint16(2) {
			to := netip.AddrPortFrom(r.addr(96, n), 80+port)
			if want, got := r.expected(to), k.endpoints(to); !slices.Equal(got, want) {
				t.Errorf("%s leads to %s, judge %s", to, got, want)
			}
		}
		if e, ok := k.connect(netip.AddrPortFrom(r.addr(97, n), 80), 0); ok {
			t.Errorf("an external address leads to %s", e)
		}
	}
}

// expected returns where the judge forwards connections that the layer may take.
func (r *randomCluster) expected(to netip.AddrPort) (want []netip.AddrPort) {
	v := route.Decide(r.snapshot, route.Conn{Protocol: service.TCP, From: r.addr(1, 9999), To: to})
	if v.Action != route.Forward || v.Port.Affinity != 0 || r.snapshot.Node.MasqueradeAll {
		return nil
	}
	for _, e := range v.Endpoints {
		want = append(want, e.Addr)
	}
	return want
}
