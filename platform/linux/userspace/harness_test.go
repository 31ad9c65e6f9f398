// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package userspace_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"pgregory.net/rapid"

	"kubeproxy/common/document"
	"kubeproxy/common/explain"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/iptables"
	"kubeproxy/platform/linux/userspace"
	"kubeproxy/test/backendtest"
	"kubeproxy/test/generate"
	"kubeproxy/test/kit"
	"kubeproxy/test/xtables"
)

var errInjected = backendtest.ErrInjected

// relayNode is a node in mode userspace whose sockets are on a loopback address and
// whose tables are fake.
type relayNode struct {
	*userspace.Backend
	family service.Family
	tables *xtables.System
	// refuse decides whether to refuse a listener.
	refuse func() bool
	addr   bool
	opened []string // what was opened and added, as text
}

func newRelayNode(f service.Family, tables *xtables.System) *relayNode {
	return newSiteWith(f, tables, userspace.Options{})
}

// newSiteWith has listeners where o says.
func newSiteWith(f service.Family, tables *xtables.System, o userspace.Options) *relayNode {
	s := &relayNode{family: f, tables: tables, addr: true, refuse: func() bool { return false }}
	o.Rules = iptables.Options{MasqueradeBit: 14, DropInvalid: true}
	s.Backend = userspace.NewWith(f, o, userspace.Parts{Driver: tables, Network: s, Address: s, Limits: userspace.NewLimits(4096)})
	return s
}

func (r *relayNode) Has() (bool, error) { return r.addr, nil }

func (r *relayNode) Add() error {
	if r.refuse() {
		return errInjected
	}
	r.addr = true
	r.opened = append(r.opened, "+ address")
	return nil
}

func (r *relayNode) Remove() error {
	r.addr = false
	return nil
}

// here is a loopback address that only this process uses, so that no other process takes
// the port of a listener that is to be opened again. Any address serves for the rest,
// because the rules are fake.
var here = net.IPv4(127, 76, byte(os.Getpid()>>8), byte(os.Getpid()))

func (r *relayNode) ListenTCP(port uint16) (*net.TCPListener, error) {
	if r.refuse() {
		return nil, errInjected
	}
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: here, Port: int(port)})
	if err == nil {
		r.opened = append(r.opened, "+ listener")
	}
	return l, err
}

func (r *relayNode) ListenUDP(port uint16) (*net.UDPConn, error) {
	if r.refuse() {
		return nil, errInjected
	}
	l, err := net.ListenUDP("udp", &net.UDPAddr{IP: here, Port: int(port)})
	if err == nil {
		r.opened = append(r.opened, "+ listener")
	}
	return l, err
}

func (r *relayNode) DialTCP(context.Context, netip.AddrPort, int) (*net.TCPConn, error) {
	return nil, syscall.ECONNREFUSED
}

func (r *relayNode) DialUDP(netip.AddrPort, int) (*net.UDPConn, error) {
	return nil, syscall.ECONNREFUSED
}

func TestSuites(t *testing.T) {
	backendtest.Run(t, backendtest.Harness{
		New:      func(w generate.Cluster) backendtest.Node { return newNode(w, drawBound(w)) },
		Cluster:  cluster,
		Printed:  printed,
		Volatile: true,
	})
}

// TestRelayDecidesAsRouteDoes judges connections to listeners at each sort of address.
func TestRelayDecidesAsRouteDoes(t *testing.T) {
	eachAddress(t, func(w generate.Cluster, o userspace.Options) backendtest.Node { return newNode(w, o) })
}

// TestBypassDecidesAsRouteDoes judges connections that bypass a relay: each goes where
// route decides, as if the node had opened it.
func TestBypassDecidesAsRouteDoes(t *testing.T) {
	eachAddress(t, func(w generate.Cluster, o userspace.Options) backendtest.Node { return &bypassNode{newNode(w, o)} })
}

// eachAddress judges nodes whose listeners are at their own address or the node's.
func eachAddress(t *testing.T, at func(generate.Cluster, userspace.Options) backendtest.Node) {
	for name, bound := range map[string]bool{"own": false, "bound": true} {
		t.Run(name, func(t *testing.T) {
			backendtest.Judge(t, backendtest.Harness{Cluster: cluster, New: func(w generate.Cluster) backendtest.Node {
				if bound {
					return at(w, boundTo(generate.NodeAddr[w.Family], userspace.Range{First: 20000, Last: 20999}))
				}
				return at(w, userspace.Options{})
			}})
		})
	}
}

func cluster(w generate.Cluster) backendtest.Cluster { return generate.WithoutServiceCIDRs{Cluster: w} }

// node is a relayNode for the suites. A new process may have its listeners elsewhere.
type node struct {
	*relayNode
	t       *rapid.T
	options userspace.Options
	next    userspace.Options // of the next process
}

func newNode(w generate.Cluster, o userspace.Options) *node { return newNodeFor(w.T, w.Family, o) }

func newNodeFor(t *rapid.T, f service.Family, o userspace.Options) *node {
	n := &node{relayNode: newSiteWith(f, xtables.New(nil), o), t: t, options: o, next: o}
	t.Cleanup(func() { n.Close() })
	return n
}

func (n *node) Start() reconcile.Backend {
	n.Close()
	old := n.relayNode
	n.options = n.next
	n.relayNode = newSiteWith(old.family, old.tables, n.options)
	n.refuse, n.addr = old.refuse, old.addr
	return n.Backend
}

func (n *node) Fresh() backendtest.Node { return newNodeFor(n.t, n.family, n.options) }

// Inject has tables, listeners and the address fail.
func (n *node) Inject(w generate.Cluster) func(error) bool {
	n.requirePorts()
	n.addr = w.DrawBool("address")
	n.refuse = func() bool { return w.DrawInt("listen", 4) == 0 }
	n.tables.Refuse = func(string) error {
		return [...]error{errInjected, iptables.ErrBusy, nil, nil}[w.DrawInt("refuse", 4)]
	}
	n.next = drawBound(w)
	return iptables.IsBusy
}

// requirePorts requires that rules lead to listeners that have a port.
func (n *node) requirePorts() {
	if text := n.tables.Text(); strings.Contains(text, ":0\n") {
		n.t.Fatalf("somebody is led to port 0:\n%s", text)
	}
}

// Tamper has another program flush our chains, as a firewall does that restarts.
func (n *node) Tamper(w generate.Cluster) {
	for _, table := range []string{"nat", "filter"} {
		if w.DrawBool(table) {
			for name := range n.tables.Tables[table] {
				n.tables.Tables[table][name] = nil
			}
			n.tables.Dirty = true
		}
	}
}

func (n *node) Heal() {
	n.requirePorts()
	n.tables.Refuse = nil
	n.refuse = func() bool { return false }
	n.next = n.options
}

// State leaves out the ports of listeners, and the order of our rules in chains of the
// system: the guard of listeners may have come first.
func (n *node) State() string {
	var own, system []string
	for l := range strings.SplitSeq(withoutPorts(n.tables.Text()), "\n") {
		if strings.HasPrefix(l, "-A ") && !strings.HasPrefix(l, "-A KUBE-") {
			system = append(system, l)
		} else {
			own = append(own, l)
		}
	}
	slices.Sort(system)
	return fmt.Sprintf("address %t\n%s", n.addr, strings.Join(append(own, system...), "\n"))
}

func (n *node) Changes() []string {
	all := append(n.tables.Changes(), n.opened...)
	n.opened = nil
	return all
}

// printed leaves out what concerns the relay only, and for whom a listener is.
func printed(line string) string {
	switch {
	case strings.HasPrefix(line, "- listener"), strings.HasSuffix(line, " of them here"), strings.Contains(line, "(sctp)"):
		return ""
	case strings.HasPrefix(line, "+ listener"):
		return "+ listener"
	case strings.HasPrefix(line, "+ address"):
		return "+ address"
	}
	return line
}

// Judge compares what the rules do with a connection, and for which Service the listener
// is.
func (n *node) Judge(t *rapid.T, want *service.Snapshot, c route.Conn) {
	v := n.decide(want, c)
	got := n.tables.Trace(c, generate.IsNodeLocal)
	if got.Action != v.Action || masquerades(got) {
		t.Fatalf("%+v: %v, masquerade %v; want %v, false: %s\n%s", c, got.Action, got.Masq, v.Action, v.Reason, n.tables.Text())
	}
	if v.Action != route.Forward {
		return
	}
	redirected := n.Redirected().Port(n.family, v.Port.Name)
	var to []service.Endpoint
	switch {
	case len(got.Targets) != 1:
		t.Fatalf("%+v: led to %v", c, got.Targets)
	case len(redirected.Cluster) > 0 && redirected.Cluster[0].Addr == got.Targets[0]:
		to = v.Port.Cluster
	case len(redirected.Local) > 0 && redirected.Local[0].Addr == got.Targets[0]:
		to = v.Port.Local
	}
	if got.Targets[0].Port() == 0 || !slices.Equal(to, v.Endpoints) {
		t.Fatalf("%+v: led to %v, for %v; want %v: %s", c, got.Targets, to, v.Endpoints, v.Reason)
	}
}

// decide asks route. The mode does not forward SCTP.
func (n *node) decide(want *service.Snapshot, c route.Conn) route.Verdict {
	v := route.Decide(want, c)
	if v.Port != nil && v.Port.Name.Protocol == service.SCTP {
		v = route.Decide(n.Redirected(), c)
	}
	return v
}

func masquerades(o backendtest.Outcome) bool {
	return slices.Contains(slices.Collect(maps.Values(o.Masq)), true)
}

func (n *node) Check(t *rapid.T, _ *service.Snapshot) {
	wantGuard(t, n.tables, n.options.Listen[n.family])
}

// bypassNode has connections pass by its listeners when they are judged.
type bypassNode struct{ *node }

func (n *bypassNode) Judge(t *rapid.T, want *service.Snapshot, c route.Conn) {
	if loss, err := n.HandOver(t.Context()); err != nil || loss != "" {
		t.Fatalf("HandOver = %q, %v", loss, err)
	}
	v := n.decide(want, c)
	got := n.tables.Trace(c, generate.IsNodeLocal)
	var to []netip.AddrPort
	for _, e := range v.Endpoints {
		to = append(to, e.Addr)
	}
	if got.Action != v.Action || v.Action == route.Forward && !slices.Equal(got.Targets, to) || masquerades(got) != (v.Action == route.Forward) {
		t.Fatalf("%+v: %v to %v, masquerade %v; want %v to %v: %s\n%s", c, got.Action, got.Targets, got.Masq, v.Action, to, v.Reason, n.tables.Text())
	}
}

// round runs one sync. It must succeed except for unsupported Services.
func (r *relayNode) round(t *rapid.T, want *service.Snapshot) {
	p, err := r.Plan(context.Background(), want)
	if err != nil {
		t.Fatalf("Plan: %v", err)
	}
	if err := p.Apply(context.Background()).Err; err != nil && !reconcile.Unsupported(err) {
		t.Fatalf("Apply: %v\n%s", err, p.Changes())
	}
}

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
	err := apply()
	kit.Check(t, err != nil && strings.Contains(err.Error(), "guard the listeners at "+generate.NodeAddr[service.IPv4].String()), "Apply = %v", err)
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
				kit.Check(t, s.tables.Text() == before && (!errors.Is(err, iptables.ErrBusy) || tries == 1),
					"after %d tries the rules are\n%s\nand were\n%s", tries, s.tables.Text(), before)
				return
			}
			got := s.tables.Trace(c, generate.IsNodeLocal)
			kit.Check(t, len(got.Targets) == tc.targets, "led to %v, want %d", got.Targets, tc.targets)
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
	kit.Check(t, tables.Text() == before, "the rules are now\n%s\nand were\n%s", tables.Text(), before)
	p, err := second.Plan(t.Context(), want)
	kit.Check(t, err == nil && p.Empty(), "still to do: %s, %v", p, err)
}

// TestRenderUnsupported checks that rendered text and JSON name a port that the mode cannot serve.
func TestRenderUnsupported(t *testing.T) {
	p := &service.Port{Name: service.PortName{Namespace: "shop", Name: "signal", Port: "s", Protocol: service.SCTP}}
	want := service.New(1, &service.Node{}, []*service.Port{p})
	all, doc := userspace.Render(want, userspace.Options{Rules: iptables.Options{MasqueradeBit: 14}})
	for _, format := range []document.Format{document.Text, document.JSON} {
		var b strings.Builder
		kit.Must(t, format.Write(&b, doc, func(w *bufio.Writer) { w.WriteString(all.String()) }))
		text := "service port shop/signal:s (sctp, IPv4): mode userspace forwards TCP and UDP only"
		kit.Check(t, strings.Count(b.String(), text) == 1, "%s does not say once: %s\n%s", format, text, b.String())
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
