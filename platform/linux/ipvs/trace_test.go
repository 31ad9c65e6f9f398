// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"kubeproxy/common/explain"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/ipset"
	"kubeproxy/test/backendtest"
	"kubeproxy/test/generate"
	"kubeproxy/test/xtables"
)

// tracer evaluates the chains and virtual servers of a fake for a packet, in the order
// of the kernel.
type tracer struct {
	*xtables.Tracer
	kernel *fake
}

func trace(k *fake, c route.Conn) backendtest.Outcome { return newTracer(k, c).run() }

func newTracer(k *fake, c route.Conn) *tracer {
	local := func(a netip.Addr) bool {
		_, routed := k.routes[a]
		return routed || generate.IsNodeLocal(a)
	}
	return &tracer{&xtables.Tracer{System: k.tables, Conn: c, Local: local, Loops: generate.IsNodeLocal}, k}
}

// runBeforeIPVS evaluates what precedes IPVS and may redirect the packet. It reports
// whether the packet continues.
func (t *tracer) runBeforeIPVS(hook string) bool {
	if t.Hook("mangle", hook); t.Out.Action != route.Pass {
		return false
	}
	t.Hook("nat", hook)
	switch t.Out.Action {
	case route.Pass:
		return true
	case route.Forward:
		t.Tracer = t.AfterDNAT(t.Out.Targets[0])
		return true
	}
	return false
}

func (t *tracer) run() backendtest.Outcome {
	if t.Conn.Interface == "" {
		return t.runOutput()
	}
	if !t.runBeforeIPVS("PREROUTING") {
		return t.Out
	}
	if !t.Local(t.Conn.To.Addr()) {
		t.hooks("filter FORWARD", "nat POSTROUTING")
		return t.Out
	}
	t.hooks("filter INPUT")
	if s := t.server(); s != nil && t.Out.Action == route.Pass {
		return t.runServer(s)
	}
	return t.Out
}

// runOutput evaluates a packet of the node itself. IPVS handles it before it leaves,
// wherever its address is routed.
func (t *tracer) runOutput() backendtest.Outcome {
	if !t.runBeforeIPVS("OUTPUT") {
		return t.Out
	}
	if s := t.server(); s != nil {
		return t.runServer(s)
	}
	t.hooks("filter OUTPUT", "nat POSTROUTING")
	if t.Local(t.Conn.To.Addr()) {
		t.hooks("filter INPUT")
	}
	if t.Out.Action != route.Pass {
		return backendtest.Outcome{Action: t.Out.Action}
	}
	return t.Out
}

// hooks evaluates built-in chains until one decides.
func (t *tracer) hooks(all ...string) {
	for _, h := range all {
		if t.Out.Action != route.Pass {
			return
		}
		table, chain, _ := strings.Cut(h, " ")
		t.Hook(table, chain)
	}
}

// server returns the virtual server of ours that accepts the packet, if there is one.
func (t *tracer) server() *fakeServer {
	s := t.kernel.servers[addressAt(t.Conn.To.Addr(), t.Conn.To.Port(), t.Conn.Protocol)]
	if s == nil || !s.owned() {
		return nil
	}
	return s
}

// runServer sends the packet to each destination of s. It leaves like a packet of the
// node itself, except for translating rules.
func (t *tracer) runServer(s *fakeServer) backendtest.Outcome {
	o := backendtest.Outcome{Action: route.Reject, Masq: map[netip.AddrPort]bool{}}
	for a, x := range s.dests {
		if x.weight > 0 {
			o.Action = route.Forward
			o.Targets = append(o.Targets, a)
		}
	}
	if o.Action == route.Reject {
		return backendtest.Outcome{Action: route.Reject}
	}
	slices.SortFunc(o.Targets, netip.AddrPort.Compare)
	for _, a := range o.Targets {
		x := &tracer{t.AfterDNAT(a), t.kernel}
		x.Translated, x.Conn.Interface = t.Translated, ""
		x.hooks("mangle OUTPUT", "filter OUTPUT", "nat POSTROUTING")
		if x.Out.Action != route.Pass {
			o.Action = x.Out.Action
		}
		o.Masq[a] = x.Out.Masq != nil
	}
	return o
}

// TestOnlyAnswersPass checks that packets to an address of a Service that no virtual
// server accepts are rejected, except for replies: with kube-proxy, connections had that
// source.
func TestOnlyAnswersPass(t *testing.T) {
	p := web(0, 1, service.TCP)
	p.Frontends = append(p.Frontends, service.Frontend{Kind: service.ExternalIP, Addr: netip.MustParseAddr("203.0.113.1"), Port: 80})
	k := newFake(service.IPv4)
	apply(t, newBackendWithRules(service.IPv4, k, Options{MasqueradeBit: 14}), snapshot(p))
	for _, to := range []string{"10.96.0.0:9999", "203.0.113.1:9999"} {
		for answers, want := range map[bool]route.Action{false: route.Reject, true: route.Pass} {
			c := route.Conn{Protocol: service.TCP, From: netip.MustParseAddr("192.0.2.7"), To: netip.MustParseAddrPort(to), Interface: "eth0"}
			x := newTracer(k, c)
			x.Reply = answers
			if x.Hook("filter", "INPUT"); x.Out.Action != want {
				t.Errorf("to %s, an answer %t: %s, want %s", to, answers, x.Out.Action, want)
			}
		}
	}
}

// traceCase is a connection to a node in mode ipvs.
type traceCase struct {
	*backendtest.Traced
	k *fake
	b *Backend
}

// requireNamed tampers, and requires that a difference contains text.
func (c traceCase) requireNamed(text string, tamper func(k *fake)) {
	whole := c.k.clone()
	tamper(c.k)
	c.RequireNamed(text)
	c.k.restore(whole)
}

// clone copies what tampering changes.
func (fa *fake) clone() *fake {
	x := &fake{device: fa.device, routes: maps.Clone(fa.routes), servers: map[service.Address]*fakeServer{}, sets: xtables.NewSets(), tables: &xtables.System{Tables: map[string]xtables.Table{}}}
	for at, s := range fa.servers {
		x.servers[at] = &fakeServer{s.server, maps.Clone(s.dests)}
	}
	for name, s := range fa.sets.ByName {
		x.sets.ByName[name] = &xtables.SetContents{Set: s.Set, Members: maps.Clone(s.Members), Altered: s.Altered}
	}
	for name, t := range fa.tables.Tables {
		x.tables.Tables[name] = maps.Clone(t)
	}
	return x
}

func (fa *fake) restore(from *fake) {
	fa.device, fa.routes, fa.servers = from.device, from.routes, from.servers
	fa.sets.ByName, fa.tables.Tables, fa.tables.DormantTables, fa.missingSettings = from.sets.ByName, from.tables.Tables, nil, nil
}

// Whatever a packet meets of IPVS, routes, sets and chains, Trace names what is missing,
// altered or added, and finds nothing before.
func TestTraceFindsTampering(t *testing.T) {
	cluster := func(w generate.Cluster) backendtest.Cluster { return clusterWithNodeAddrs{w} }
	backendtest.TraceTampering(t, cluster, func(w generate.Cluster, x *backendtest.Traced) func() {
		k := newFake(w.Family)
		k.addForeignServers(w.Family)
		c := traceCase{x, k, newBackendWithRules(w.Family, k, Options{MasqueradeBit: 14})}
		x.State = func() string { return fmt.Sprint(k.tables.Text(), k.sets.Text(), k.servers) }
		x.Follow = func(ctx context.Context) (*explain.Walk, error) {
			return c.b.Trace(ctx, x.Want, x.Conn, generate.IsNodeLocal)
		}
		x.Hairpin = func(e service.Endpoint) bool {
			return e.Addr.Addr() == x.Conn.From && !generate.IsNodeLocal(x.Conn.From)
		}
		apply(x.T, c.b, x.Want)
		return c.tamper
	})
}

func (c traceCase) tamper() {
	if _, ours := c.k.routes[c.Conn.From]; ours {
		return // no client has such an address
	}
	c.RequireAgreement()
	c.requireNamed("vs.conntrack", func(k *fake) { k.missingSettings = []string{"net.ipv4.vs.conntrack = 1"} })
	c.requireNamed("interface kube-ipvs0 is missing", func(k *fake) { k.device = false })
	if _, routed := c.k.routes[c.Conn.To.Addr()]; routed {
		a := c.Conn.To.Addr()
		c.requireNamed("the local route to "+a.String()+" on interface kube-ipvs0 is missing", func(k *fake) { delete(k.routes, a) })
		c.requireNamed("has the source", func(k *fake) { k.routes[a] = localRoute{a, c.k.addrs[1]} })
	}
	c.tamperServers()
	for _, table := range slices.Sorted(maps.Keys(c.k.tables.Tables)) {
		hook := map[string]string{"nat": "PREROUTING", "mangle": "PREROUTING", "filter": "INPUT"}[table]
		if c.Conn.Interface == "" {
			hook = "OUTPUT"
		}
		early := table == "nat" && route.Decide(c.Want, c.Conn).Action == route.Drop // it does not get that far
		if table != "filter" && !early {
			c.requireNamed("stands behind", func(k *fake) {
				k.tables.Tables[table][hook] = append([]string{"-j ACCEPT"}, k.tables.Tables[table][hook]...)
			})
			c.requireNamed(fmt.Sprintf("chain %s of table %s lacks", hook, table), func(k *fake) { k.tables.Tables[table][hook] = nil })
		}
		c.requireNamed(table+" has the flag dormant", func(k *fake) { k.tables.DormantTables = []string{table} })
	}
	c.tamperSets()
}

// met returns the virtual servers that the packet meets.
func (c traceCase) met() []service.Address {
	var all []service.Address
	add := func(to netip.AddrPort) {
		k := addressAt(to.Addr(), to.Port(), c.Conn.Protocol)
		if s := c.k.servers[k]; s != nil && s.owned() && len(s.dests) > 0 {
			all = append(all, k)
		}
	}
	if o := trace(c.k, c.Conn); o.Action != route.Forward {
		return nil
	}
	x := newTracer(c.k, c.Conn)
	hook := "PREROUTING"
	if c.Conn.Interface == "" {
		hook = "OUTPUT"
	}
	x.runBeforeIPVS(hook)
	add(x.Conn.To)
	return all
}

func (c traceCase) tamperServers() {
	for _, at := range c.met() {
		name := "virtual server " + nameOf(at)
		c.requireNamed(name+" is missing", func(k *fake) { delete(k.servers, at) })
		c.requireNamed(name+" has scheduler lc", func(k *fake) { k.servers[at].scheduler = "lc" })
		foreign := netip.AddrPortFrom(at.Addr, 1)
		c.requireNamed(name+" has the destination "+foreign.String(), func(k *fake) { k.servers[at].dests[foreign] = dest{addr: foreign, weight: 1} })
		for a := range c.k.servers[at].dests {
			change := func(f func(*dest)) func(*fake) {
				return func(k *fake) {
					d := k.servers[at].dests[a]
					f(&d)
					k.servers[at].dests[a] = d
				}
			}
			c.requireNamed(name+" lacks the destination "+a.String(), func(k *fake) { delete(k.servers[at].dests, a) })
			c.requireNamed(fmt.Sprintf("destination %s of %s has weight 0", a, name), change(func(d *dest) { d.weight = 0 }))
			c.requireNamed(fmt.Sprintf("destination %s of %s does not masquerade", a, name), change(func(d *dest) { d.wrongMode = true }))
		}
	}
}

// tamperSets changes every element for the destination, and adds elements to sets of
// refusals.
func (c traceCase) tamperSets() {
	e := ipset.Entry{Addr: c.Conn.To.Addr(), Protocol: c.Conn.Protocol, Port: c.Conn.To.Port()}
	local := newTracer(c.k, c.Conn).Local(c.Conn.To.Addr())
	dropped, restricted := "KUBE-VS-DROPPED", "KUBE-VS-RESTRICTED"
	if c.b.family == service.IPv6 {
		dropped, restricted = "KUBE-VS6-DROPPED", "KUBE-VS6-RESTRICTED"
	}
	s := c.k.sets.ByName[dropped]
	_, there := s.Members[e]
	_, early := c.k.sets.ByName[restricted].Members[e] // source ranges may drop it before that
	if there && !early {
		c.requireNamed("ipset "+dropped+" lacks the element "+s.Text(e), func(k *fake) { delete(k.sets.ByName[dropped].Members, e) })
	} else if route.Decide(c.Want, c.Conn).Action == route.Forward {
		c.requireNamed("ipset "+dropped+" has the element "+s.Text(e), func(k *fake) { k.sets.ByName[dropped].Members[e] = "" })
	}
	for _, name := range slices.Sorted(maps.Keys(c.k.sets.ByName)) {
		set := c.k.sets.ByName[name]
		mine := e
		if set.Type == ipset.HashIP {
			mine = ipset.Entry{Addr: e.Addr}
		}
		_, there := set.Members[mine]
		// Rules match these sets for every packet, before they know the Service.
		if early := strings.HasSuffix(name, "-RESTRICTED") || strings.HasSuffix(name, "-NODE-IPS") || strings.HasSuffix(name, "-VIRTUAL-IPS") && local; early && there && set.Type != ipset.HashIPPortNet {
			if x := c.Look(); x.Action == "drop" && !strings.HasSuffix(name, "-RESTRICTED") {
				continue // it does not get that far
			}
			c.requireNamed("ipset "+name+" lacks the element", func(k *fake) { delete(k.sets.ByName[name].Members, mine) })
		}
	}
}
