// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package service

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"kubeproxy/test/kit"
)

func port(i int, f Family) *Port {
	return &Port{Name: PortName{Namespace: "d", Name: fmt.Sprintf("s%04d", i), Protocol: TCP}, Family: f}
}

type portKey struct {
	name   PortName
	family Family
}

// model is the expected content of a Snapshot.
type model map[portKey]*Port

func (m model) ports() []*Port {
	var all []*Port
	for _, p := range m {
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b *Port) int {
		if a.Family != b.Family {
			return int(a.Family) - int(b.Family)
		}
		return a.Name.Compare(b.Name)
	})
	return all
}

func all(s *Snapshot) []*Port {
	var ports []*Port
	for _, f := range Families {
		ports = slices.AppendSeq(ports, s.Ports(f))
	}
	return ports
}

// change draws changes that fit m and applies them to it.
func (m model) change(t *rapid.T) []Change {
	var changes []Change
	touched := map[portKey]bool{}
	// Runs of neighbours empty whole chunks and overfill others.
	for range rapid.IntRange(0, 5).Draw(t, "runs") {
		first, n := rapid.IntRange(0, 999).Draw(t, "first"), rapid.IntRange(1, 700).Draw(t, "n")
		f := Family(rapid.IntRange(0, 1).Draw(t, "family"))
		remove := rapid.Bool().Draw(t, "remove")
		for i := first; i < first+n; i++ {
			p := port(i, f)
			k := portKey{p.Name, f}
			c := Change{Old: m[k], New: p}
			if remove {
				c.New = nil
			}
			if touched[k] || c.Old == nil && c.New == nil {
				continue
			}
			touched[k] = true
			changes = append(changes, c)
			if m[k] = c.New; c.New == nil {
				delete(m, k)
			}
		}
	}
	return rapid.Permutation(changes).Draw(t, "order")
}

func TestWithAndDiff(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := model{}
		node := &Node{Name: "a"}
		s := New(1, node, nil)
		for g := range uint64(rapid.IntRange(1, 6).Draw(t, "rounds")) {
			before := all(s)
			changes := m.change(t)
			next := s.With(g+2, node, changes)
			if !slices.Equal(all(s), before) {
				t.Fatal("With changed the Snapshot it started from")
			}
			checkModel(t, m, next)
			checkDiff(t, s, next, changes)
			s = next
		}
		checkDiff(t, nil, s, slices.Collect(func(yield func(Change) bool) {
			for _, p := range m {
				if !yield(Change{New: p}) {
					return
				}
			}
		}))
	})
}

func checkModel(t *rapid.T, m model, s *Snapshot) {
	want := m.ports()
	if got := all(s); !slices.Equal(got, want) {
		t.Fatalf("%d ports, want %d, in order", len(got), len(want))
	}
	if n := s.Len(IPv4) + s.Len(IPv6); n != len(want) {
		t.Fatalf("Len = %d, want %d", n, len(want))
	}
	for i := range 1001 {
		for _, f := range Families {
			name := port(i, f).Name
			if got := s.Port(f, name); got != m[portKey{name, f}] {
				t.Fatalf("Port(%s, %s) = %v, want %v", f, name, got, m[portKey{name, f}])
			}
		}
	}
	for _, l := range s.ports {
		for _, k := range l.chunks {
			if n := len(k.ports); n == 0 || n > 2*chunkSize {
				t.Fatalf("a chunk holds %d ports", n)
			}
		}
	}
}

func checkDiff(t *rapid.T, from, to *Snapshot, changes []Change) {
	want := map[portKey]Change{}
	for _, c := range changes {
		want[portKey{c.Name(), c.family()}] = c
	}
	n := 0
	for _, f := range Families {
		var last PortName
		for c := range Diff(from, to, f) {
			if c != want[portKey{c.Name(), f}] {
				t.Fatalf("Diff yields %v, want %v", c, want[portKey{c.Name(), f}])
			}
			if c.Name().Compare(last) <= 0 {
				t.Fatalf("Diff yields %s after %s", c.Name(), last)
			}
			last = c.Name()
			n++
		}
	}
	if n != len(want) {
		t.Fatalf("Diff yields %d changes, want %d", n, len(want))
	}
}

// TestParsePortName reads names back, and nothing else.
func TestParsePortName(t *testing.T) {
	for _, n := range []PortName{{Namespace: "shop", Name: "web"}, {Namespace: "kube-system", Name: "kube-dns", Port: "dns-tcp"}} {
		got := ParsePortName(n.String())
		kit.Check(t, got == n, "%q is read as %+v", n, got)
	}
	for _, text := range []string{"", "web", "shop/", "/web", "shop/web:", "shop/web health check", "shop/web...", "shop/web:http...", "a/b/c", "shop/web:a:b"} {
		got := ParsePortName(text)
		kit.Check(t, got == (PortName{}), "%q is read as %q", text, got)
	}
}

// TestCommented finds Service ports by what is left of their names, if that is of one only.
func TestCommented(t *testing.T) {
	s := New(1, &Node{}, []*Port{port(1, IPv4), port(12, IPv4), port(13, IPv4), port(2, IPv6)})
	find := s.Commented(IPv4, func(n PortName) string { return n.String()[:min(6, len(n.String()))] + "..." })
	for comment, want := range map[string]PortName{"d/s000...": port(1, IPv4).Name, "d/s001...": {}, "d/s0002": {Namespace: "d", Name: "s0002"}, "other": {}} {
		got := find(comment)
		kit.Check(t, got == want, "%q is for %q, want %q", comment, got, want)
	}
}

func TestDiffStops(t *testing.T) {
	s := New(1, &Node{}, []*Port{port(1, IPv4), port(2, IPv4)})
	for range Diff(nil, s, IPv4) {
		break
	}
}

// An update shares what it does not touch.
func TestWithShares(t *testing.T) {
	var ports []*Port
	for i := range 10 * chunkSize {
		ports = append(ports, port(i, IPv4))
	}
	s := New(1, &Node{}, ports)
	next := s.With(2, s.Node, []Change{{Old: ports[5], New: port(5, IPv4)}})
	shared := 0
	for i, k := range s.ports[IPv4].chunks {
		if next.ports[IPv4].chunks[i] == k {
			shared++
		}
	}
	kit.Check(t, shared == 9, "%d chunks shared, want 9 of 10", shared)
}

func TestAnswersNodePorts(t *testing.T) {
	prefixes := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("192.168.1.1/32")}
	for name, tt := range map[string]struct {
		prefixes []netip.Prefix
		addr     string
		want     bool
	}{
		"unrestricted":           {AnyAddress(), "203.0.113.1", true},
		"in a prefix":            {prefixes, "10.9.9.9", true},
		"in none":                {prefixes, "192.168.1.2", false},
		"no prefix":              {nil, "203.0.113.1", false},
		"family without prefix":  {prefixes, "2001:db8::1", false},
		"loopback":               {AnyAddress(), "127.0.0.1", false},
		"loopback in the prefix": {[]netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, "127.0.0.1", false},
		"IPv6 loopback":          {AnyAddress(), "::1", false},
	} {
		t.Run(name, func(t *testing.T) {
			n := Node{NodePorts: tt.prefixes}
			kit.Equal(t, n.AnswersNodePorts(netip.MustParseAddr(tt.addr)), tt.want, "AnswersNodePorts(%s)", tt.addr)
		})
	}
}

func TestLocalPods(t *testing.T) {
	four := []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24")}
	for name, tt := range map[string]struct {
		pods        LocalPods
		addr, iface string
		contains    bool
		known       [2]bool
	}{
		"nothing known":      {LocalPods{}, "10.1.0.1", "cbr0", false, [2]bool{}},
		"prefix":             {LocalPods{Prefixes: four}, "10.1.0.1", "", true, [2]bool{true, false}},
		"outside the prefix": {LocalPods{Prefixes: four}, "10.2.0.1", "", false, [2]bool{true, false}},
		"bridge":             {LocalPods{Interface: "cbr0"}, "10.1.0.1", "cbr0", true, [2]bool{true, true}},
		"other bridge":       {LocalPods{Interface: "cbr0"}, "10.1.0.1", "cbr01", false, [2]bool{true, true}},
		"interface prefix":   {LocalPods{InterfacePrefix: "veth"}, "10.1.0.1", "veth7", true, [2]bool{true, true}},
		"the node itself":    {LocalPods{InterfacePrefix: "veth"}, "10.1.0.1", "", false, [2]bool{true, true}},
	} {
		t.Run(name, func(t *testing.T) {
			kit.Equal(t, tt.pods.Contains(netip.MustParseAddr(tt.addr), tt.iface), tt.contains, "Contains")
			kit.Same(t, "Known (-want +got)", tt.known, [2]bool{tt.pods.Known(IPv4), tt.pods.Known(IPv6)})
		})
	}
}

func TestLocalhostNodePorts(t *testing.T) {
	for prefix, want := range map[string][2]bool{
		"127.0.0.0/8":  {true, false},
		"127.0.0.1/32": {true, false},
		"127.0.0.2/32": {},
		"0.0.0.0/0":    {},
		"126.0.0.0/7":  {},
		"127.0.0.0/7":  {}, // not masked
		"192.0.2.0/24": {},
		"::1/128":      {false, true},
		"::/0":         {},
		"::/127":       {},
	} {
		n := Node{NodePorts: []netip.Prefix{netip.MustParsePrefix(prefix)}}
		kit.Equal(t, [2]bool{n.LocalhostNodePorts(IPv4), n.LocalhostNodePorts(IPv6)}, want, "%s", prefix)
	}
	kit.Check(t, !new(Node).LocalhostNodePorts(IPv4), "loopback addresses answer without being asked for")
}

// drawTable draws endpoints of which a table has room for, and their table.
func drawTable(t *rapid.T, most int) (list []Endpoint, slots uint16) {
	slots = uint16(rapid.SampledFrom([]int{MinSlots, DefaultSlots, 4093}).Draw(t, "slots"))
	n := rapid.IntRange(1, min(most, int(slots)/SlotShare)).Draw(t, "endpoints")
	for _, i := range rapid.SliceOfNDistinct(rapid.Uint32(), n, n, rapid.ID[uint32]).Draw(t, "addresses") {
		a := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		if i%2 == 1 {
			a = netip.AddrFrom16([16]byte{0xfd, 15: byte(i)})
		}
		list = append(list, Endpoint{Addr: netip.AddrPortFrom(a, uint16(i>>16)|1)})
	}
	slices.SortFunc(list, func(a, b Endpoint) int { return a.Addr.Compare(b.Addr) })
	return slices.CompactFunc(list, func(a, b Endpoint) bool { return a.Addr == b.Addr }), slots
}

// TestTable has each endpoint get slots, and none too many.
func TestTable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		list, slots := drawTable(t, 100)
		n := len(list)
		load := make([]int, n)
		for _, i := range Table(list, slots) {
			load[i]++
		}
		share := float64(slots) / float64(n)
		least, most := slices.Min(load), float64(slices.Max(load))
		if least == 0 || most > share+1+min(float64(slots)/100, share/4) || len(Table(list, slots)) != int(slots) {
			t.Fatalf("%d endpoints have %d to %.0f of %d slots", n, least, most, slots)
		}
	})
	got := Table(nil, DefaultSlots)
	kit.Check(t, got == nil, "no endpoint: %v", got)
}

// TestTableMovesLittle has each of the endpoints leave. On average over these, a hundredth more than
// its own slots change at most, and in one case 4 %, or 2 % of 4093.
func TestTableMovesLittle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		list, slots := drawTable(t, 20)
		n := len(list)
		before := Table(list, slots)
		sum, worst := 0, 0
		for gone := range list {
			moved := 0
			for s, i := range Table(slices.Delete(slices.Clone(list), gone, gone+1), slots) {
				if int(i) >= gone {
					i++
				}
				if i != before[s] {
					moved++
				}
			}
			sum, worst = sum+moved, max(worst, moved)
		}
		mean := float64(sum) / float64(n*int(slots))
		one := float64(worst) / float64(slots)
		most := map[uint16][2]float64{MinSlots: {0.07, 0.12}, DefaultSlots: {0.02, 0.045}, 4093: {0.01, 0.02}}[slots]
		if fair := 1 / float64(n); n > 1 && (mean > fair+most[0] || one > fair+most[1]) {
			t.Fatalf("%d slots: one of %d leaves, and %.4f of the slots change, in one case %.4f", slots, n, mean, one)
		}
	})
}

// TestTableIsFixed pins a table: nodes of all versions have to agree.
func TestTableIsFixed(t *testing.T) {
	var list []Endpoint
	for _, a := range []string{"10.244.1.11:8080", "10.244.1.12:8080", "[fd00:10:244::1]:8080"} {
		list = append(list, Endpoint{Addr: netip.MustParseAddrPort(a)})
	}
	got := fmt.Sprint(Table(list, MinSlots)[:20])
	kit.Check(t, got == "[0 2 2 0 1 2 1 2 2 2 1 2 2 1 1 0 1 1 1 0]", "the table begins with %s", got)
}

func BenchmarkTable(b *testing.B) {
	for _, n := range []int{3, 100} {
		var list []Endpoint
		for i := range n {
			list = append(list, Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 1, byte(i)}), 8080)})
		}
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				Table(list, DefaultSlots)
			}
		})
	}
}

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
	n := testing.AllocsPerRun(10, func() { s.With(2, s.Node, changes) })
	kit.Check(t, n <= 20, "%d changes in one chunk made %v allocations", len(changes), n)
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
	want := []*Port{ports[3], ports[1], ports[2], ports[0]}
	kit.Check(t, slices.Equal(all(s), want), "ports = %v, want them by family and name", all(s))
	other := &Node{Name: "b"}
	next := s.With(8, other, nil)
	kit.Check(t, next.Generation == 8 && next.Node == other && slices.Equal(all(next), all(s)), "With = generation %d of %s", next.Generation, next.Node.Name)
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
			got, want := a.Compare(b), sign(i-j)
			kit.Check(t, got == want, "%s/%s to %s/%s = %d, want %d", a, a.Protocol, b, b.Protocol, got, want)
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
			same, equal := f.SameAddress(c.g), f.Equal(c.g)
			kit.Check(t, same == c.same && equal == c.equal, "%v and %v: same address %t, equal %t", f, c.g, same, equal)
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
			got := p.Endpoints(tt.kind)
			kit.Check(t, slices.Equal(got, tt.want), "Endpoints = %v, want %v", got, tt.want)
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
		got := count(Diff(s, to, IPv4))
		kit.Need(b, got == 1, "%d changes, want 1", got)
		s, ports[i] = to, next
	}
}
