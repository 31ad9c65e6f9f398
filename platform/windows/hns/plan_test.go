// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/test/kit"
)

var (
	addr   = netip.MustParseAddr
	prefix = netip.MustParsePrefix

	nodeA    = addr("192.0.2.10")
	nodeB    = addr("192.0.2.11")
	v13      = Version{13, 3}
	v15      = Version{15, 5}
	overlayN = Network{
		ID: "net-overlay", Name: "vxlan0", Kind: Overlay, Subnets: []netip.Prefix{prefix("10.244.1.0/24")}, Gateways: []netip.Addr{addr("10.244.1.1")},
		Routes: []Route{{prefix("10.244.2.0/24"), nodeB}, {prefix("10.244.3.0/24"), addr("192.0.2.12")}},
	}
	bridgeN = Network{ID: "net-bridge", Name: "cbr0", Kind: L2Bridge, Subnets: []netip.Prefix{prefix("10.244.1.0/24"), prefix("fd00:10:244:1::/64")}}
	theNode = &service.Node{NodePorts: service.AnyAddress(), Name: "node-a", Addrs: []netip.Addr{nodeA, addr("2001:db8::10")}}
)

// testNode is a node: its HNS, its state file and its backend.
type testNode struct {
	t       testing.TB
	hns     *fake
	store   *memoryStore
	options Options
	backend *Backend
	now     time.Time
	notes   []string
}

func newTestNode(t testing.TB, v Version, n Network) *testNode {
	b := &testNode{t: t, hns: newFake(v, n), store: &memoryStore{}, now: time.Unix(1e9, 0)}
	b.restart()
	return b
}

// dsrNode returns a node with DSR that has programmed a Service with every kind of
// frontend, an endpoint of its own and a remote one.
func dsrNode(t testing.TB) (*testNode, *service.Snapshot) {
	b := newTestNode(t, v15, overlayN)
	b.options.DSR = true
	b.restart()
	b.pods("10.244.1.11")
	want := snapshot(1, allKinds("10.244.1.11:80", "10.244.2.11:80@b"))
	b.converge(want)
	return b, want
}

// restart replaces the process. HNS and the state file keep their content.
func (tn *testNode) restart() { tn.restartOn(tn.hns) }

func (tn *testNode) restartOn(d Driver) {
	h := NewHost(d, tn.store, "node-a", func(s string) { tn.notes = append(tn.notes, s) })
	h.now = func() time.Time { return tn.now }
	h.patience = 0 // no listing goes on beside what a test does
	tn.backend = New(h, service.IPv4, tn.options, 30*time.Second)
	tn.backend.hostMAC = func(netip.Addr) (string, error) { return "00-15-5d-aa-aa-aa", nil }
}

// pods creates local endpoints, as the network plugin does.
func (tn *testNode) pods(addrs ...string) {
	tn.t.Helper()
	for _, a := range addrs {
		if _, err := tn.hns.CreateEndpoint(context.Background(), Endpoint{Name: "pod-" + a, Network: tn.hns.networks[0].ID, Addrs: []netip.Addr{addr(a)}}); err != nil {
			tn.t.Fatal(err)
		}
	}
	clear(tn.hns.calls)
}

func (tn *testNode) plan(want *service.Snapshot) reconcile.Plan {
	tn.t.Helper()
	p, err := tn.backend.Plan(context.Background(), want)
	kit.Need(tn.t, err == nil, "Plan: %v", err)
	return p
}

// round runs one sync as the loop does.
func (tn *testNode) round(want *service.Snapshot) (string, error) {
	tn.t.Helper()
	clear(tn.hns.calls)
	tn.now = tn.now.Add(time.Second)
	p := tn.plan(want)
	if p.Empty() {
		return "", nil
	}
	text := p.Changes().String()
	return text, p.Apply(context.Background()).Err
}

// converge runs a sync that must succeed and leave nothing to do.
func (tn *testNode) converge(want *service.Snapshot) string {
	tn.t.Helper()
	text, err := tn.round(want)
	kit.Need(tn.t, err == nil, "Apply: %v\n%s", err, text)
	if p := tn.plan(want); !p.Empty() {
		tn.t.Fatalf("still to do:\n%s", p.Changes())
	}
	n := tn.hns.warnings
	kit.Need(tn.t, len(n) <= 0, "HNS warns: %v", n)
	return text
}

func tcp(namespace, name string) service.PortName {
	return service.PortName{Namespace: namespace, Name: name, Port: "http", Protocol: service.TCP}
}

// endpointsOf parses "10.244.1.11:8080" for a local pod. The suffix "@b" means another
// node.
func endpointsOf(texts ...string) []service.Endpoint {
	var all []service.Endpoint
	for _, s := range texts {
		at, elsewhere := strings.CutSuffix(s, "@b")
		all = append(all, service.Endpoint{Addr: netip.MustParseAddrPort(at), Local: !elsewhere, Remote: elsewhere})
	}
	slices.SortFunc(all, func(a, b service.Endpoint) int { return a.Addr.Compare(b.Addr) })
	return all
}

// clusterIP returns a port with a ClusterIP on port 80.
func clusterIP(name, vip string, endpoints ...string) *service.Port {
	return &service.Port{
		Name: tcp("shop", name), Frontends: []service.Frontend{{Kind: service.ClusterIP, Addr: addr(vip), Port: 80}},
		Cluster: endpointsOf(endpoints...),
	}
}

func snapshot(generation uint64, ports ...*service.Port) *service.Snapshot {
	return service.New(generation, theNode, ports)
}

func lines(s ...string) string {
	if len(s) == 0 {
		return ""
	}
	return strings.Join(s, "\n") + "\n"
}

func TestPlanStepByStep(t *testing.T) {
	const a, b, c = "10.244.1.11:8080", "10.244.2.11:8080@b", "10.244.2.12:8080@b"
	vip := "+ endpoint 10.96.0.10 remote 00-15-5d-aa-aa-aa via 192.0.2.10"
	reserved := "+ endpoint kube-proxy-source-vip 10.244.1.254"
	steps := []struct {
		situation string
		port      *service.Port
		want      string
	}{
		{"appears", clusterIP("web", "10.96.0.10", a, b), lines(reserved, vip,
			"+ endpoint 10.244.2.11 remote 02-11-0a-f4-02-0b via 192.0.2.11",
			"+ loadbalancer tcp 10.96.0.10:80 -> :8080 source-vip 10.244.1.254 [10.244.1.11 10.244.2.11] # shop/web:http")},
		{"one more endpoint", clusterIP("web", "10.96.0.10", a, b, c), lines(
			"+ endpoint 10.244.2.12 remote 02-11-0a-f4-02-0c via 192.0.2.11",
			"~ loadbalancer tcp 10.96.0.10:80 -> :8080 source-vip 10.244.1.254 [+10.244.2.12] # shop/web:http")},
		{"one leaves", clusterIP("web", "10.96.0.10", a, c), lines(
			"~ loadbalancer tcp 10.96.0.10:80 -> :8080 source-vip 10.244.1.254 [-10.244.2.11] # shop/web:http",
			"- endpoint 10.244.2.11 remote 02-11-0a-f4-02-0b via 192.0.2.11")},
		{"all leave", clusterIP("web", "10.96.0.10"), lines(
			"- loadbalancer tcp 10.96.0.10:80 # shop/web:http",
			"- endpoint 10.244.2.12 remote 02-11-0a-f4-02-0c via 192.0.2.11")},
		{"deleted", nil, lines("- endpoint 10.96.0.10 remote 00-15-5d-aa-aa-aa via 192.0.2.10")},
	}
	node := newTestNode(t, v15, overlayN)
	node.pods("10.244.1.11")
	for i, s := range steps {
		var ports []*service.Port
		if s.port != nil {
			ports = append(ports, s.port)
		}
		kit.Same(t, fmt.Sprintf("%s (-want +got)", s.situation), s.want, node.converge(snapshot(uint64(i), ports...)))
	}
}

// Before 15.5 a load balancer cannot be changed, or the change has no effect.
func TestOldHNSReplaces(t *testing.T) {
	for _, v := range []Version{{9, 5}, {13, 3}, {15, 4}} {
		t.Run(v.String(), func(t *testing.T) {
			b := newTestNode(t, v, bridgeN)
			b.pods("10.244.1.11", "10.244.1.12")
			b.converge(snapshot(1, clusterIP("web", "10.96.0.10", "10.244.1.11:80", "10.244.1.12:80")))
			got := b.converge(snapshot(2, clusterIP("web", "10.96.0.10", "10.244.1.11:80")))
			want := lines("- loadbalancer tcp 10.96.0.10:80 # shop/web:http", "+ loadbalancer tcp 10.96.0.10:80 -> :80 source-vip 192.0.2.10 [10.244.1.11] # shop/web:http")
			kit.Same(t, "plan (-want +got)", want, got)
		})
	}
}

// The proxy notices an HNS that reports a change as successful and ignores it.
func TestChangesAreReadBack(t *testing.T) {
	b := newTestNode(t, v15, bridgeN)
	b.pods("10.244.1.11", "10.244.1.12")
	b.converge(snapshot(1, clusterIP("web", "10.96.0.10", "10.244.1.11:80", "10.244.1.12:80")))
	b.hns.version = Version{15, 4} // the model still has 15.5
	want := snapshot(2, clusterIP("web", "10.96.0.10", "10.244.1.11:80"))
	p := b.plan(want)
	kit.Must(t, p.Apply(context.Background()).Err)
	for _, lb := range b.hns.balancers {
		kit.Check(t, len(lb.Endpoints) == 1, "load balancer has endpoints %v, want one", lb.Endpoints)
	}
	kit.Check(t, slices.ContainsFunc(b.notes, func(s string) bool { return strings.Contains(s, "does not change load balancers in place") }),
		"notes = %q, want one about changes in place", b.notes)
}

// A change costs a few writing calls, and a sync without changes none.
func TestCostOfAChange(t *testing.T) {
	b := newTestNode(t, v15, overlayN)
	var many []string
	for i := range 100 {
		many = append(many, fmt.Sprintf("10.244.2.%d:8080@b", 10+i))
	}
	b.converge(snapshot(1, clusterIP("web", "10.96.0.10", many...)))
	next := snapshot(2, clusterIP("web", "10.96.0.10", many[1:]...))
	_, err := b.round(next)
	kit.Must(t, err)
	n := b.hns.writes()
	kit.Check(t, n <= 4, "one endpoint leaving costs %d writing calls, want 4 at most: %v", n, b.hns.calls)
	kit.Check(t, len(b.hns.calls) == 2, "calls = %v, want no listing", b.hns.calls)
	_, err = b.round(next)
	kit.Check(t, err == nil && b.hns.writes() <= 0, "a quiet round: %v, calls %v", err, b.hns.calls)
	for op, n := range b.hns.calls {
		kit.Check(t, n <= 1, "%s %d times in a round", op, n)
	}
}

// A later process recognises the created objects and writes nothing.
func TestRestartAdopts(t *testing.T) {
	b := newTestNode(t, v13, overlayN)
	b.pods("10.244.1.11")
	want := snapshot(1, clusterIP("web", "10.96.0.10", "10.244.1.11:80", "10.244.2.11:80@b"))
	b.converge(want)
	for name, spoil := range map[string]func(){
		"state file kept":       func() {},
		"state file lost":       func() { b.store.document = nil },
		"state file damaged":    func() { b.store.document = []byte("{") },
		"state file of another": func() { b.store.document = []byte(`{"version": 1, "node": "node-b"}`) },
		"state file unreadable": func() { b.store.err = errors.New("access is denied") },
	} {
		spoil()
		b.restart()
		text, err := b.round(want)
		kit.Check(t, err == nil && text == "" && b.hns.writes() == 0, "%s: %v, plan:\n%s", name, err, text)
		b.store.err = nil
	}
}

// TestEndpointRequests asks HNS for endpoints as kube-proxy 1.37 does, apart from names: with a provider address on an
// overlay alone, and with the MAC of the host for the source VIP.
func TestEndpointRequests(t *testing.T) {
	const schema = `"SchemaVersion":{"Major":2,"Minor":0}}`
	for _, tt := range []struct {
		network Network
		want    []string
	}{
		{bridgeN, []string{
			`{"Name":"kube-proxy-remote-10.244.2.11","HostComputeNetwork":"net-bridge","IpConfigurations":[{"IpAddress":"10.244.2.11"}],` +
				`"MacAddress":"02-11-0a-f4-02-0b","Flags":1,` + schema,
		}},
		{overlayN, []string{
			`{"Name":"kube-proxy-source-vip","HostComputeNetwork":"net-overlay","IpConfigurations":[{"IpAddress":"10.244.1.254"}],"MacAddress":"` + site(overlayN, v13).HostMAC + `",` + schema,
			`{"Name":"kube-proxy-remote-10.96.0.10","HostComputeNetwork":"net-overlay","Policies":[{"Type":"ProviderAddress","Settings":{"ProviderAddress":"192.0.2.10"}}],` +
				`"IpConfigurations":[{"IpAddress":"10.96.0.10"}],"MacAddress":"` + site(overlayN, v13).HostMAC + `","Flags":1,` + schema,
			`{"Name":"kube-proxy-remote-10.244.2.11","HostComputeNetwork":"net-overlay","Policies":[{"Type":"ProviderAddress","Settings":{"ProviderAddress":"192.0.2.11"}}],` +
				`"IpConfigurations":[{"IpAddress":"10.244.2.11"}],"MacAddress":"02-11-0a-f4-02-0b","Flags":1,` + schema,
		}},
	} {
		b := newTestNode(t, v13, tt.network)
		b.pods("10.244.1.11")
		var texts []string
		b.restartOn(intercept(b.hns, func(_ context.Context, r request, do func() (any, error)) (any, error) {
			if e, creates := r.of.(Endpoint); creates {
				text, _ := json.Marshal(e.document())
				texts = append(texts, string(text))
			}
			return do()
		}))
		b.converge(snapshot(1, clusterIP("web", "10.96.0.10", localEndpoint, remoteEndpoint)))
		kit.Same(t, fmt.Sprintf("%s (-want +got)", tt.network.Kind), tt.want, texts)
	}
}

// generator draws small clusters, so that names and addresses coincide.
type generator struct {
	t      *rapid.T
	family service.Family
}

func (g generator) drawInt(label string, n int) int { return rapid.IntRange(0, n-1).Draw(g.t, label) }
func (g generator) drawBool(label string) bool      { return rapid.Bool().Draw(g.t, label) }

// nth returns the n-th address after the base of the family.
func (g generator) nth(v4, v6 string, n int) netip.Addr {
	base := v4
	if g.family == service.IPv6 {
		base = v6
	}
	b := addr(base).AsSlice()
	b[len(b)-1] += byte(n)
	a, _ := netip.AddrFromSlice(b)
	return a
}

// Node is always the same.
func (g generator) Node() *service.Node { return theNode }

// localPod is the address of a pod of this node, remotePod that of another node's pod.
func (g generator) localPod(n int) netip.Addr  { return g.nth("10.244.1.10", "fd00:10:244:1::10", n) }
func (g generator) remotePod(n int) netip.Addr { return g.nth("10.244.2.10", "fd00:10:244:2::10", n) }

// foreignPod is the remote pod that has an endpoint of another owner in HNS.
const foreignPod = 6

func (g generator) network() Network {
	if g.family == service.IPv4 && g.drawBool("overlay") {
		return overlayN
	}
	n := bridgeN
	n.Kind = rapid.SampledFrom([]Kind{L2Bridge, L2Tunnel}).Draw(g.t, "kind")
	return n
}

func (g generator) version() Version {
	all := []Version{{9, 5}, {13, 3}, {15, 4}, {15, 5}}
	if g.family == service.IPv6 {
		all = all[1:]
	}
	return rapid.SampledFrom(all).Draw(g.t, "version")
}

func (g generator) options() Options {
	return Options{DSR: g.drawBool("dsr"), ForwardHealthChecks: g.drawBool("forward"), RootEndpoint: "cbr0", HealthzPort: 10256, IgnoreSourceRanges: g.drawBool("ignore ranges")}
}

func (g generator) endpoint() service.Endpoint {
	port := uint16(8080)
	if g.drawInt("other port", 8) == 0 {
		port = 9090
	}
	switch g.drawInt("where", 8) {
	case 0, 1, 2:
		return service.Endpoint{Addr: netip.AddrPortFrom(g.localPod(g.drawInt("pod", 6)), port), Local: true}
	case 3: // location unknown
		return service.Endpoint{Addr: netip.AddrPortFrom(g.remotePod(g.drawInt("pod", 6)), port)}
	case 4: // a pod on a node's host network
		return service.Endpoint{Addr: netip.AddrPortFrom(g.nth("192.0.2.11", "2001:db8::11", 0), port), Remote: true}
	case 5: // another node reuses the address of a local pod
		return service.Endpoint{Addr: netip.AddrPortFrom(g.localPod(g.drawInt("pod", 6)), port), Remote: true}
	}
	return service.Endpoint{Addr: netip.AddrPortFrom(g.remotePod(g.drawInt("pod", foreignPod+1)), port), Remote: true}
}

func (g generator) endpoints(label string, only func(service.Endpoint) bool) []service.Endpoint {
	var all []service.Endpoint
	for range rapid.SampledFrom([]int{0, 1, 2, 3, 5, 8}).Draw(g.t, label) {
		if e := g.endpoint(); only(e) {
			all = append(all, e)
		}
	}
	slices.SortFunc(all, func(a, b service.Endpoint) int { return a.Addr.Compare(b.Addr) })
	return slices.CompactFunc(all, func(a, b service.Endpoint) bool { return a.Addr == b.Addr })
}

// port draws the n-th port. It shares no frontend with others.
func (g generator) port(n int) *service.Port {
	p := &service.Port{
		Name:   service.PortName{Namespace: "shop", Name: fmt.Sprintf("web-%d", n), Port: "http", Protocol: rapid.SampledFrom([]service.Protocol{service.TCP, service.TCP, service.UDP, service.SCTP}).Draw(g.t, "protocol")},
		Family: g.family, Cluster: g.endpoints("cluster", func(service.Endpoint) bool { return true }),
		Internal: service.Policy(g.drawInt("internal", 2)), External: service.Policy(g.drawInt("external", 2)),
	}
	for _, e := range g.endpoints("listed", func(e service.Endpoint) bool { return !e.Local && !slices.Contains(p.Cluster, e) }) {
		p.Listed = append(p.Listed, e.Addr.Addr())
	}
	p.Listed = slices.Compact(p.Listed)
	if p.Internal == service.PolicyLocal || p.External == service.PolicyLocal {
		p.Local = g.endpoints("local", func(e service.Endpoint) bool { return e.Local })
	}
	if g.drawInt("affinity", 3) == 0 {
		p.Affinity = time.Hour
	}
	add := func(k service.Kind, a netip.Addr, port uint16, sources []netip.Prefix) {
		p.Frontends = append(p.Frontends, service.Frontend{Kind: k, Addr: a, Port: port, Sources: sources})
	}
	add(service.ClusterIP, g.nth("10.96.0.10", "fd00:10:96::10", n/2), uint16(80+n), nil) // two ports share the address
	if g.drawBool("node port") {
		add(service.NodePort, netip.Addr{}, uint16(30000+n), nil)
	}
	if g.drawBool("external ip") {
		add(service.ExternalIP, g.nth("198.51.100.10", "2001:db8:1::10", n), 80, nil)
	}
	if g.drawBool("load balancer") {
		var sources []netip.Prefix
		if g.drawInt("sources", 4) == 0 {
			sources = []netip.Prefix{prefix("203.0.113.0/25")}
		}
		add(service.LoadBalancerIP, g.nth("203.0.113.200", "2001:db8:3::200", n/2), uint16(80+n), sources)
		p.HealthCheck = uint16(g.drawInt("health check", 2) * (31000 + n/2))
	}
	return p
}

// Ports draws the ports of up to four Services.
func (g generator) Ports() []*service.Port {
	var ports []*service.Port
	for n := range g.drawInt("ports", 5) {
		if g.drawInt("there", 5) > 0 {
			ports = append(ports, g.port(n))
		}
	}
	return ports
}

// Conn draws a connection to a frontend of the ports, or to another address.
func (g generator) Conn(ports []*service.Port) route.Conn {
	c := route.Conn{Protocol: service.TCP, To: netip.AddrPortFrom(g.remotePod(0), 80), From: g.nth("203.0.113.1", "2001:db8:2::1", 0), Interface: "eth0"}
	if len(ports) > 0 {
		p := ports[g.drawInt("to", len(ports))]
		f := p.Frontends[g.drawInt("frontend", len(p.Frontends))]
		to := f.Addr
		if c.ToNode = f.Kind == service.NodePort; c.ToNode {
			to = g.nth("192.0.2.10", "2001:db8::10", 0)
		}
		c.Protocol, c.To = p.Name.Protocol, netip.AddrPortFrom(to, f.Port+uint16(g.drawInt("beside", 8)/7))
	}
	switch g.drawInt("from", 3) {
	case 0:
		c.From, c.Interface = g.localPod(30), "vEthernet"
	case 1:
		c.From, c.Interface = g.nth("192.0.2.10", "2001:db8::10", 0), ""
	}
	return c
}
