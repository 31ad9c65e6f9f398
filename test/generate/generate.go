// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package generate draws random snapshots of a small cluster and connections in it. Tests
// compare what a backend programs for them with route.Decide. It knows no backend.
package generate

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/common/track"
)

// Addresses of the node by family: one from the Node object, and another one.
var (
	NodeAddr      = [2]netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}
	OtherNodeAddr = [2]netip.Addr{netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("2001:db8:1::1")}
)

func isNodeAddr(a netip.Addr) bool {
	return slices.Contains(NodeAddr[:], a) || slices.Contains(OtherNodeAddr[:], a)
}

// NthAddr returns the n-th address after base.
func NthAddr(base string, n int) netip.Addr {
	b := netip.MustParseAddr(base).AsSlice()
	b[len(b)-1] += byte(n)
	a, _ := netip.AddrFromSlice(b)
	return a
}

// Cluster draws snapshots of a cluster so small that addresses and names collide.
type Cluster struct {
	T      *rapid.T
	Family service.Family
}

// DrawInt draws a number from 0 to n-1.
func (w Cluster) DrawInt(label string, n int) int { return rapid.IntRange(0, n-1).Draw(w.T, label) }

// DrawBool draws a boolean.
func (w Cluster) DrawBool(label string) bool { return rapid.Bool().Draw(w.T, label) }

func (w Cluster) base(v4, v6 string) string {
	if w.Family == service.IPv6 {
		return v6
	}
	return v4
}

// Pod is the n-th address of a pod on the node.
func (w Cluster) Pod(n int) netip.Addr { return NthAddr(w.base("10.244.1.0", "fd00:10:244:1::"), n) }

// unallocated are addresses in ServiceCIDRs that no Service has.
var unallocated = [...]netip.Addr{service.IPv4: NthAddr("10.96.0.0", 200), service.IPv6: NthAddr("fd00:10:96::", 200)}

// Node draws the node and the operator's settings.
func (w Cluster) Node() *service.Node {
	n := &service.Node{Name: "node-a", Addrs: []netip.Addr{NodeAddr[w.Family]}, MasqueradeAll: w.DrawBool("masquerade all")}
	switch w.DrawInt("detect", 4) {
	case 0:
		n.Pods.Prefixes = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/48")}
	case 1:
		n.Pods.Interface = "cbr0"
	case 2:
		n.Pods.InterfacePrefix = "veth"
	}
	if w.DrawBool("ranges") {
		n.ServiceCIDRs = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("fd00:10:96::/112")}
		if w.DrawBool("endpoint in a range") {
			n.EndpointsInServiceCIDRs = []netip.Addr{unallocated[service.IPv4], unallocated[service.IPv6]}
		}
	}
	n.NodePorts = service.AnyAddress()
	if w.DrawBool("restricted") {
		n.NodePorts = nil
		for _, a := range NodeAddr {
			n.NodePorts = append(n.NodePorts, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	return n
}

// WithoutServiceCIDRs is a Cluster whose nodes know no ServiceCIDRs, for rules that do
// not use them.
type WithoutServiceCIDRs struct{ Cluster }

// Node draws the node.
func (w WithoutServiceCIDRs) Node() *service.Node {
	n := w.Cluster.Node()
	n.ServiceCIDRs, n.EndpointsInServiceCIDRs = nil, nil
	return n
}

func (w Cluster) endpoints(label string) []service.Endpoint {
	n := rapid.SampledFrom([]int{0, 1, 2, 3, 5, 8, 9, 20}).Draw(w.T, label)
	var list []service.Endpoint
	for range n {
		where := w.DrawInt("where", 3)
		list = append(list, service.Endpoint{
			Addr:  netip.AddrPortFrom(w.Pod(1+w.DrawInt("pod", 30)), 8080),
			Local: where == 0, Remote: where == 1,
		})
	}
	slices.SortFunc(list, func(a, b service.Endpoint) int { return a.Addr.Compare(b.Addr) })
	return slices.CompactFunc(list, func(a, b service.Endpoint) bool { return a.Addr == b.Addr })
}

func (w Cluster) sources() []netip.Prefix {
	switch w.DrawInt("sources", 4) {
	case 0:
		return []netip.Prefix{}
	case 1:
		return []netip.Prefix{netip.MustParsePrefix(w.base("203.0.113.0/25", "2001:db8:2::/65"))}
	}
	return nil
}

// port draws the n-th port. No other port has its frontends.
func (w Cluster) port(n int) *service.Port {
	p := &service.Port{
		Name:   service.PortName{Namespace: "shop", Name: fmt.Sprintf("web-%d", n), Port: "http", Protocol: rapid.SampledFrom([]service.Protocol{service.TCP, service.UDP, service.SCTP}).Draw(w.T, "protocol")},
		Family: w.Family, Cluster: w.endpoints("cluster"),
		Internal: service.Policy(w.DrawInt("internal", 2)), External: service.Policy(w.DrawInt("external", 2)),
	}
	if p.Internal == service.PolicyLocal || p.External == service.PolicyLocal {
		p.Local = w.endpoints("local")
	}
	if w.DrawInt("affinity", 3) == 0 {
		p.Affinity = time.Duration(1+w.DrawInt("timeout", 2)) * time.Hour
	}
	if w.DrawInt("consistent", 4) == 0 {
		p.Consistent = service.Consistent{Slots: []uint16{101, 211}[w.DrawInt("slots", 2)], ClusterIPs: w.DrawBool("with ClusterIPs")}
	}
	if p.External == service.PolicyLocal && w.DrawBool("health check") {
		p.HealthCheck = uint16(30100 + n)
	}
	p.Frontends = append(p.Frontends, service.Frontend{Kind: service.ClusterIP, Addr: NthAddr(w.base("10.96.0.0", "fd00:10:96::"), n), Port: 80})
	if w.DrawBool("node port") {
		p.Frontends = append(p.Frontends, service.Frontend{Kind: service.NodePort, Port: uint16(30000 + n)})
	}
	if w.DrawBool("external ip") {
		p.Frontends = append(p.Frontends, service.Frontend{Kind: service.ExternalIP, Addr: NthAddr(w.base("198.51.100.10", "2001:db8:1::10"), n), Port: 80})
	}
	if w.DrawBool("load balancer") {
		p.Frontends = append(p.Frontends, service.Frontend{Kind: service.LoadBalancerIP, Addr: NthAddr(w.base("203.0.113.200", "2001:db8:3::200"), n), Port: 80, Sources: w.sources()})
	}
	return p
}

// Ports draws the ports of up to four Services. No two ports share a frontend.
func (w Cluster) Ports() []*service.Port {
	var ports []*service.Port
	for n := range w.DrawInt("ports", 5) {
		if w.DrawInt("here", 5) > 0 {
			ports = append(ports, w.port(n))
		}
	}
	for _, p := range ports {
		if w.DrawBool("renamed") { // its frontends move to a port of another name
			p.Name.Port += "-too"
		}
	}
	return ports
}

// Conn draws a connection to a frontend of the ports, or to an address close to one.
func (w Cluster) Conn(ports []*service.Port) route.Conn {
	c := route.Conn{Protocol: service.TCP, To: netip.AddrPortFrom(w.Pod(3), 80)}
	if len(ports) > 0 {
		p := ports[w.DrawInt("to", len(ports))]
		f := p.Frontends[w.DrawInt("frontend", len(p.Frontends))]
		c.Protocol = p.Name.Protocol
		addr := f.Addr
		if f.Kind == service.NodePort {
			addr = rapid.SampledFrom([]netip.Addr{NodeAddr[w.Family], OtherNodeAddr[w.Family], w.Pod(40), netip.MustParseAddr(w.base("127.0.0.1", "::1"))}).Draw(w.T, "node address")
		}
		port := f.Port
		switch w.DrawInt("other", 16) {
		case 0, 1:
			port++
		case 2: // an address of no Service, or an external address of another one
			addr = addr.Next()
		case 3:
			addr = unallocated[w.Family]
		}
		c.To = netip.AddrPortFrom(addr, port)
	}
	c.ToNode = isNodeAddr(c.To.Addr()) || c.To.Addr().IsLoopback()
	switch w.DrawInt("from", 4) {
	case 0:
		c.From, c.Interface = w.Pod(1+w.DrawInt("client", 30)), rapid.SampledFrom([]string{"veth1", "cbr0"}).Draw(w.T, "interface")
	case 1:
		c.From, c.Interface = NthAddr(w.base("203.0.113.1", "2001:db8:2::1"), 200*w.DrawInt("far", 2)), "eth0"
	case 2:
		c.From = NodeAddr[w.Family]
	default:
		c.From, c.Interface = NthAddr(w.base("192.0.2.50", "2001:db8::50"), 0), "eth0"
	}
	return c
}

// IsNodeLocal returns what the fib expression of nft(8) does: the node's addresses and
// loopback are local.
func IsNodeLocal(a netip.Addr) bool { return isNodeAddr(a) || a.IsLoopback() }

// fatalT is a test, including those of rapid.
type fatalT interface{ Fatalf(string, ...any) }

// Plan returns a plan of b, which must succeed.
func Plan(t fatalT, b reconcile.Backend, want *service.Snapshot) reconcile.Plan {
	p, err := b.Plan(context.Background(), want)
	if err != nil {
		t.Fatalf("Plan: %v", err)
	}
	return p
}

// Text prints p, which is nil if there is none.
func Text(p reconcile.Plan) string {
	if p == nil {
		return ""
	}
	return p.Changes().String()
}

// Apply runs one round of b that must succeed, and returns its plan, which may have been
// empty.
func Apply(t fatalT, b reconcile.Backend, want *service.Snapshot) reconcile.Plan {
	p := Plan(t, b, want)
	if p.Empty() {
		return p
	}
	if err := p.Apply(context.Background()).Err; err != nil {
		t.Fatalf("Apply: %v\n%s", err, p.Changes())
	}
	return p
}

// RequireNoChange requires that b, which has no state yet, finds nothing to do.
func RequireNoChange(t fatalT, b reconcile.Backend, want *service.Snapshot) {
	p, err := b.Plan(context.Background(), want)
	if err != nil {
		t.Fatalf("Plan of a new backend: %v", err)
	}
	if !p.Empty() {
		t.Fatalf("a new backend would change what is there:\n%s", p.Changes())
	}
}

// Silence has a Tracker choose the endpoints of drawn ports, of which some do not answer.
type Silence struct {
	w       Cluster
	drawn   []*service.Port
	tracker *track.Tracker
	silent  map[service.Address]time.Time
	policy  []track.Silent // of each port
}

var silentPolicy = rapid.SampledFrom([]track.Silent{"", "", track.SilentOn, track.SilentObserve, track.SilentOff})

// Silence gives a new Tracker the endpoints of ports.
func (w Cluster) Silence(ports []*service.Port) *Silence {
	s := &Silence{w: w, drawn: ports, policy: make([]track.Silent, len(ports))}
	listed := slices.ContainsFunc(ports, func(p *service.Port) bool { return p.Listed != nil })
	s.tracker = track.New(track.Options{NodeName: "node-a", NodePorts: service.AnyAddress(), Listed: listed, SilentEndpoints: track.SilentOn})
	s.tracker.Synced()
	for i, p := range ports {
		for j, e := range endpointsOf(p) {
			s.tracker.SetSlice(s.slice(i, j, e))
		}
	}
	return s
}

// endpointsOf returns all endpoints of p.
func endpointsOf(p *service.Port) []service.Endpoint {
	all := slices.Concat(p.Cluster, p.Local)
	slices.SortStableFunc(all, func(a, b service.Endpoint) int { return a.Addr.Compare(b.Addr) })
	return slices.CompactFunc(all, func(a, b service.Endpoint) bool { return a.Addr == b.Addr })
}

// Next draws who does not answer and what Services make of that, and returns the ports. It
// compares them with the rule: a silent endpoint is left out while others answer, at most half
// of them are, and those that are silent for longest come first.
func (s *Silence) Next() []*service.Port {
	s.silent = map[service.Address]time.Time{}
	for i, p := range s.drawn {
		s.policy[i] = silentPolicy.Draw(s.w.T, "silent policy")
		s.tracker.SetService(s.service(i))
		for _, e := range endpointsOf(p) {
			if since := s.w.DrawInt("silent since", 6) - 3; since >= 0 {
				s.silent[service.AddressOf(p.Name.Protocol, e.Addr)] = time.Unix(int64(since), 0)
			}
		}
	}
	s.tracker.SetSilent(s.silent)
	chosen := s.tracker.Latest()
	var ports []*service.Port
	for i, p := range s.drawn {
		q, found := *p, chosen.Port(p.Family, service.PortName{Namespace: "shop", Name: s.name(i), Port: "http", Protocol: p.Name.Protocol})
		if found == nil {
			s.w.T.Fatalf("the Tracker has no %s", s.name(i))
		}
		q.Cluster, q.Local, q.Draining, q.Listed = found.Cluster, found.Local, found.Draining, found.Listed
		all := endpointsOf(p)
		s.require(i, q.Cluster, all)
		if q.Internal == service.PolicyLocal || q.External == service.PolicyLocal {
			s.require(i, q.Local, slices.DeleteFunc(all, func(e service.Endpoint) bool { return !e.Local }))
		}
		ports = append(ports, &q)
	}
	return ports
}

// require requires that got has the endpoints among all that port i uses.
func (s *Silence) require(i int, got, all []service.Endpoint) {
	p, want := s.drawn[i], slices.Clone(all)
	since := func(e service.Endpoint) int64 {
		at, silent := s.silent[service.AddressOf(p.Name.Protocol, e.Addr)]
		if !silent {
			return 1e9
		}
		return at.Unix()
	}
	slices.SortStableFunc(want, func(a, b service.Endpoint) int { return cmp.Compare(since(a), since(b)) })
	n := slices.IndexFunc(want, func(e service.Endpoint) bool { return since(e) == 1e9 })
	if n > 0 && cmp.Or(s.policy[i], track.SilentOn) == track.SilentOn {
		want = want[min(n, len(want)/2):]
	}
	slices.SortFunc(want, func(a, b service.Endpoint) int { return a.Addr.Compare(b.Addr) })
	if !slices.EqualFunc(got, want, func(a, b service.Endpoint) bool { return a.Addr == b.Addr }) {
		s.w.T.Fatalf("%s, %s: the Tracker chose %v of %v, want %v; silent are %v", p.Name, s.policy[i], got, all, want, s.silent)
	}
}

func (s *Silence) name(i int) string { return fmt.Sprintf("web-%d", i) }

// service returns the Service of port i, of which only what decides about endpoints matters.
func (s *Silence) service(i int) *corev1.Service {
	p := s.drawn[i]
	policy := func(x service.Policy) string {
		if x == service.PolicyLocal {
			return "Local"
		}
		return "Cluster"
	}
	internal := corev1.ServiceInternalTrafficPolicy(policy(p.Internal))
	x := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: s.name(i)}, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeNodePort, ClusterIPs: []string{NthAddr(s.w.base("10.96.0.0", "fd00:10:96::"), i).String()},
		InternalTrafficPolicy: &internal, ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicy(policy(p.External)),
		Ports: []corev1.ServicePort{{Name: "http", Port: 80, NodePort: int32(30000 + i), Protocol: protocols[p.Name.Protocol]}},
	}}
	if text := s.policy[i]; text != "" {
		x.Annotations = map[string]string{track.AnnotationSilent: string(text)}
	}
	return x
}

var protocols = map[service.Protocol]corev1.Protocol{service.TCP: corev1.ProtocolTCP, service.UDP: corev1.ProtocolUDP, service.SCTP: corev1.ProtocolSCTP}

// slice returns the slice of endpoint j of port i.
func (s *Silence) slice(i, j int, e service.Endpoint) *discoveryv1.EndpointSlice {
	name, proto, port, node := "http", protocols[s.drawn[i].Name.Protocol], int32(e.Addr.Port()), "node-b"
	x := discoveryv1.Endpoint{Addresses: []string{e.Addr.Addr().String()}, NodeName: &node}
	switch {
	case e.Local:
		node = "node-a"
	case !e.Remote:
		x.NodeName = nil
	}
	return &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "shop", Name: fmt.Sprintf("web-%d-%d", i, j), Labels: map[string]string{discoveryv1.LabelServiceName: s.name(i)}},
		AddressType: discoveryv1.AddressType(s.w.Family.String()),
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Protocol: &proto, Port: &port}}, Endpoints: []discoveryv1.Endpoint{x},
	}
}
