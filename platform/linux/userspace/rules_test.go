// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package userspace_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"kubeproxy/common/document"
	"kubeproxy/common/explain"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/iptables"
	"kubeproxy/platform/linux/userspace"
	"kubeproxy/test/backendtest"
	"kubeproxy/test/generate"
	"kubeproxy/test/kit"
	"kubeproxy/test/xtables"
)

// boundTo has listeners at an address of the node.
func boundTo(a netip.Addr, r userspace.Range) userspace.Options {
	o := userspace.Options{Ports: r}
	o.Listen[service.FamilyOf(a)] = a
	return o
}

// newBound returns a site whose listeners are at the node's address.
func newBound(f service.Family, tables *xtables.System) *relayNode {
	return newSiteWith(f, tables, boundTo(generate.NodeAddr[f], userspace.Range{First: 20000, Last: 20999}))
}

// drawBound draws where listeners are: at their own address or one of the node's.
func drawBound(w generate.Cluster) userspace.Options {
	return [...]userspace.Options{
		{},
		boundTo(generate.NodeAddr[w.Family], userspace.Range{First: 20000, Last: 20999}),
		boundTo(generate.NodeAddr[w.Family], userspace.Range{First: 20500, Last: 21999}),
		boundTo(generate.OtherNodeAddr[w.Family], userspace.Range{First: 20000, Last: 20999}),
	}[w.DrawInt("bound", 4)]
}

// wantGuard wants the rules that guard listeners to be for at alone, which is invalid
// for their own address.
func wantGuard(t interface{ Fatalf(string, ...any) }, tables *xtables.System, at netip.Addr) {
	found, want := 0, 2
	if at.IsValid() {
		want = 3
	}
	for line := range strings.Lines(tables.Text()) {
		if strings.HasSuffix(line, "-j KUBE-PORTALS\n") {
			found++
			if strings.Contains(line, "port ") != at.IsValid() || at.IsValid() && !strings.Contains(line, at.String()+"/") {
				t.Fatalf("a rule for listeners that are not there: %s", line)
			}
		}
	}
	if found != want {
		t.Fatalf("%d rules guard listeners, want %d:\n%s", found, want, tables.Text())
	}
}

// portsOf are of a Service that is served, one that is not, and one with a check.
func portsOf(f service.Family) []*service.Port {
	endpoint := []service.Endpoint{{Addr: netip.AddrPortFrom(generate.OtherNodeAddr[f].Next(), 8080)}}
	port := func(name string, nodePort uint16, to []service.Endpoint) *service.Port {
		return &service.Port{
			Name: service.PortName{Namespace: "shop", Name: name, Protocol: service.TCP}, Family: f,
			Frontends: []service.Frontend{{Kind: service.NodePort, Port: nodePort}}, Cluster: to,
		}
	}
	checked := port("checked", 30082, endpoint)
	checked.External, checked.HealthCheck = service.PolicyLocal, 22002
	return []*service.Port{port("at", 30080, endpoint), port("idle", 22001, nil), checked}
}

// TestBoundGuard wants nobody at a listener but who was led there, and nothing else
// that the node does to be touched. A NodePort that is refused may have its number.
func TestBoundGuard(t *testing.T) {
	for _, f := range service.Families {
		t.Run(f.String(), func(t *testing.T) {
			tables := xtables.New(nil)
			s := newSiteWith(f, tables, boundTo(generate.NodeAddr[f], userspace.Range{First: 22001, Last: 22002}))
			defer s.Close()
			opened := 0
			s.refuse = func() bool {
				opened++
				wantGuard(t, tables, generate.NodeAddr[f])
				return false
			}
			p, err := s.Plan(t.Context(), service.New(1, &service.Node{NodePorts: service.AnyAddress()}, portsOf(f)))
			if err == nil {
				err = p.Apply(t.Context()).Err
			}
			kit.Need(t, err == nil && opened != 0, "%d listeners: %v", opened, err)
			for port, want := range map[uint16]route.Action{30080: route.Forward, 22001: route.Reject, 22002: route.Drop, 22003: route.Pass, 22: route.Pass} {
				judgeBound(t, tables, netip.AddrPortFrom(generate.NodeAddr[f], port), want)
			}
		})
	}
}

// judgeBound dials from outside.
func judgeBound(t *testing.T, tables *xtables.System, to netip.AddrPort, want route.Action) {
	t.Helper()
	c := route.Conn{From: generate.OtherNodeAddr[service.FamilyOf(to.Addr())].Next(), Interface: "eth0", Protocol: service.TCP, ToNode: true, To: to}
	if got := tables.Trace(c, generate.IsNodeLocal); got.Action != want {
		t.Errorf("to %s: %v, want %v\n%s", to, got.Action, want, tables.Text())
	}
}

// TestBoundNeedsGuard opens no listener that cannot be guarded, and does so when it can.
func TestBoundNeedsGuard(t *testing.T) {
	tables := xtables.New(nil)
	s := newBound(service.IPv4, tables)
	defer s.Close()
	s.refuse = func() bool {
		t.Error("a listener opens")
		return true
	}
	want := service.New(1, &service.Node{NodePorts: service.AnyAddress()}, portsOf(service.IPv4))
	apply := func() error {
		p, err := s.Plan(t.Context(), want)
		kit.Must(t, err)
		return p.Apply(t.Context()).Err
	}
	tables.Refuse = func(string) error { return errInjected }
	if err := apply(); err == nil || !strings.Contains(err.Error(), "guard the listeners at "+generate.NodeAddr[service.IPv4].String()) {
		t.Errorf("Apply = %v", err)
	}
	tables.Refuse = nil
	s.refuse = func() bool { return false }
	if err := apply(); err != nil {
		t.Error(err)
	}
}

// TestBypassChangesOneTable checks that only table nat changes. Connections would be
// lost if they bypassed the relay before another table allowed that.
func TestBypassChangesOneTable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := generate.Cluster{T: t, Family: service.Family(rapid.IntRange(0, 1).Draw(t, "family"))}
		s := newRelayNode(w.Family, xtables.New(nil))
		defer s.Close()
		want := service.New(1, cluster(w).Node(), w.Ports())
		s.round(t, want)
		s.tables.Refuse = func(text string) error {
			if !strings.HasPrefix(text, "*nat\n") {
				return errInjected
			}
			return nil
		}
		if loss, err := s.HandOver(t.Context()); err != nil || loss != "" {
			t.Fatalf("HandOver = %q, %v", loss, err)
		}
	})
}

// TestBackFromBypass checks that the next process redirects to its own listeners again,
// and leaves nothing of the bypass.
func TestBackFromBypass(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := generate.Cluster{T: t, Family: service.Family(rapid.IntRange(0, 1).Draw(t, "family"))}
		ports := w.Ports()
		want := service.New(1, cluster(w).Node(), ports)
		s := newRelayNode(w.Family, xtables.New(nil))
		s.round(t, want)
		before := withoutPorts(s.tables.Text())
		if _, err := s.HandOver(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.Close()
		s = newRelayNode(w.Family, s.tables)
		defer s.Close()
		s.round(t, want)
		if now := withoutPorts(s.tables.Text()); now != before {
			t.Fatalf("the rules are now\n%s\nand were\n%s", now, before)
		}
	})
}

// withoutPorts removes the addresses of listeners.
func withoutPorts(rules string) string {
	lines := strings.Split(rules, "\n")
	for i, l := range lines {
		if before, _, found := strings.Cut(l, "--to-destination"); found {
			lines[i] = before
		}
	}
	return strings.Join(lines, "\n")
}

// TestBypassAsksForLess checks that the bypass needs neither random selection nor
// affinity where the kernel lacks a match for them.
func TestBypassAsksForLess(t *testing.T) {
	e := func(s string) service.Endpoint { return service.Endpoint{Addr: netip.MustParseAddrPort(s)} }
	want := service.New(1, &service.Node{NodePorts: service.AnyAddress()}, []*service.Port{{
		Name:      service.PortName{Namespace: "shop", Name: "web", Protocol: service.TCP},
		Frontends: []service.Frontend{{Addr: netip.MustParseAddr("10.96.0.1"), Port: 80}},
		Cluster:   []service.Endpoint{e("10.244.1.1:80"), e("10.244.1.2:80")},
		Affinity:  60e9,
	}})
	c := route.Conn{Interface: "eth0", From: netip.MustParseAddr("192.0.2.1"), To: netip.MustParseAddrPort("10.96.0.1:80"), Protocol: service.TCP}
	for name, tc := range map[string]struct {
		lacks   []string
		err     error
		loss    string
		targets int
	}{
		"all":                  {targets: 2},
		"no match recent":      {lacks: []string{"-m recent"}, loss: "session affinity, for which", targets: 2},
		"no match statistic":   {lacks: []string{"-m recent", "-m statistic"}, loss: "all endpoints but one", targets: 1},
		"no target MASQUERADE": {lacks: []string{"MASQUERADE"}, err: errInjected},
		"lock held":            {lacks: []string{"*nat"}, err: iptables.ErrBusy},
	} {
		t.Run(name, func(t *testing.T) {
			s := newRelayNode(service.IPv4, xtables.New(nil))
			defer s.Close()
			if _, err := s.HandOver(t.Context()); err == nil {
				t.Error("there was something to hand over before the first round")
			}
			p, err := s.Plan(t.Context(), want)
			if err == nil {
				err = p.Apply(t.Context()).Err
			}
			kit.Must(t, err)
			before, tries := s.tables.Text(), 0
			s.tables.Refuse = func(text string) error {
				tries++
				if slices.ContainsFunc(tc.lacks, func(m string) bool { return strings.Contains(text, m) }) {
					return errors.Join(errInjected, tc.err)
				}
				return nil
			}
			loss, err := s.HandOver(t.Context())
			kit.Need(t, errors.Is(err, tc.err) && strings.Contains(loss, tc.loss) && (loss == "") == (tc.loss == ""),
				"HandOver = %q, %v; want %q, %v", loss, err, tc.loss, tc.err)
			if err != nil {
				if s.tables.Text() != before || errors.Is(err, iptables.ErrBusy) && tries != 1 {
					t.Errorf("after %d tries the rules are\n%s\nand were\n%s", tries, s.tables.Text(), before)
				}
				return
			}
			if got := s.tables.Trace(c, generate.IsNodeLocal); len(got.Targets) != tc.targets {
				t.Errorf("led to %v, want %d", got.Targets, tc.targets)
			}
		})
	}
}

// TestHealthCheckChangesAlone changes only the port of a Service's health check.
func TestHealthCheckChangesAlone(t *testing.T) {
	tables := xtables.New(nil)
	n := newRelayNode(service.IPv4, tables)
	defer n.Close()
	for i, check := range []uint16{30100, 30200, 0} {
		want := service.New(uint64(i), &service.Node{NodePorts: service.AnyAddress()}, []*service.Port{{
			Name:      service.PortName{Namespace: "shop", Name: "web", Protocol: service.TCP},
			Frontends: []service.Frontend{{Kind: service.LoadBalancerIP, Addr: netip.MustParseAddr("203.0.113.1"), Port: 80}},
			Local:     []service.Endpoint{{Addr: netip.MustParseAddrPort("10.244.1.1:8080"), Local: true}},
			External:  service.PolicyLocal, HealthCheck: check,
		}})
		p, err := n.Plan(t.Context(), want)
		kit.Must(t, err)
		kit.Must(t, p.Apply(t.Context()).Err)
		text := tables.Text()
		for port, rule := range map[uint16]string{30100: "--dport 30100 ", 30200: "--dport 30200 "} {
			kit.Check(t, strings.Contains(text, rule) == (port == check), "with a check at port %d:\n%s", check, text)
		}
	}
}

// TestRelayKeepsPortsOverRestart checks that a new process listens on the ports of the
// old one, so that no rule changes.
func TestRelayKeepsPortsOverRestart(t *testing.T) {
	tables := xtables.New(nil)
	endpoints := []service.Endpoint{{Addr: netip.MustParseAddrPort("10.244.1.1:8080"), Local: true}}
	var ports []*service.Port
	for i := range 20 {
		ports = append(ports, &service.Port{
			Name:      service.PortName{Namespace: "shop", Name: string(rune('a' + i)), Protocol: []service.Protocol{service.TCP, service.UDP}[i%2]},
			Frontends: []service.Frontend{{Addr: netip.AddrFrom4([4]byte{10, 96, 0, byte(i)}), Port: 80}, {Kind: service.NodePort, Port: uint16(30000 + i)}},
			Cluster:   endpoints, Local: endpoints, External: service.PolicyLocal,
		})
	}
	want := service.New(1, &service.Node{NodePorts: service.AnyAddress()}, ports)
	first := newRelayNode(service.IPv4, tables)
	apply := func(s *relayNode) {
		p, err := s.Plan(t.Context(), want)
		kit.Must(t, err)
		kit.Must(t, p.Apply(t.Context()).Err)
	}
	apply(first)
	before := tables.Text()
	first.Close()
	second := newRelayNode(service.IPv4, tables)
	defer second.Close()
	apply(second)
	if tables.Text() != before {
		t.Errorf("the rules are now\n%s\nand were\n%s", tables.Text(), before)
	}
	if p, err := second.Plan(t.Context(), want); err != nil || !p.Empty() {
		t.Errorf("still to do: %s, %v", p, err)
	}
}

// TestRenderUnsupported checks that rendered text and JSON name a port that the mode cannot serve.
func TestRenderUnsupported(t *testing.T) {
	p := &service.Port{Name: service.PortName{Namespace: "shop", Name: "signal", Port: "s", Protocol: service.SCTP}}
	want := service.New(1, &service.Node{}, []*service.Port{p})
	all, doc := userspace.Render(want, userspace.Options{Rules: iptables.Options{MasqueradeBit: 14}})
	for _, format := range []document.Format{document.Text, document.JSON} {
		var b strings.Builder
		kit.Must(t, format.Write(&b, doc, func(w *bufio.Writer) { w.WriteString(all.String()) }))
		if text := "service port shop/signal:s (sctp, IPv4): mode userspace forwards TCP and UDP only"; strings.Count(b.String(), text) != 1 {
			t.Errorf("%s does not say once: %s\n%s", format, text, b.String())
		}
	}
}

// traceCase is a connection to a node in mode userspace.
type traceCase struct {
	*backendtest.Traced
	n *node
}

// TestTraceFindsTampering compares what rules and listeners do with what route decides,
// and takes away what the connection needs.
func TestTraceFindsTampering(t *testing.T) {
	cluster := func(w generate.Cluster) backendtest.Cluster { return generate.WithoutServiceCIDRs{Cluster: w} }
	backendtest.TraceTampering(t, cluster, func(w generate.Cluster, x *backendtest.Traced) func() {
		n := newNodeFor(x.T, w.Family, drawBound(w))
		local := func(a netip.Addr) bool { return generate.IsNodeLocal(a) || a == userspace.Addrs[w.Family] }
		x.State = n.tables.Text
		x.Follow = func(ctx context.Context) (*explain.Walk, error) {
			return n.TraceWith(ctx, n.tables, x.Want, x.Conn, local)
		}
		x.Hairpin = func(service.Endpoint) bool { return true }
		n.round(x.T, x.Want)
		return traceCase{x, n}.tamper
	})
}

func (c traceCase) tamper() {
	c.RequireAgreement()
	c.n.addr = false
	c.RequireNamed("no interface has the address")
	c.n.addr = true
	hook := "PREROUTING"
	if c.Conn.Interface == "" {
		hook = "OUTPUT"
	}
	jumps := c.n.tables.Tables["nat"][hook]
	c.n.tables.Tables["nat"][hook] = nil
	c.RequireNamed(fmt.Sprintf("chain %s of table nat lacks", hook))
	c.n.tables.Tables["nat"][hook] = jumps
	v := route.Decide(c.Want, c.Conn)
	if v.Action != route.Forward || v.Port.Name.Protocol == service.SCTP {
		return
	}
	// The rules lead to the listener of before, which has other endpoints than there should be.
	one := *v.Port
	one.Cluster = []service.Endpoint{{Addr: netip.AddrPortFrom(c.Conn.To.Addr(), 1)}}
	one.Local = one.Cluster
	old := c.Want
	c.Want = c.Want.With(2, c.Want.Node, []service.Change{{Old: v.Port, New: &one}})
	c.RequireNamed("the node never sends it to " + one.Cluster[0].Addr.String())
	c.Want = old
	c.n.Close()
	c.RequireNamed("kube-proxy has no listener at")
	c.n.Forget()
	c.RequireNamed("nothing has been programmed yet")
	c.n.relayNode = newSiteWith(c.n.family, c.n.tables, c.n.options)
	c.n.round(c.T, c.Want)
}
