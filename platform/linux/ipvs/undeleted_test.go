// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/test/generate"
)

// refuseDeletes refuses to delete virtual servers.
func refuseDeletes(o op) error {
	if o.verb == delServer {
		return errInjected
	}
	return nil
}

// published is a Service with a NodePort, whose endpoint is on another node.
func published(p *service.Port) *service.Port {
	p = withRemoteEndpoint(p, "")
	p.Frontends = append(slices.Clone(p.Frontends), service.Frontend{Kind: service.NodePort, Port: 30080})
	return p
}

// wantMasqueraded checks that connections to the NodePort reach endpoints, and that the
// answers return through this node.
func wantMasqueraded(t *testing.T, k *fake, proto service.Protocol) {
	t.Helper()
	for _, from := range []route.Conn{
		{From: netip.MustParseAddr("198.51.100.7"), Interface: "eth0"},
		{From: generate.NodeAddr[service.IPv4]},
	} {
		from.Protocol, from.To = proto, netip.AddrPortFrom(generate.NodeAddr[service.IPv4], 30080)
		got := trace(k, from)
		if got.Action != route.Forward || len(got.Targets) == 0 {
			t.Errorf("from %s: %+v, want an endpoint", from.From, got)
		}
		for _, a := range got.Targets {
			if !got.Masq[a] {
				t.Errorf("from %s: the answer of %s does not come through this node", from.From, a)
			}
		}
	}
}

// TestRulesStayWithServer checks that the rules stay for a virtual server that the kernel
// refuses to delete, in each further round and after a restart, and that they go with it.
func TestRulesStayWithServer(t *testing.T) {
	for name, x := range map[string]struct {
		proto service.Protocol
		next  func(old *service.Port) []*service.Port
	}{
		"the Service leaves": {service.TCP, func(*service.Port) []*service.Port { return nil }},
		"its NodePort leaves": {service.TCP, func(old *service.Port) []*service.Port {
			p := *old
			p.Frontends = old.Frontends[:1]
			return []*service.Port{&p}
		}},
		"its ClusterIP passes on": {service.TCP, func(old *service.Port) []*service.Port {
			p := published(web(1, 1, service.TCP))
			p.Frontends = old.Frontends[:1]
			return []*service.Port{p}
		}},
		"its endpoints leave": {service.UDP, func(old *service.Port) []*service.Port {
			p := *old
			p.Cluster = nil
			return []*service.Port{&p}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			k, o := newFake(service.IPv4), Options{MasqueradeBit: 14}
			b := newBackendWithRules(service.IPv4, k, o)
			old := published(web(0, 1, x.proto))
			s := snapshot(old)
			apply(t, b, s)
			wantMasqueraded(t, k, x.proto)
			k.refuse = refuseDeletes
			changes := []service.Change{{Old: old}}
			for _, p := range x.next(old) {
				if p.Name == old.Name {
					changes = nil
				}
				changes = append(changes, service.Change{Old: s.Port(service.IPv4, p.Name), New: p})
			}
			next := s.With(2, s.Node, changes)
			for round := range 4 {
				b.poller.requested.Store(round == 2) // reads the kernel
				if round == 3 && x.proto == service.TCP {
					b = newBackendWithRules(service.IPv4, k, o)
				}
				if err := planOf(t, b, next).Apply(t.Context()).Err; !errors.Is(err, errInjected) {
					t.Fatalf("round %d: Apply = %v", round, err)
				}
				wantMasqueraded(t, k, x.proto)
			}
			k.refuse = nil
			apply(t, b, next)
			fresh := newFake(service.IPv4)
			apply(t, newBackendWithRules(service.IPv4, fresh, o), next)
			if diff := cmp.Diff(fresh.sets.Text()+fresh.tables.Text(), k.sets.Text()+k.tables.Text()); diff != "" {
				t.Errorf("then (-fresh +now):\n%s", diff)
			}
		})
	}
}

// TestOthersGoOn checks that a Service gets an endpoint while one of its virtual servers
// cannot be deleted.
func TestOthersGoOn(t *testing.T) {
	k := newFake(service.IPv4)
	b := newBackendWithRules(service.IPv4, k, Options{MasqueradeBit: 14})
	old := published(web(0, 1, service.TCP))
	s := snapshot(old)
	apply(t, b, s)
	k.refuse = refuseDeletes
	next := s.With(2, s.Node, []service.Change{{Old: old, New: web(0, 3, service.TCP)}})
	applyRefused(t, b, next, "web-0", errInjected)
	if n := len(k.servers[first].dests); n < 3 {
		t.Errorf("%d destinations", n)
	}
	wantMasqueraded(t, k, service.TCP)
}
