// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"kubeproxy/common/service"
)

func at(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

func ats(list ...string) []netip.AddrPort {
	var all []netip.AddrPort
	for _, s := range list {
		all = append(all, at(s))
	}
	return all
}

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

var (
	clusterIP = service.Frontend{Kind: service.ClusterIP, Addr: addr("10.96.0.10"), Port: 53}
	nodePort  = service.Frontend{Kind: service.NodePort, Port: 30053}
	external  = service.Frontend{Kind: service.ExternalIP, Addr: addr("203.0.113.5"), Port: 53}
	balancer  = service.Frontend{Kind: service.LoadBalancerIP, Addr: addr("203.0.113.5"), Port: 53}
)

func port(name string, f service.Family, endpoints []netip.AddrPort, frontends ...service.Frontend) *service.Port {
	p := &service.Port{Name: service.PortName{Namespace: "ns", Name: name, Protocol: service.UDP}, Family: f, Frontends: frontends}
	for _, e := range endpoints {
		p.Cluster = append(p.Cluster, service.Endpoint{Addr: e})
	}
	return p
}

// udp returns a Port with all frontends but balancer.
func udp(cluster ...string) *service.Port {
	return port("dns", service.IPv4, ats(cluster...), clusterIP, nodePort, external)
}

// with returns p after edit, for use in expressions.
func with(p *service.Port, edit func(*service.Port)) *service.Port {
	edit(p)
	return p
}

func rule(f service.Frontend, endpoints ...string) Rule {
	return Rule{Address: service.Address{Protocol: service.UDP, Addr: f.Addr, Port: f.Port}, Endpoints: ats(endpoints...)}
}

func onlyLocal(r Rule, endpoints ...string) Rule {
	r.OnlyLocal, r.Local = true, ats(endpoints...)
	return r
}

func gone(f service.Frontend) Rule {
	r := rule(f)
	r.Deleted = true
	return r
}

func tcp(r Rule) Rule {
	r.Protocol = service.TCP
	return r
}

func sctp(r Rule) Rule {
	r.Protocol = service.SCTP
	return r
}

func ruleDiff(want, got []Rule) string {
	return cmp.Diff(want, got, cmpopts.EquateEmpty(), cmpopts.EquateComparable(netip.AddrPort{}, netip.Addr{}))
}

const (
	epA, epB, epC = "10.244.0.1:53", "10.244.0.2:53", "10.244.0.3:53"
)

func TestChanges(t *testing.T) {
	tests := map[string]struct {
		before, after *service.Port
		want          []Rule
	}{
		"nothing":     {nil, nil, nil},
		"same":        {udp(epA), udp(epA), nil},
		"new Service": {nil, udp(epA), []Rule{rule(clusterIP, epA), rule(nodePort, epA), rule(external, epA)}},
		"new Service without endpoints": {
			nil, udp(), []Rule{rule(clusterIP), rule(nodePort), rule(external)},
		},
		"Service deleted": {udp(epA), nil, []Rule{gone(clusterIP), gone(nodePort), gone(external)}},
		"first endpoint":  {udp(), udp(epA), []Rule{rule(clusterIP, epA), rule(nodePort, epA), rule(external, epA)}},
		"one more":        {udp(epA), udp(epA, epB), nil},
		"one less":        {udp(epA, epB), udp(epB), []Rule{rule(clusterIP, epB), rule(nodePort, epB), rule(external, epB)}},
		"last one":        {udp(epA), udp(), []Rule{rule(clusterIP), rule(nodePort), rule(external)}},
		"replaced":        {udp(epA), udp(epC), []Rule{rule(clusterIP, epC), rule(nodePort, epC), rule(external, epC)}},
		"still without":   {udp(), udp(), nil},
		"frontend left": {
			udp(epA), with(udp(epA), func(p *service.Port) { p.Frontends = p.Frontends[:1] }),
			[]Rule{gone(nodePort), gone(external)},
		},
		"frontend came": {
			with(udp(epA), func(p *service.Port) { p.Frontends = p.Frontends[:2] }), udp(epA), []Rule{rule(external, epA)},
		},
		"other kind, same address": {
			udp(epA), with(udp(epA), func(p *service.Port) { p.Frontends[2] = balancer }), nil,
		},
		"two kinds, one address": {
			nil, port("dns", service.IPv4, ats(epA), external, balancer), []Rule{rule(external, epA)},
		},
		"affinity only": {
			udp(epA), with(udp(epA), func(p *service.Port) { p.Affinity = 3600e9 }), nil,
		},
		"TCP": {
			with(udp(epA), func(p *service.Port) { p.Name.Protocol = service.TCP }), nil,
			[]Rule{tcp(gone(clusterIP)), tcp(gone(nodePort)), tcp(gone(external))},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if d := ruleDiff(test.want, Changes(test.before, test.after)); d != "" {
				t.Errorf("Changes (-want +got):\n%s", d)
			}
		})
	}
}

func TestChangesOfPolicy(t *testing.T) {
	local := func(internal, external service.Policy, endpoints ...string) func(*service.Port) {
		return func(p *service.Port) {
			p.Internal, p.External = internal, external
			p.Local = port("", service.IPv4, ats(endpoints...)).Cluster
		}
	}
	tests := map[string]struct {
		before, after *service.Port
		want          []Rule
	}{
		"external policy Local keeps what pods reach": {
			with(udp(epA, epB), local(service.PolicyCluster, service.PolicyLocal, epA)),
			with(udp(epB), local(service.PolicyCluster, service.PolicyLocal, epA)),
			[]Rule{rule(clusterIP, epB)},
		},
		"external policy becomes Local": {
			udp(epA, epB), with(udp(epA, epB), local(service.PolicyCluster, service.PolicyLocal, epA)),
			[]Rule{onlyLocal(rule(nodePort, epA, epB), epA), onlyLocal(rule(external, epA, epB), epA)},
		},
		"external policy becomes Local, without an endpoint here": {
			udp(epA), with(udp(epA), local(service.PolicyCluster, service.PolicyLocal)),
			[]Rule{onlyLocal(rule(nodePort, epA)), onlyLocal(rule(external, epA))},
		},
		"a local endpoint leaves, and serves pods": {
			with(udp(epA, epB), local(service.PolicyCluster, service.PolicyLocal, epA, epB)),
			with(udp(epA, epB), local(service.PolicyCluster, service.PolicyLocal, epA)),
			[]Rule{onlyLocal(rule(nodePort, epA, epB), epA), onlyLocal(rule(external, epA, epB), epA)},
		},
		"external policy becomes Cluster": {
			with(udp(epA, epB), local(service.PolicyCluster, service.PolicyLocal, epA)), udp(epA, epB), nil,
		},
		"internal policy becomes Local": {
			udp(epA, epB), with(udp(epA, epB), local(service.PolicyLocal, service.PolicyCluster, epA)),
			[]Rule{rule(clusterIP, epA)},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if d := ruleDiff(test.want, Changes(test.before, test.after)); d != "" {
				t.Errorf("Changes (-want +got):\n%s", d)
			}
		})
	}
}

// TestChangesOfEndpoints checks, for many lists of endpoints, that the shortcut without
// rules finds the same as the comparison of rules.
func TestChangesOfEndpoints(t *testing.T) {
	draw := func(bits int) *service.Port {
		p := udp()
		for i := range 6 {
			if bits>>i&1 != 0 {
				a := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 0, byte(i)}), 53)
				p.Cluster = append(p.Cluster, service.Endpoint{Addr: a, Local: i == 3 && bits > 32})
			}
		}
		return p
	}
	for i := range 64 {
		for j := range 64 {
			old, new := draw(i), draw(j)
			if d := ruleDiff(compareRules(rules(old), rules(new)), Changes(old, new)); d != "" {
				t.Fatalf("from %v to %v (-want +got):\n%s", old.Cluster, new.Cluster, d)
			}
		}
	}
}

func TestBetween(t *testing.T) {
	node, same := &service.Node{NodePorts: service.AnyAddress(), Name: "n"}, &service.Node{NodePorts: service.AnyAddress(), Name: "n"}
	other := &service.Node{Name: "n", NodePorts: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}
	moved := &service.Node{NodePorts: service.AnyAddress(), Name: "n", Addrs: []netip.Addr{addr("192.0.2.1")}}
	dns, late := udp(epA), port("late", service.IPv4, nil, external)
	six := port("six", service.IPv6, ats("[fd00::1]:53"), service.Frontend{Kind: service.NodePort, Port: 30053})
	snap := func(n *service.Node, ports ...*service.Port) *service.Snapshot { return service.New(1, n, ports) }
	all := []Rule{rule(clusterIP, epA), rule(nodePort, epA), rule(external, epA)}
	tests := map[string]struct {
		from, to *service.Snapshot
		want     []Rule
	}{
		"start":             {nil, snap(node, dns, six), all},
		"same":              {snap(node, dns), snap(same, dns), nil},
		"other family":      {snap(node, dns), snap(same, dns, six), nil},
		"one port came":     {snap(node, dns), snap(node, dns, late), []Rule{rule(external)}},
		"NodePorts changed": {snap(node, dns), snap(other, dns), all},
		"addresses changed": {snap(node, dns), snap(moved, dns), all},
		"both":              {snap(node, late), snap(other, dns), append(append([]Rule{}, all...), append(all, gone(external))...)},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if d := ruleDiff(test.want, Between(test.from, test.to, service.IPv4)); d != "" {
				t.Errorf("Between (-want +got):\n%s", d)
			}
		})
	}
}
