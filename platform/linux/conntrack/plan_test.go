// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/netlink"
	"kubeproxy/test/kit"
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
			d := ruleDiff(test.want, Changes(test.before, test.after))
			kit.Check(t, d == "", "Changes (-want +got):\n%s", d)
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
			d := ruleDiff(compareRules(rules(old), rules(new)), Changes(old, new))
			kit.Need(t, d == "", "from %v to %v (-want +got):\n%s", old.Cluster, new.Cluster, d)
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
			d := ruleDiff(test.want, Between(test.from, test.to, service.IPv4))
			kit.Check(t, d == "", "Between (-want +got):\n%s", d)
		})
	}
}

// flow returns an entry from a client to dst with replies from by.
func flow(dst, by string) Flow {
	client := at("198.51.100.9:40000")
	return Flow{Protocol: service.UDP, Src: client, Dst: at(dst), ReplySrc: at(by), ReplyDst: client}
}

func TestStale(t *testing.T) {
	answers := func(_ service.Protocol, to netip.AddrPort) bool { return to.Addr() == addr("192.0.2.1") }
	outside := func(a netip.Addr) bool { return a == addr("198.51.100.9") }
	local := rule(external, epA, epB)
	local.OnlyLocal, local.Local = true, ats(epA)
	pod := func(f Flow) Flow { f.Src, f.ReplyDst = at("10.244.7.7:4000"), at("10.244.7.7:4000"); return f }
	masqueraded := func(f Flow) Flow { f.ReplyDst = at("192.0.2.1:4000"); return f }
	alive := []Rule{rule(clusterIP, epA, epB), rule(nodePort, epA), rule(external)}
	left := []Rule{gone(clusterIP), gone(nodePort)}
	zoned := func(f Flow) Flow { f.Zone = 5; return f }
	tests := map[string]struct {
		rules []Rule
		flow  Flow
		want  bool
	}{
		"fine":                              {alive, flow("10.96.0.10:53", epB), false},
		"endpoint left":                     {alive, flow("10.96.0.10:53", epC), true},
		"endpoint's other port":             {alive, flow("10.96.0.10:53", "10.244.0.1:54"), true},
		"from before the frontend":          {alive, flow("10.96.0.10:53", "10.96.0.10:53"), true},
		"no endpoint at all":                {alive, flow("203.0.113.5:53", epA), true},
		"other port of the VIP":             {alive, flow("10.96.0.10:54", epC), false},
		"other address":                     {alive, flow("10.96.0.11:53", epC), false},
		"NodePort, fine":                    {alive, flow("192.0.2.1:30053", epA), false},
		"NodePort, endpoint left":           {alive, flow("192.0.2.1:30053", epC), true},
		"NodePort, before it came":          {alive, flow("192.0.2.1:30053", "192.0.2.1:30053"), true},
		"the port on another machine":       {alive, flow("192.0.2.2:30053", "192.0.2.2:30053"), false},
		"the port translated by others":     {alive, flow("192.0.2.2:30053", epC), false},
		"NodePort of the other family":      {alive, flow("[2001:db8::1]:30053", "[fd00::1]:53"), false},
		"VIP deleted":                       {left, flow("10.96.0.10:53", epA), true},
		"VIP deleted, not translated":       {left, flow("10.96.0.10:53", "10.96.0.10:53"), false},
		"NodePort deleted":                  {left, flow("192.0.2.1:30053", epA), true},
		"NodePort deleted, own server":      {left, flow("192.0.2.1:30053", "192.0.2.1:30053"), false},
		"zone, endpoint left":               {alive, zoned(flow("10.96.0.10:53", epC)), true},
		"zone, not translated":              {alive, zoned(flow("10.96.0.10:53", "10.96.0.10:53")), false},
		"endpoint is the VIP itself":        {[]Rule{rule(clusterIP, "10.96.0.10:53")}, flow("10.96.0.10:53", "10.96.0.10:53"), false},
		"frontend moved, fine with new":     {append(left, rule(clusterIP, epC)), flow("10.96.0.10:53", epC), false},
		"frontend moved, old endpoint":      {append(left, rule(clusterIP, epC)), flow("10.96.0.10:53", epA), true},
		"frontend moved, not translated":    {append(left, rule(clusterIP, epC)), flow("10.96.0.10:53", "10.96.0.10:53"), true},
		"two rules, fine with the first":    {append(alive, rule(clusterIP, epC)), flow("10.96.0.10:53", epB), false},
		"VIP of its own on NodePort's port": {append(alive, Rule{Address: service.Address{Protocol: service.UDP, Addr: addr("192.0.2.1"), Port: 30053}, Endpoints: ats(epB)}), flow("192.0.2.1:30053", epB), false},
		"policy Local, local":               {[]Rule{local}, flow("203.0.113.5:53", epA), false},
		"policy Local, remote":              {[]Rule{local}, flow("203.0.113.5:53", epB), true},
		"policy Local, remote, masqueraded": {[]Rule{local}, masqueraded(flow("203.0.113.5:53", epB)), true},
		"policy Local, local, masqueraded":  {[]Rule{local}, masqueraded(flow("203.0.113.5:53", epA)), true},
		"policy Local, a pod":               {[]Rule{local}, pod(flow("203.0.113.5:53", epB)), false},
		"policy Local, a pod, masqueraded":  {[]Rule{local}, masqueraded(pod(flow("203.0.113.5:53", epA))), false},
		"policy Local, and another Service": {[]Rule{local, rule(external, epC)}, flow("203.0.113.5:53", epC), false},
		"policy Local, and Cluster":         {[]Rule{rule(external, epC), local}, flow("203.0.113.5:53", epB), true},
		"policy Cluster, masqueraded":       {alive, masqueraded(flow("10.96.0.10:53", epB)), false},
		"no rules":                          {nil, flow("10.96.0.10:53", epC), false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			kit.Equal(t, newMatcher(test.rules, answers, outside).stale(test.flow), test.want,
				"stale(%s by %s)", test.flow.Dst, test.flow.ReplySrc)
		})
	}
}

func TestStaleConnections(t *testing.T) {
	alive, left := []Rule{tcp(rule(clusterIP, epA)), sctp(rule(clusterIP, epA))}, []Rule{tcp(gone(clusterIP))}
	conn := func(p service.Protocol, state uint8, answered bool) Flow {
		f := flow("10.96.0.10:53", epC)
		f.Protocol, f.State, f.Answered = p, state, answered
		return f
	}
	own := func(f Flow) Flow { f.ReplySrc = f.Dst; return f }
	tests := map[string]struct {
		rules []Rule
		flow  Flow
		want  bool
	}{
		"TCP, SYN sent":                    {alive, conn(service.TCP, tcpSynSent, false), true},
		"TCP, SYNs crossed":                {alive, conn(service.TCP, tcpSynSent2, false), true},
		"TCP, SYN sent, answered":          {alive, conn(service.TCP, tcpSynSent, true), false},
		"TCP, SYN received":                {alive, conn(service.TCP, 2, true), false},
		"TCP, established":                 {alive, conn(service.TCP, 3, true), false},
		"TCP, established, seen one way":   {alive, conn(service.TCP, 3, false), false},
		"TCP, state not known":             {alive, conn(service.TCP, 0, false), false},
		"TCP, from before the frontend":    {alive, own(conn(service.TCP, tcpSynSent, false)), true},
		"TCP, VIP deleted":                 {left, conn(service.TCP, tcpSynSent, false), true},
		"TCP, VIP deleted, not translated": {left, own(conn(service.TCP, tcpSynSent, false)), false},
		"SCTP, INIT sent":                  {alive, conn(service.SCTP, sctpCookieWait, false), true},
		"SCTP, INIT sent, newer kernels":   {alive, conn(service.SCTP, sctpClosed, false), true},
		"SCTP, closed":                     {alive, conn(service.SCTP, sctpClosed, true), false},
		"SCTP, INIT answered":              {alive, conn(service.SCTP, sctpCookieWait, true), false},
		"SCTP, cookie echoed":              {alive, conn(service.SCTP, 3, false), false},
		"SCTP, established":                {alive, conn(service.SCTP, 4, true), false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			kit.Equal(t, newMatcher(test.rules, nil, nil).stale(test.flow), test.want, "stale(%v)", test.flow)
		})
	}
}

// The random clusters have few names, addresses and ports, so that these coincide.
var (
	drawAddr     = rapid.SampledFrom([]netip.Addr{addr("10.0.0.1"), addr("10.0.0.2"), addr("10.0.0.3")})
	drawPort     = rapid.Uint16Range(1, 3)
	drawEndpoint = rapid.Custom(func(t *rapid.T) service.Endpoint {
		return service.Endpoint{Addr: netip.AddrPortFrom(drawAddr.Draw(t, "endpoint"), drawPort.Draw(t, "endpoint port"))}
	})
	drawEndpoints = rapid.Custom(func(t *rapid.T) []service.Endpoint {
		e := rapid.SliceOfNDistinct(drawEndpoint, 0, 3, rapid.ID).Draw(t, "endpoints")
		slices.SortFunc(e, func(a, b service.Endpoint) int { return a.Addr.Compare(b.Addr) })
		return e
	})
	drawClient = rapid.SampledFrom([]netip.Addr{addr("10.0.0.9"), addr("198.51.100.9")}) // a pod, and one outside
	drawFlow   = rapid.Custom(func(t *rapid.T) Flow {
		return Flow{
			Protocol: service.UDP,
			Src:      netip.AddrPortFrom(drawClient.Draw(t, "client"), 40000),
			ReplyDst: netip.AddrPortFrom(drawClient.Draw(t, "reply to"), 40000),
			Dst:      netip.AddrPortFrom(drawAddr.Draw(t, "dst"), drawPort.Draw(t, "dst port")),
			ReplySrc: drawEndpoint.Draw(t, "by").Addr,
		}
	})
)

// drawSnapshot draws up to three Services that share no frontend.
func drawSnapshot(t *rapid.T) *service.Snapshot {
	claimed := map[netip.AddrPort]bool{}
	var ports []*service.Port
	for i := range rapid.IntRange(0, 3).Draw(t, "ports") {
		p := &service.Port{Name: service.PortName{Name: fmt.Sprint(i), Protocol: service.UDP}}
		p.Cluster, p.Local = drawEndpoints.Draw(t, "cluster"), drawEndpoints.Draw(t, "local")
		p.Internal = service.Policy(rapid.IntRange(0, 1).Draw(t, "internal"))
		p.External = service.Policy(rapid.IntRange(0, 1).Draw(t, "external"))
		for range rapid.IntRange(1, 3).Draw(t, "frontends") {
			f := service.Frontend{Kind: service.Kind(rapid.IntRange(0, 3).Draw(t, "kind")), Port: drawPort.Draw(t, "port")}
			if f.Kind != service.NodePort {
				f.Addr = drawAddr.Draw(t, "addr")
			}
			if key := netip.AddrPortFrom(f.Addr, f.Port); !claimed[key] {
				claimed[key] = true
				p.Frontends = append(p.Frontends, f)
			}
		}
		ports = append(ports, p)
	}
	return service.New(1, &service.Node{NodePorts: service.AnyAddress()}, ports)
}

// frontendOwner is the simple lookup of the frontend that dst belongs to, a VIP before a
// NodePort. 10.0.0.1 is the node's address.
func frontendOwner(s *service.Snapshot, dst netip.AddrPort) (*service.Port, service.Frontend) {
	var owner *service.Port
	var frontend service.Frontend
	for p := range s.Ports(service.IPv4) {
		for _, f := range p.Frontends {
			isVIP := f.Port == dst.Port() && f.Addr == dst.Addr()
			isNodePort := f.Port == dst.Port() && f.Kind == service.NodePort && dst.Addr() == addr("10.0.0.1")
			if isVIP || isNodePort && owner == nil {
				owner, frontend = p, f
			}
		}
	}
	return owner, frontend
}

func isOutside(a netip.Addr) bool { return a == addr("198.51.100.9") }

// allowedByModel is the simple check of a flow to an existing frontend.
func allowedByModel(p *service.Port, f service.Frontend, x Flow) bool {
	from := slices.Clone(p.Endpoints(f.Kind))
	if f.Kind.External() && !isOutside(x.Src.Addr()) {
		from = append(from, p.Cluster...)
	}
	if f.Kind.External() && p.External == service.PolicyLocal && isOutside(x.Src.Addr()) && x.ReplyDst.Addr() != x.Src.Addr() {
		return false
	}
	return slices.ContainsFunc(from, func(e service.Endpoint) bool { return e.Addr == x.ReplySrc })
}

func isNodePortOf(s *service.Snapshot) func(service.Protocol, netip.AddrPort) bool {
	return func(_ service.Protocol, to netip.AddrPort) bool {
		_, f := frontendOwner(s, to)
		return to.Addr() == addr("10.0.0.1") && (f.Port == 0 || f.Kind == service.NodePort)
	}
}

func TestAllAgreesWithModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSnapshot(t)
		m := newMatcher(All(s, service.IPv4), isNodePortOf(s), isOutside)
		for _, f := range rapid.SliceOfN(drawFlow, 1, 20).Draw(t, "flows") {
			p, front := frontendOwner(s, f.Dst)
			want := p != nil && !allowedByModel(p, front, f)
			if got := m.stale(f); got != want {
				t.Fatalf("stale(%s by %s) = %t, want %t", f.Dst, f.ReplySrc, got, want)
			}
		}
	})
}

// If no stale flow remains for one snapshot, the rules between it and the next find the
// same flows as all rules of the next one, and the flows of removed frontends.
func TestBetweenAgreesWithModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		from, to := drawSnapshot(t), drawSnapshot(t)
		m := newMatcher(Between(from, to, service.IPv4), isNodePortOf(to), isOutside)
		for _, f := range rapid.SliceOfN(drawFlow, 1, 20).Draw(t, "flows") {
			before, was := frontendOwner(from, f.Dst)
			after, is := frontendOwner(to, f.Dst)
			if before != nil && !allowedByModel(before, was, f) {
				continue // it was deleted before
			}
			if after != nil && before != nil && (was.Kind == service.NodePort) != (is.Kind == service.NodePort) {
				continue // an address of the node became a VIP or is no longer one
			}
			want := after != nil && !allowedByModel(after, is, f)
			if after == nil {
				want = before != nil && f.translated()
			}
			if got := m.stale(f); got != want {
				t.Fatalf("stale(%s by %s) = %t, want %t", f.Dst, f.ReplySrc, got, want)
			}
		}
	})
}

func TestFilters(t *testing.T) {
	six := func(s string) Rule {
		return Rule{Address: service.Address{Family: service.IPv6, Protocol: service.UDP, Addr: addr(s), Port: 53}}
	}
	vip := func(n, port int) Rule {
		return Rule{Address: service.Address{Protocol: service.UDP, Addr: netip.AddrFrom4([4]byte{10, 96, 0, byte(n)}), Port: uint16(port)}}
	}
	tests := map[string]struct {
		rules []Rule
		want  []Filter
	}{
		"none":           {nil, nil},
		"one":            {[]Rule{vip(1, 53)}, []Filter{{Protocol: service.UDP, Addr: addr("10.96.0.1"), Port: 53}}},
		"twice":          {[]Rule{vip(1, 53), vip(1, 53)}, []Filter{{Protocol: service.UDP, Addr: addr("10.96.0.1"), Port: 53}}},
		"two ports":      {[]Rule{vip(1, 53), vip(1, 54), vip(1, 53)}, []Filter{{Protocol: service.UDP, Addr: addr("10.96.0.1"), Port: 0}}},
		"NodePort":       {[]Rule{rule(nodePort), rule(nodePort)}, []Filter{{Protocol: service.UDP, Addr: netip.Addr{}, Port: 30053}}},
		"IPv6, one port": {[]Rule{six("fd00::1"), six("fd00::2")}, []Filter{{Family: service.IPv6, Protocol: service.UDP, Port: 53}}},
		"four": {
			[]Rule{vip(1, 53), vip(2, 53), vip(3, 53), vip(4, 53)},
			[]Filter{{Protocol: service.UDP, Addr: addr("10.96.0.1"), Port: 53}, {Protocol: service.UDP, Addr: addr("10.96.0.2"), Port: 53},
				{Protocol: service.UDP, Addr: addr("10.96.0.3"), Port: 53}, {Protocol: service.UDP, Addr: addr("10.96.0.4"), Port: 53}},
		},
		"five":          {[]Rule{vip(1, 53), vip(2, 53), vip(3, 53), vip(4, 53), vip(5, 53)}, []Filter{{Protocol: service.UDP}}},
		"both families": {[]Rule{vip(1, 53), six("fd00::1")}, []Filter{{Protocol: service.UDP, Addr: addr("10.96.0.1"), Port: 53}, {Family: service.IPv6, Protocol: service.UDP, Port: 53}}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got := filters(test.rules)
			kit.Same(t, "filters (-want +got)", test.want, got, cmp.Comparer(func(a, b Filter) bool { return a == b }))
		})
	}
}

// entryV4 is Linux 6.18's dump of a flow with a reply from 192.0.2.9:1077 to
// 10.96.0.10:53, translated to 10.244.0.1:53.
const entryV4 = "02000000340001801400018008000100c0000209080002000a60000a1c000280050001001100000006000200043500000600" +
	"0300003500003400028014000180080001000af4000108000200c00002091c00028005000100110000000600020000350000" +
	"06000300043500000600120000070000080003000000000e080008000000000008000c003857c4da08000b00000000010800" +
	"070000000e101c001880080001000000000008000200000000000800030000000000"

func TestDecodeFlow(t *testing.T) {
	raw, err := hex.DecodeString(entryV4)
	kit.Must(t, err)
	want := Flow{Protocol: service.UDP, Src: at("192.0.2.9:1077"), Dst: at("10.96.0.10:53"),
		ReplySrc: at("10.244.0.1:53"), ReplyDst: at("192.0.2.9:1077"), Zone: 7, ReplyZone: 7, ID: 945276122, Answered: true, Expires: 3600}
	got, err := decodeFlow(raw)
	kit.Must(t, err)
	kit.Same(t, "decodeFlow (-want +got)", want, got, cmpopts.EquateComparable(netip.AddrPort{}))
	for n := range len(raw) { // truncated input must not panic
		_, _ = decodeFlow(raw[:n])
	}
	for _, short := range [][]byte{nil, raw[:3], raw[:nfgenmsgSize], raw[:nfgenmsgSize+52]} {
		f, err := decodeFlow(short)
		kit.Check(t, err != nil, "decodeFlow(%x) = %v, want an error", short, f)
	}
}

// The reply tuple, the ID and the zone identify the entry to delete.
func TestEncodeDelete(t *testing.T) {
	f := Flow{Protocol: service.UDP, Src: at("[2001:db8::9]:1077"), Dst: at("[fd00:96::a]:53"),
		ReplySrc: at("[fd00:244::1]:5353"), ReplyDst: at("[2001:db8::9]:1077"), Zone: 1, ReplyZone: 7, ID: 0x01020304}
	got, err := encodeDelete(f)
	kit.Must(t, err)
	want := strings.Join([]string{
		"0a000000", // IPv6
		"4c000280", // CTA_TUPLE_REPLY
		"2c000180", // CTA_TUPLE_IP
		"14000300fd000244000000000000000000000001", // source
		"1400040020010db8000000000000000000000009", // destination
		"1c000280", // CTA_TUPLE_PROTO
		"05000100110000000600020014e90000" + "0600030004350000",
		"0600120000070000", // CTA_ZONE
		"08000c0001020304", // CTA_ID
	}, "")
	if h := hex.EncodeToString(got); h != want {
		t.Errorf("encodeDelete (-want +got):\n%s", cmp.Diff(want, h))
	}
}

func FuzzDecode(f *testing.F) {
	raw, err := hex.DecodeString(entryV4)
	kit.Must(f, err)
	f.Add(raw)
	f.Add(append(bytes.Repeat([]byte{0}, 16), raw...))
	f.Fuzz(func(t *testing.T, b []byte) {
		for m := range netlink.Messages(b) {
			_, _ = decodeFlow(m.Body)
		}
		flow, err := decodeFlow(b)
		if err != nil {
			return
		}
		_, err = encodeDelete(flow)
		kit.Check(t, err == nil, "decodeFlow accepts %v, encodeDelete says %v", flow, err)
	})
}
