// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package service

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"kubeproxy/test/kit"
)

// numbered returns a Snapshot of n ports and the ports, in order.
func numbered(n int) (*Snapshot, []*Port) {
	var ports []*Port
	for i := range n {
		ports = append(ports, port(i, IPv4))
	}
	return New(1, &Node{}, ports), ports
}

func removal(ports []*Port) []Change {
	var changes []Change
	for _, p := range ports {
		changes = append(changes, Change{Old: p})
	}
	return changes
}

// between returns additions that follow the i-th of the numbered ports.
func between(i, n int) []Change {
	var changes []Change
	for k := range n {
		p := port(i, IPv4)
		p.Name.Port = string(rune('a'+k/26)) + string(rune('a'+k%26))
		changes = append(changes, Change{New: p})
	}
	return changes
}

// Diff does not read chunks that two snapshots share. The test removes the ports from
// them. Diff takes a nil Port for the end of its list, and still finds the change behind
// them.
func TestDiffSkipsWhatIsShared(t *testing.T) {
	const n = 10 * chunkSize
	for name, before := range map[string]func(ports []*Port) []Change{
		"nothing else changed": func([]*Port) []Change { return nil },
		"a chunk was emptied":  func(p []*Port) []Change { return removal(p[2*chunkSize : 3*chunkSize]) },
		"a chunk was halved":   func([]*Port) []Change { return between(2*chunkSize+7, chunkSize+1) },
		"the first one left":   func(p []*Port) []Change { return removal(p[:1]) },
	} {
		t.Run(name, func(t *testing.T) {
			s, ports := numbered(n)
			last := Change{Old: ports[n-1], New: port(n-1, IPv4)}
			want := append(before(ports), last)
			next := s.With(2, s.Node, want)
			for _, k := range s.ports[IPv4].chunks {
				if slices.Contains(next.ports[IPv4].chunks, k) {
					clear(k.ports[1:])
				}
			}
			kit.Same(t, "changes (-want +got)", len(want), count(Diff(s, next, IPv4)))
		})
	}
}

func count(seq func(func(Change) bool)) int {
	n := 0
	for range seq {
		n++
	}
	return n
}

// With copies a chunk once, however many of its ports change.
func TestWithCopiesAChunkOnce(t *testing.T) {
	s, ports := numbered(4 * chunkSize)
	changes := removal(ports[:chunkSize/2])
	if n := testing.AllocsPerRun(10, func() { s.With(2, s.Node, changes) }); n > 20 {
		t.Errorf("%d changes in one chunk made %v allocations", len(changes), n)
	}
}

// Chunks stay neither empty nor unbounded.
func TestChunksSplitAndVanish(t *testing.T) {
	s, ports := numbered(4 * chunkSize)
	chunks := func(s *Snapshot) []int {
		var sizes []int
		for _, k := range s.ports[IPv4].chunks {
			sizes = append(sizes, len(k.ports))
		}
		return sizes
	}
	for _, tt := range []struct {
		situation string
		changes   []Change
		want      []int
	}{
		{"as made", nil, []int{256, 256, 256, 256}},
		{"the second one goes", removal(ports[256:512]), []int{256, 256, 256}},
		{"the third one doubles", between(600, 256), []int{256, 256, 512, 256}},
		{"and one more", between(600, 257), []int{256, 256, 256, 257, 256}},
		{"everything goes", removal(ports), nil},
	} {
		t.Run(tt.situation, func(t *testing.T) {
			kit.Same(t, "(-want +got)", tt.want, chunks(s.With(2, s.Node, tt.changes)))
		})
	}
	empty := s.With(2, s.Node, removal(ports))
	again := empty.With(3, s.Node, []Change{{New: ports[7]}})
	if got := again.Port(IPv4, ports[7].Name); got != ports[7] || again.Len(IPv4) != 1 {
		t.Errorf("first port after all had gone = %v of %d", got, again.Len(IPv4))
	}
	if got := empty.Port(IPv4, ports[7].Name); got != nil || empty.Len(IPv4) != 0 {
		t.Errorf("port of an empty snapshot = %v of %d", got, empty.Len(IPv4))
	}
}

// A Snapshot has its generation and node, and New accepts ports in any order.
func TestSnapshotBasics(t *testing.T) {
	node := &Node{Name: "a"}
	ports := []*Port{port(2, IPv6), port(1, IPv4), port(0, IPv6), port(0, IPv4)}
	s := New(7, node, ports)
	kit.Check(t, s.Generation == 7 && s.Node == node, "snapshot %d of %v", s.Generation, s.Node)
	if want := []*Port{ports[3], ports[1], ports[2], ports[0]}; !slices.Equal(all(s), want) {
		t.Errorf("ports = %v, want them by family and name", all(s))
	}
	other := &Node{Name: "b"}
	if next := s.With(8, other, nil); next.Generation != 8 || next.Node != other || !slices.Equal(all(next), all(s)) {
		t.Errorf("With = generation %d of %s", next.Generation, next.Node.Name)
	}
	for range s.Ports(IPv4) {
		break
	}
}

func TestWords(t *testing.T) {
	got := []string{
		TCP.String(), UDP.String(), SCTP.String(), Protocol(1).String(), IPv4.String(), IPv6.String(),
		ClusterIP.String(), NodePort.String(), ExternalIP.String(), LoadBalancerIP.String(),
		PolicyCluster.String(), PolicyLocal.String(),
		PortName{"shop", "web", "", TCP}.String(), PortName{"shop", "web", "http", TCP}.String(),
	}
	want := []string{
		"tcp", "udp", "sctp", "unknown", "IPv4", "IPv6",
		"ClusterIP", "NodePort", "ExternalIP", "LoadBalancerIP",
		"Cluster", "Local", "shop/web", "shop/web:http",
	}
	kit.Same(t, "(-want +got)", want, got)
}

func TestPortNameOrder(t *testing.T) {
	ordered := []PortName{
		{"a", "z", "z", SCTP}, {"b", "a", "z", TCP}, {"b", "b", "", UDP}, {"b", "b", "http", TCP}, {"b", "b", "http", UDP},
	}
	for i, a := range ordered {
		for j, b := range ordered {
			if got, want := a.Compare(b), sign(i-j); got != want {
				t.Errorf("%s/%s to %s/%s = %d, want %d", a, a.Protocol, b, b.Protocol, got, want)
			}
		}
	}
}

func sign(n int) int { return min(max(n, -1), 1) }

func TestFrontendEquality(t *testing.T) {
	f := Frontend{LoadBalancerIP, netip.MustParseAddr("192.0.2.1"), 80, nil}
	with := func(change func(*Frontend)) Frontend {
		g := f
		change(&g)
		return g
	}
	all := netip.MustParsePrefix("0.0.0.0/0")
	for name, c := range map[string]struct {
		g           Frontend
		same, equal bool
	}{
		"itself":          {f, true, true},
		"kind":            {with(func(g *Frontend) { g.Kind = ExternalIP }), false, false},
		"address":         {with(func(g *Frontend) { g.Addr = g.Addr.Next() }), false, false},
		"port":            {with(func(g *Frontend) { g.Port++ }), false, false},
		"sources":         {with(func(g *Frontend) { g.Sources = []netip.Prefix{all} }), true, false},
		"nobody admitted": {with(func(g *Frontend) { g.Sources = []netip.Prefix{} }), true, false},
	} {
		t.Run(name, func(t *testing.T) {
			if same, equal := f.SameAddress(c.g), f.Equal(c.g); same != c.same || equal != c.equal {
				t.Errorf("%v and %v: same address %t, equal %t", f, c.g, same, equal)
			}
		})
	}
}

func TestPortEndpoints(t *testing.T) {
	here, there := []Endpoint{{Local: true}}, []Endpoint{{Remote: true}}
	for name, tt := range map[string]struct {
		internal, external Policy
		kind               Kind
		want               []Endpoint
	}{
		"ClusterIP, internal Local":     {PolicyLocal, PolicyCluster, ClusterIP, here},
		"ClusterIP, external Local":     {PolicyCluster, PolicyLocal, ClusterIP, there},
		"NodePort, external Local":      {PolicyCluster, PolicyLocal, NodePort, here},
		"ExternalIP, external Local":    {PolicyCluster, PolicyLocal, ExternalIP, here},
		"load balancer, external Local": {PolicyCluster, PolicyLocal, LoadBalancerIP, here},
		"load balancer, internal Local": {PolicyLocal, PolicyCluster, LoadBalancerIP, there},
	} {
		t.Run(name, func(t *testing.T) {
			p := Port{Internal: tt.internal, External: tt.external, Cluster: there, Local: here, Affinity: time.Second}
			if got := p.Endpoints(tt.kind); !slices.Equal(got, tt.want) {
				t.Errorf("Endpoints = %v, want %v", got, tt.want)
			}
		})
	}
	for _, tt := range []struct {
		port Port
		want bool
	}{
		{Port{}, false}, {Port{Cluster: there}, true}, {Port{Local: here}, true},
	} {
		kit.Equal(t, tt.port.HasEndpoints(), tt.want, "Served of %v", tt.port)
	}
}

// BenchmarkOneChange replaces one port of 30,000 and finds it with Diff.
func BenchmarkOneChange(b *testing.B) {
	const n = 30000
	s, ports := numbered(n)
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		i = (i + 7919) % n
		next := port(i, IPv4)
		to := s.With(2, s.Node, []Change{{Old: ports[i], New: next}})
		if got := count(Diff(s, to, IPv4)); got != 1 {
			b.Fatalf("%d changes, want 1", got)
		}
		s, ports[i] = to, next
	}
}
