// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package service

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"kubeproxy/test/kit"

	"pgregory.net/rapid"
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
		if got := ParsePortName(n.String()); got != n {
			t.Errorf("%q is read as %+v", n, got)
		}
	}
	for _, text := range []string{"", "web", "shop/", "/web", "shop/web:", "shop/web health check", "shop/web...", "shop/web:http...", "a/b/c", "shop/web:a:b"} {
		if got := ParsePortName(text); got != (PortName{}) {
			t.Errorf("%q is read as %q", text, got)
		}
	}
}

// TestCommented finds Service ports by what is left of their names, if that is of one only.
func TestCommented(t *testing.T) {
	s := New(1, &Node{}, []*Port{port(1, IPv4), port(12, IPv4), port(13, IPv4), port(2, IPv6)})
	find := s.Commented(IPv4, func(n PortName) string { return n.String()[:min(6, len(n.String()))] + "..." })
	for comment, want := range map[string]PortName{"d/s000...": port(1, IPv4).Name, "d/s001...": {}, "d/s0002": {Namespace: "d", Name: "s0002"}, "other": {}} {
		if got := find(comment); got != want {
			t.Errorf("%q is for %q, want %q", comment, got, want)
		}
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
