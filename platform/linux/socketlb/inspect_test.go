// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package socketlb

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"kubeproxy/common/explain"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
)

// TestTrace asks what happens to connections of all sorts, with sound and altered tables.
func TestTrace(t *testing.T) {
	to := netip.MustParseAddrPort("10.96.0.10:80")
	all := "gives the socket one of 10.1.0.1:80, 10.1.0.2:80; a socket that the program bound"
	const nodes = "a socket of the node gets the address that the route to the endpoint has"
	for name, c := range map[string]struct {
		to       string
		protocol service.Protocol
		iface    string
		from     string
		alter    func(k *fake)
		says     string
		fault    string
		note     string
	}{
		"of the node":     {says: all, note: nodes},
		"of an endpoint":  {iface: "pod", from: "10.1.0.1", says: all, note: "the server sees 10.1.0.1"},
		"of a pod":        {iface: "pod", from: "10.1.0.9", says: all},
		"pods not found":  {iface: "pod", from: "10.1.0.9", alter: func(k *fake) { k.followed = "" }, says: "the cgroup of all pods was not found"},
		"from outside":    {iface: "eth0", from: "192.0.2.1", says: "it is on another machine"},
		"UDP":             {protocol: service.UDP, says: "UDP sockets would keep an endpoint that left"},
		"no Service":      {to: "10.96.0.99:80", says: "no Service has 10.96.0.99:80"},
		"external":        {to: "192.0.2.7:80", says: "only ClusterIPs are accelerated"},
		"no endpoints":    {to: "10.96.0.11:80", says: "without endpoints the rules refuse it"},
		"affinity":        {to: "10.96.0.12:80", says: "the rules know the clients of sessionAffinity"},
		"detached":        {alter: func(k *fake) { k.detached = errInjected }, says: "rules: injected", fault: "socket acceleration is not in force: injected"},
		"others":          {alter: func(k *fake) { k.unknown = "program 7" }, says: "10.1.0.2:80, unless another program has changed its address: program 7", fault: "may not be what decides: program 7", note: nodes},
		"nothing there":   {alter: func(k *fake) { k.active = nil }, says: "no program is attached", fault: "socket acceleration is not in force: no program is attached"},
		"list emptied":    {alter: func(k *fake) { k.entry(to, 0) }, says: "no table has 10.96.0.10:80", fault: "never gives 10.1.0.1:80"},
		"list shortened":  {alter: func(k *fake) { k.entry(to, listOf(0, 1)) }, says: "gives the socket one of 10.1.0.1:80;", fault: "never gives 10.1.0.2:80", note: nodes},
		"list of another": {to: "10.96.0.12:80", alter: func(k *fake) { k.foreign(netip.MustParseAddrPort("10.96.0.12:80"), listOf(0, 1)) }, says: "gives the socket one of 10.1.0.1:80;", fault: "also gives 10.1.0.1:80", note: nodes},
		"list outside":    {alter: func(k *fake) { k.entry(to, listOf(1<<30, 1)) }, says: "no table has", fault: "the list of 10.96.0.10:80 is damaged"},
	} {
		t.Run(name, func(t *testing.T) {
			k := &fake{family: service.IPv4, pods: "/kubepods"}
			want := tracedSnapshot()
			round(t, New(service.IPv4, k, Options{}), want)
			if c.alter != nil {
				c.alter(k)
			}
			conn := route.Conn{From: netip.MustParseAddr("192.0.2.10"), To: to, Protocol: cmp.Or(c.protocol, service.TCP), Interface: c.iface}
			if c.from != "" {
				conn.From = netip.MustParseAddr(c.from)
			}
			if c.to != "" {
				conn.To = netip.MustParseAddrPort(c.to)
			}
			w := &explain.Walk{Hops: []explain.Hop{{Object: "a rule"}}}
			if err := New(service.IPv4, k, Options{}).Trace(want, conn, w); err != nil {
				t.Fatal(err)
			}
			if len(w.Hops) != 2 || w.Hops[0].Object != "connect(2)" || !strings.Contains(w.Hops[0].Does, c.says) {
				t.Errorf("hops %+v, want %q", w.Hops, c.says)
			}
			if got := strings.Join(w.Notes, "; "); !strings.Contains(got, c.note) || (c.note == "") != (got == "") {
				t.Errorf("notes %q, want %q", got, c.note)
			}
			if got := strings.Join(w.Faults, "; "); !strings.Contains(got, c.fault) || (c.fault == "") != (got == "") {
				t.Errorf("faults %q, want %q", got, c.fault)
			}
		})
	}
}

// tracedSnapshot has 10.96.0.10:80 with two endpoints and an external IP, 10.96.0.11:80
// without endpoints, and 10.96.0.12:80 with session affinity.
func tracedSnapshot() *service.Snapshot {
	node := &service.Node{Name: "node-a", Pods: service.LocalPods{Prefixes: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}}}
	s := snapshot([]string{"10.96.0.10:80", "10.1.0.1:80", "10.1.0.2:80"}, []string{"10.96.0.11:80"}, []string{"10.96.0.12:80", "10.1.0.3:80"})
	all := slices.Collect(s.Ports(service.IPv4))
	all[0].Frontends = append(all[0].Frontends, service.Frontend{Kind: service.ExternalIP, Addr: netip.MustParseAddr("192.0.2.7"), Port: 80})
	all[2].Affinity = 10
	return service.New(1, node, all)
}

// foreign puts a list where the layer has none.
func (f *fake) foreign(to netip.AddrPort, l list) {
	n := nameOf(to)
	i, _ := f.active.find(n)
	f.active.claim(i, n)
	f.active.setList(i, l)
}
