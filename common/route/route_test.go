// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package route

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"kubeproxy/common/service"
	"kubeproxy/test/kit"
)

// outcome is the expected Verdict. Endpoints are "here" and "elsewhere", with a star
// where the source is masqueraded.
type outcome struct {
	Action    Action
	Endpoints string
	Kind      string // of the frontend
}

func outcomeOf(w fixture, v Verdict) outcome {
	f := outcome{Action: v.Action}
	if v.Frontend != nil {
		f.Kind = v.Frontend.Kind.String()
	}
	var names []string
	for _, e := range v.Endpoints {
		name := e.Addr.String()
		switch e.Addr {
		case w.local.Addr:
			name = "here"
		case w.remote.Addr:
			name = "elsewhere"
		}
		if v.Masquerades(e) {
			name += "*"
		}
		names = append(names, name)
	}
	f.Endpoints = strings.Join(names, " ")
	return f
}

// testCase is a cluster that differs from the plain one in one property, and a
// connection.
type testCase struct {
	change func(w *fixture, p *service.Port)
	from   string
	kind   service.Kind
	dial   func(w fixture, c *Conn) // changes the connection, if set
	want   outcome
	reason string // part of it
}

func (tc testCase) check(t *testing.T) {
	t.Helper()
	for _, f := range service.Families {
		w := newFixture(f)
		p := w.port()
		if tc.change != nil {
			tc.change(&w, p)
		}
		c := w.conn(tc.from, tc.kind)
		if tc.dial != nil {
			tc.dial(w, &c)
		}
		v := Decide(w.snapshot(p), c)
		kit.Same(t, fmt.Sprintf("%s: %s (-want +got)", f, v.Reason), tc.want, outcomeOf(w, v))
		kit.Check(t, strings.Contains(v.Reason, tc.reason) && v.Reason != "",
			"%s: reason %q, want something with %q", f, v.Reason, tc.reason)
	}
}

func noEndpoints(_ *fixture, p *service.Port) { p.Cluster, p.Local = nil, nil }

// noLocalEndpoint sets both policies to Local, without an endpoint on the node.
func noLocalEndpoint(w *fixture, p *service.Port) {
	p.Internal, p.External = service.PolicyLocal, service.PolicyLocal
	p.Cluster = []service.Endpoint{w.remote}
}

// onlyLocalEndpoint sets a local endpoint that is not in Cluster, which topology can
// cause.
func onlyLocalEndpoint(w *fixture, p *service.Port) {
	p.Internal, p.External = service.PolicyLocal, service.PolicyLocal
	p.Cluster, p.Local = nil, []service.Endpoint{w.local}
}

func TestEndpointsLeft(t *testing.T) {
	rejected := func(kind string) outcome { return outcome{Action: Reject, Kind: kind} }
	dropped := func(kind string) outcome { return outcome{Action: Drop, Kind: kind} }
	for name, s := range map[string]testCase{
		"no endpoint, ClusterIP from a pod":          {noEndpoints, "pod", service.ClusterIP, nil, rejected("ClusterIP"), "no ready endpoint"},
		"no endpoint, ClusterIP from the node":       {noEndpoints, "node", service.ClusterIP, nil, rejected("ClusterIP"), "no ready endpoint"},
		"no endpoint, NodePort from outside":         {noEndpoints, "outside", service.NodePort, nil, rejected("NodePort"), "no ready endpoint"},
		"no endpoint, ExternalIP from outside":       {noEndpoints, "outside", service.ExternalIP, nil, rejected("ExternalIP"), "no ready endpoint"},
		"no endpoint, load balancer from outside":    {noEndpoints, "outside", service.LoadBalancerIP, nil, rejected("LoadBalancerIP"), "no ready endpoint"},
		"none here, ClusterIP does not fall back":    {noLocalEndpoint, "pod", service.ClusterIP, nil, dropped("ClusterIP"), "internalTrafficPolicy Local, and no endpoint is left"},
		"none here, ClusterIP from the node":         {noLocalEndpoint, "node", service.ClusterIP, nil, dropped("ClusterIP"), "internalTrafficPolicy Local"},
		"none here, NodePort from outside":           {noLocalEndpoint, "outside", service.NodePort, nil, dropped("NodePort"), "externalTrafficPolicy Local"},
		"none here, ExternalIP from outside":         {noLocalEndpoint, "outside", service.ExternalIP, nil, dropped("ExternalIP"), "externalTrafficPolicy Local"},
		"none here, load balancer from outside":      {noLocalEndpoint, "outside", service.LoadBalancerIP, nil, dropped("LoadBalancerIP"), "externalTrafficPolicy Local"},
		"none here, a pod is short-circuited":        {noLocalEndpoint, "pod", service.LoadBalancerIP, nil, outcome{Forward, "elsewhere", "LoadBalancerIP"}, "a pod"},
		"none here, the node is short-circuited":     {noLocalEndpoint, "node", service.LoadBalancerIP, nil, outcome{Forward, "elsewhere*", "LoadBalancerIP"}, "the node itself"},
		"only here, from outside":                    {onlyLocalEndpoint, "outside", service.NodePort, nil, outcome{Forward, "here", "NodePort"}, "externalTrafficPolicy Local"},
		"only here, a pod finds the cluster's empty": {onlyLocalEndpoint, "pod", service.NodePort, nil, dropped("NodePort"), "no endpoint is left"},
		"only here, ClusterIP":                       {onlyLocalEndpoint, "pod", service.ClusterIP, nil, outcome{Forward, "here", "ClusterIP"}, "internalTrafficPolicy Local"},
	} {
		t.Run(name, s.check)
	}
}

// An endpoint that connects to itself through a Service must see the node's address.
// Otherwise it would reply to itself, bypassing the reverse translation.
func TestHairpin(t *testing.T) {
	asEndpoint := func(w fixture, c *Conn) { c.From = w.local.Addr.Addr() }
	asRemote := func(w fixture, c *Conn) { c.From = w.remote.Addr.Addr() }
	nodeUnknown := func(w *fixture, p *service.Port) {
		w.local.Local = false
		p.Cluster[0].Local = false
	}
	local := func(w *fixture, p *service.Port) {
		p.External, p.Local = service.PolicyLocal, []service.Endpoint{w.local}
	}
	for name, s := range map[string]testCase{
		"by ClusterIP":                       {nil, "pod", service.ClusterIP, asEndpoint, outcome{Forward, "here* elsewhere", "ClusterIP"}, ""},
		"an endpoint of an unknown node":     {nodeUnknown, "pod", service.ClusterIP, asEndpoint, outcome{Forward, "here* elsewhere", "ClusterIP"}, ""},
		"by a load balancer, policy Local":   {local, "pod", service.LoadBalancerIP, asEndpoint, outcome{Forward, "here* elsewhere", "LoadBalancerIP"}, ""},
		"another node's endpoint is no case": {nil, "pod", service.ClusterIP, asRemote, outcome{Forward, "here elsewhere", "ClusterIP"}, ""},
	} {
		t.Run(name, s.check)
	}
}

func sources(prefixes ...string) func(*fixture, *service.Port) {
	return func(w *fixture, p *service.Port) {
		f := &p.Frontends[3]
		f.Sources = []netip.Prefix{}
		for _, s := range prefixes {
			if x := netip.MustParsePrefix(s); service.FamilyOf(x.Addr()) == w.family {
				f.Sources = append(f.Sources, x)
			}
		}
	}
}

// Source ranges apply to the load balancer's addresses only.
func TestSourceRanges(t *testing.T) {
	in := sources("203.0.113.0/28", "2001:db8:113::/64")
	out := sources("203.0.113.16/28", "2001:db8:114::/64")
	withNode := sources("192.0.2.0/24", "2001:db8::/64")
	empty := func(w *fixture, p *service.Port) { out(w, p); noEndpoints(w, p) }
	both := outcome{Forward, "here* elsewhere*", "LoadBalancerIP"}
	dropped := outcome{Drop, "", "LoadBalancerIP"}
	for name, s := range map[string]testCase{
		"admitted":                         {in, "outside", service.LoadBalancerIP, nil, both, "Cluster"},
		"not admitted":                     {out, "outside", service.LoadBalancerIP, nil, dropped, "loadBalancerSourceRanges"},
		"nobody is admitted":               {sources(), "outside", service.LoadBalancerIP, nil, dropped, "loadBalancerSourceRanges"},
		"a pod is not admitted":            {in, "pod", service.LoadBalancerIP, nil, dropped, "loadBalancerSourceRanges"},
		"the node is not admitted":         {in, "node", service.LoadBalancerIP, nil, dropped, "loadBalancerSourceRanges"},
		"the node is admitted":             {withNode, "node", service.LoadBalancerIP, nil, both, "Cluster"},
		"not admitted and nobody is ready": {empty, "outside", service.LoadBalancerIP, nil, dropped, "loadBalancerSourceRanges"},
		"not for the NodePort":             {out, "outside", service.NodePort, nil, outcome{Forward, "here* elsewhere*", "NodePort"}, "Cluster"},
		"not for the ExternalIP":           {out, "outside", service.ExternalIP, nil, outcome{Forward, "here* elsewhere*", "ExternalIP"}, "Cluster"},
		"not for the ClusterIP":            {out, "pod", service.ClusterIP, nil, outcome{Forward, "here elsewhere", "ClusterIP"}, "Cluster"},
	} {
		t.Run(name, s.check)
	}
}

func to(v4, v6 string) func(fixture, *Conn) {
	return func(w fixture, c *Conn) {
		a := netip.MustParseAddr([]string{v4, v6}[w.family])
		c.To = netip.AddrPortFrom(a, c.To.Port())
	}
}

// NodePorts are served on some of the node's addresses.
func TestNodePortAddresses(t *testing.T) {
	restrict := func(prefixes ...string) func(*fixture, *service.Port) {
		return func(w *fixture, _ *service.Port) {
			w.node.NodePorts = nil
			for _, s := range prefixes {
				w.node.NodePorts = append(w.node.NodePorts, netip.MustParsePrefix(s))
			}
		}
	}
	otherFamily := func(w *fixture, _ *service.Port) {
		w.node.NodePorts = newFixture(1 - w.family).node.Pods.Prefixes[1-w.family : 2-w.family]
	}
	everywhere := func(w *fixture, p *service.Port) {
		restrict("192.0.2.0/24", "2001:db8::/64")(w, p)
		w.node.NodePortsEverywhere = true
	}
	second := to("198.51.100.200", "2001:db8:51::200")
	notOurs := func(w fixture, c *Conn) { second(w, c); c.ToNode = false }
	forwarded := outcome{Forward, "here* elsewhere*", "NodePort"}
	for name, s := range map[string]testCase{
		"any address of the node":           {nil, "outside", service.NodePort, second, forwarded, ""},
		"an address of somebody else":       {nil, "outside", service.NodePort, notOurs, outcome{Action: Pass}, "no Service"},
		"inside the range":                  {restrict("192.0.2.0/24", "2001:db8::/64"), "outside", service.NodePort, nil, forwarded, ""},
		"outside the range":                 {restrict("192.0.2.0/24", "2001:db8::/64"), "outside", service.NodePort, second, outcome{Action: Pass}, "NodePort 30080 of service shop/web is not at this address: nodePortAddresses "},
		"the range is of the other family":  {otherFamily, "outside", service.NodePort, nil, outcome{Action: Pass}, "is not at this address"},
		"no range":                          {restrict(), "outside", service.NodePort, nil, outcome{Action: Pass}, "is not at this address"},
		"loopback never":                    {nil, "node", service.NodePort, to("127.0.0.1", "::1"), outcome{Action: Pass}, "no Service"},
		"everywhere":                        {everywhere, "outside", service.NodePort, second, forwarded, ""},
		"loopback never, even in the range": {restrict("127.0.0.0/8", "::1/128"), "node", service.NodePort, to("127.0.0.1", "::1"), outcome{Action: Pass}, "no Service"},
	} {
		t.Run(name, s.check)
	}
}

// Destinations that are not frontends pass.
func TestOtherDestinations(t *testing.T) {
	port := func(n uint16) func(fixture, *Conn) {
		return func(_ fixture, c *Conn) { c.To = netip.AddrPortFrom(c.To.Addr(), n) }
	}
	udp := func(_ fixture, c *Conn) { c.Protocol = service.UDP }
	clusterIPOnNode := func(w fixture, c *Conn) { c.To, c.ToNode = netip.AddrPortFrom(w.clusterIP, 30080), true }
	externalOnNode := func(w *fixture, p *service.Port) {
		p.Frontends[2].Addr, p.Frontends[2].Port = w.node.Addrs[0], 30080
	}
	onlyOne := func(_ *fixture, p *service.Port) { p.Frontends = slices.Delete(p.Frontends, 1, 2) }
	pass := outcome{Action: Pass}
	for name, s := range map[string]testCase{
		"undefined port of a ClusterIP":         {nil, "pod", service.ClusterIP, port(81), outcome{Action: Reject}, "no Service has port 81/tcp"},
		"other protocol of a ClusterIP":         {nil, "pod", service.ClusterIP, udp, outcome{Action: Reject}, "no Service has port 80/udp"},
		"a NodePort's number at a ClusterIP":    {nil, "pod", service.ClusterIP, port(30080), outcome{Action: Reject}, "no Service has port"},
		"so where the node holds the ClusterIP": {nil, "node", service.ClusterIP, clusterIPOnNode, outcome{Action: Reject}, "no Service has port"},
		"undefined port of an ExternalIP":       {nil, "outside", service.ExternalIP, port(81), pass, "no Service"},
		"undefined port of a load balancer":     {nil, "outside", service.LoadBalancerIP, port(81), pass, "no Service"},
		"undefined port of the node":            {nil, "outside", service.NodePort, port(80), pass, "no Service"},
		"other protocol of a NodePort":          {nil, "outside", service.NodePort, udp, pass, "no Service"},
		"no NodePort":                           {onlyOne, "outside", service.NodePort, nil, pass, "no Service"},
		"an endpoint's own address":             {nil, "pod", service.ClusterIP, func(w fixture, c *Conn) { c.To = w.local.Addr }, pass, "no Service"},
		"an ExternalIP goes before a NodePort":  {externalOnNode, "outside", service.NodePort, nil, outcome{Forward, "here* elsewhere*", "ExternalIP"}, ""},
	} {
		t.Run(name, s.check)
	}
}

// Pods can be detected by interface, regardless of addresses.
func TestPodsByInterface(t *testing.T) {
	by := func(pods service.LocalPods) func(*fixture, *service.Port) {
		return func(w *fixture, _ *service.Port) { w.node.Pods = pods }
	}
	from := func(iface string) func(fixture, *Conn) { return func(_ fixture, c *Conn) { c.Interface = iface } }
	bridge, prefix := by(service.LocalPods{Interface: "cbr0"}), by(service.LocalPods{InterfacePrefix: "veth"})
	otherFamily := func(w *fixture, _ *service.Port) {
		w.node.Pods.Prefixes = w.node.Pods.Prefixes[1-w.family : 2-w.family]
	}
	plain, masq := outcome{Forward, "here elsewhere", "ClusterIP"}, outcome{Forward, "here* elsewhere*", "ClusterIP"}
	for name, s := range map[string]testCase{
		"through the bridge":           {bridge, "pod", service.ClusterIP, from("cbr0"), plain, ""},
		"through another interface":    {bridge, "pod", service.ClusterIP, from("eth0"), masq, ""},
		"through a named interface":    {prefix, "pod", service.ClusterIP, from("veth7"), plain, ""},
		"through one named otherwise":  {prefix, "pod", service.ClusterIP, from("eth0"), masq, ""},
		"from the node, no interface":  {prefix, "node", service.ClusterIP, nil, masq, ""},
		"prefixes of the other family": {otherFamily, "outside", service.ClusterIP, nil, plain, ""},
	} {
		t.Run(name, s.check)
	}
}

// Families are separate: a ClusterIP of one family does not match traffic of the other.
func TestFamiliesAreApart(t *testing.T) {
	v4, v6 := newFixture(service.IPv4), newFixture(service.IPv6)
	four, six := v4.port(), v6.port()
	six.Cluster = nil
	want := v4.snapshot(four, six)
	if v := Decide(want, v4.conn("pod", service.ClusterIP)); v.Action != Forward || v.Port != four {
		t.Errorf("IPv4: %s of %v, want forward of the IPv4 port", v.Action, v.Port)
	}
	v := Decide(want, v6.conn("pod", service.ClusterIP))
	kit.Check(t, v.Action == Reject && v.Port == six, "IPv6: %s of %v, want reject of the IPv6 port", v.Action, v.Port)
}

// A Verdict points into the snapshot, so that callers can report details.
func TestVerdictNamesItsFrontend(t *testing.T) {
	w := newFixture(service.IPv4)
	p := w.port()
	v := Decide(w.snapshot(p), w.conn("outside", service.ExternalIP))
	kit.Check(t, v.Port == p && v.Frontend == &p.Frontends[2],
		"verdict about %v, %v; want the port's third frontend", v.Port, v.Frontend)
}

func TestActionWords(t *testing.T) {
	var got []string
	for _, a := range []Action{Pass, Forward, Reject, Drop} {
		got = append(got, a.String())
	}
	kit.Same(t, "(-want +got)", []string{"pass", "forward", "reject", "drop"}, got)
}

// The matrix defines, for a port with endpoints on this node and another one, which
// endpoints may answer, and whether they see the address of the client ("plain") or of
// the node ("masq"). The columns are: pods are detected; the same with masqueradeAll;
// pods are not detected; the same with masqueradeAll.
const matrix = `
ClusterIP Cluster pod      all  plain | all  masq  | all  plain | all  masq
ClusterIP Cluster node     all  masq  | all  masq  | all  plain | all  masq
ClusterIP Cluster outside  all  masq  | all  masq  | all  plain | all  masq
ClusterIP Local   pod      here plain | here masq  | here plain | here masq
ClusterIP Local   node     here masq  | here masq  | here plain | here masq
ClusterIP Local   outside  here masq  | here masq  | here plain | here masq
external  Cluster pod      all  masq  | all  masq  | all  masq  | all  masq
external  Cluster node     all  masq  | all  masq  | all  masq  | all  masq
external  Cluster outside  all  masq  | all  masq  | all  masq  | all  masq
external  Local   pod      all  plain | all  plain | here plain | here plain
external  Local   node     all  masq  | all  masq  | all  masq  | all  masq
external  Local   outside  here plain | here plain | here plain | here plain
`

// column holds the node's settings in a case of the matrix.
type column struct{ detect, masqueradeAll bool }

var columns = []column{{true, false}, {true, true}, {false, false}, {false, true}}

var kinds = map[string][]service.Kind{
	"ClusterIP": {service.ClusterIP},
	"external":  {service.NodePort, service.ExternalIP, service.LoadBalancerIP},
}

// matrixCase is one cell, or one of the three that a line for all external kinds covers.
type matrixCase struct {
	kind         service.Kind
	policy, from string
	column       column
	want         string
}

func matrixCases() []matrixCase {
	var cases []matrixCase
	for _, line := range strings.Split(strings.TrimSpace(matrix), "\n") {
		words := strings.Fields(line)
		for i, want := range strings.Split(strings.Join(words[3:], " "), " | ") {
			for _, kind := range kinds[words[0]] {
				cases = append(cases, matrixCase{kind, words[1], words[2], columns[i], want})
			}
		}
	}
	return cases
}

func TestMasqueradeMatrix(t *testing.T) {
	cases := matrixCases()
	kit.Need(t, len(cases) == 4*2*3*4, "%d cases, want every kind, policy, source and node", len(cases))
	for _, c := range cases {
		t.Run(fmt.Sprintf("%s/%s/%s/%+v", c.kind, c.policy, c.from, c.column), func(t *testing.T) {
			got := [2]string{c.decide(service.IPv4), c.decide(service.IPv6)}
			kit.Same(t, "(-want +got)", [2]string{c.want, c.want}, got)
		})
	}
}

// decide describes the verdict of c in the words of the matrix.
func (c matrixCase) decide(f service.Family) string {
	w := newFixture(f)
	w.node.MasqueradeAll = c.column.masqueradeAll
	if !c.column.detect {
		w.node.Pods = service.LocalPods{}
	}
	p := w.port()
	p.Local = []service.Endpoint{w.local}
	if c.policy == "Local" {
		p.Internal, p.External = service.PolicyLocal, service.PolicyLocal
	}
	v := Decide(w.snapshot(p), w.conn(c.from, c.kind))
	if v.Action != Forward {
		return v.Action.String()
	}
	words := map[int]string{1: "here", 2: "all"}[len(v.Endpoints)]
	for i, e := range v.Endpoints {
		word := " plain"
		if v.Masquerades(e) {
			word = " masq"
		}
		if i > 0 && !strings.HasSuffix(words, word) {
			return words + " mixed"
		}
		words = strings.TrimSuffix(words, word) + word
	}
	return words
}

// fixture is a small cluster in one family, seen from node-a.
type fixture struct {
	family                           service.Family
	node                             *service.Node
	pod, outside                     netip.Addr
	clusterIP, externalIP, ingressIP netip.Addr
	local, remote                    service.Endpoint
}

func newFixture(f service.Family) fixture {
	a := func(v4, v6 string) netip.Addr { return netip.MustParseAddr([]string{v4, v6}[f]) }
	prefixes := []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/48")}
	at := func(v4, v6 string) netip.AddrPort { return netip.AddrPortFrom(a(v4, v6), 8080) }
	return fixture{
		family:    f,
		node:      &service.Node{NodePorts: service.AnyAddress(), Name: "node-a", Addrs: []netip.Addr{a("192.0.2.10", "2001:db8::10")}, Pods: service.LocalPods{Prefixes: prefixes}},
		pod:       a("10.244.1.50", "fd00:10:244:1::50"),
		outside:   a("203.0.113.9", "2001:db8:113::9"),
		clusterIP: a("10.96.0.10", "fd00:10:96::10"), externalIP: a("198.51.100.7", "2001:db8:51::7"), ingressIP: a("203.0.113.100", "2001:db8:113::100"),
		local:  service.Endpoint{Addr: at("10.244.1.11", "fd00:10:244:1::11"), Local: true},
		remote: service.Endpoint{Addr: at("10.244.2.11", "fd00:10:244:2::11"), Remote: true},
	}
}

// port is a Service port with one frontend of each kind and one endpoint on each of two
// nodes.
func (f fixture) port() *service.Port {
	return &service.Port{
		Name:   service.PortName{Namespace: "shop", Name: "web", Protocol: service.TCP},
		Family: f.family,
		Frontends: []service.Frontend{
			{Kind: service.ClusterIP, Addr: f.clusterIP, Port: 80},
			{Kind: service.NodePort, Port: 30080},
			{Kind: service.ExternalIP, Addr: f.externalIP, Port: 80},
			{Kind: service.LoadBalancerIP, Addr: f.ingressIP, Port: 80},
		},
		Cluster: []service.Endpoint{f.local, f.remote},
	}
}

func (f fixture) snapshot(ports ...*service.Port) *service.Snapshot {
	return service.New(1, f.node, ports)
}

// conn dials a frontend of the port from a pod, the node or outside.
func (f fixture) conn(from string, kind service.Kind) Conn {
	to := map[service.Kind]netip.AddrPort{
		service.ClusterIP:      netip.AddrPortFrom(f.clusterIP, 80),
		service.NodePort:       netip.AddrPortFrom(f.node.Addrs[0], 30080),
		service.ExternalIP:     netip.AddrPortFrom(f.externalIP, 80),
		service.LoadBalancerIP: netip.AddrPortFrom(f.ingressIP, 80),
	}[kind]
	c := Conn{Protocol: service.TCP, To: to, ToNode: kind == service.NodePort}
	switch from {
	case "pod":
		c.From, c.Interface = f.pod, "veth1"
	case "node":
		c.From = f.node.Addrs[0]
	default:
		c.From, c.Interface = f.outside, "eth0"
	}
	return c
}
