// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package userspace_test

import (
	"context"
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

	"kubeproxy/common/reconcile"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/iptables"
	"kubeproxy/platform/linux/userspace"
	"kubeproxy/test/backendtest"
	"kubeproxy/test/generate"
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
