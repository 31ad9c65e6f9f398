// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"kubeproxy/common/explain"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/ipset"
	"kubeproxy/test/backendtest"
	"kubeproxy/test/generate"
	"kubeproxy/test/kit"
	"kubeproxy/test/xtables"
)

const listing = `IP Virtual Server version 1.2.1 (size=4096)
Prot LocalAddress:Port Scheduler Flags
  -> RemoteAddress:Port Forward Weight ActiveConn InActConn
TCP  0A60000A:0050 rr persistent 10800 FFFFFFFF
  -> 0AF4010C:1F90      Masq    1      2          3
  -> 0AF4010B:1F90      Route   0      0          0
FWM  00000007 rr
  -> 0AF4010D:1F90      Masq    1      0          0
UDP  0A60000A:0050 rr ops
SCTP [fd00:0010:0096:0000:0000:0000:0000:0010]:0050 mh
  -> [fd00:0010:0244:0001:0000:0000:0000:0011]:1F90      Masq    1      0          1
`

func TestListing(t *testing.T) {
	four, six := netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00:10:96::10")
	tcp, udp, sctp, omitted := &observedServer{}, &observedServer{}, &observedServer{}, &observedServer{}
	servers := map[service.Address]*observedServer{
		addressAt(four, 80, service.TCP): tcp, addressAt(four, 80, service.UDP): udp, addressAt(six, 80, service.SCTP): sctp, addressAt(four, 81, service.TCP): omitted,
	}
	kit.Must(t, fillDests(servers, strings.NewReader(listing)))
	want := dest{addr: netip.MustParseAddrPort("10.244.1.12:8080"), weight: 1, conns: 5}
	kit.Check(t, len(tcp.dests) == 2 && tcp.dests[1] == want && tcp.dests[0].weight == 0 && tcp.dests[0].wrongMode,
		"TCP: %+v", tcp.dests)
	kit.Check(t, udp.destsKnown && len(udp.dests) == 0 && !omitted.destsKnown,
		"UDP: %+v, one that is left out: %+v", udp, omitted)
	kit.Check(t, len(sctp.dests) == 1 && sctp.dests[0].addr == netip.MustParseAddrPort("[fd00:10:244:1::11]:8080"),
		"SCTP: %+v", sctp.dests)
	err := fillDests(servers, strings.NewReader("TCP 0A60000A:0050 rr\n -> nonsense Masq 1 0 0\n"))
	kit.Check(t, err != nil, "nonsense is taken for a destination")
}

// TestExternalAddressOfTheNodeGoesBeforeNodePorts checks that a node address that is an
// external address of a Service takes precedence over NodePorts with the same port
// number, of the same Service or another one, in any order, and that the NodePort
// answers again when that Service is deleted.
func TestExternalAddressOfTheNodeGoesBeforeNodePorts(t *testing.T) {
	bare, outer := web(0, 1, service.TCP), web(1, 3, service.TCP)
	bare.Frontends = append(bare.Frontends, service.Frontend{Kind: service.NodePort, Port: 30080})
	inner := *bare
	inner.Frontends = append(inner.Frontends, service.Frontend{Kind: service.ExternalIP, Addr: generate.NodeAddr[0], Port: 30080})
	outer.Frontends = append(outer.Frontends, service.Frontend{Kind: service.ExternalIP, Addr: generate.NodeAddr[0], Port: 30080})
	own := addressAt(generate.NodeAddr[0], 30080, service.TCP)
	for name, c := range map[string]struct {
		change service.Change
		dests  int
	}{
		"its own":           {service.Change{Old: bare, New: &inner}, 1},
		"another Service's": {service.Change{New: outer}, 3},
	} {
		k := newFake(service.IPv4)
		b := newBackend(service.IPv4, k, Options{})
		back := service.Change{Old: c.change.New, New: c.change.Old}
		s := snapshot(bare)
		apply(t, b, s)
		for _, x := range []struct {
			change service.Change
			dests  int
		}{{c.change, c.dests}, {back, 1}} {
			s, _ = applyChanges(t, b, s, x.change)
			applyUntilDrained(t, b, k, s)
			n := len(k.servers[own].dests)
			kit.Check(t, n == x.dests, "%s: %d destinations at %s, want %d", name, n, own, x.dests)
			k.clock = k.clock.Add(time.Minute)
			wantLines(t, planOf(t, b, s))
			if n := len(k.servers); n != len(portsOf(s, service.IPv4))+2 { // two addresses answer NodePorts
				t.Errorf("%s: %d virtual servers", name, n)
			}
		}
	}
}

// TestUpstreamSet recognizes kube-proxy's ipsets by name and type.
func TestUpstreamSet(t *testing.T) {
	for _, tt := range []struct {
		family     service.Family
		name, kind string
		proto      service.Protocol
		is         bool
	}{
		{service.IPv4, "KUBE-CLUSTER-IP", "hash:ip,port", 0, true},
		{service.IPv4, "KUBE-CLUSTER-IP", "hash:ip", 0, false},
		{service.IPv4, "KUBE-6-CLUSTER-IP", "hash:ip,port", 0, false},
		{service.IPv6, "KUBE-CLUSTER-IP", "hash:ip,port", 0, false},
		{service.IPv6, "KUBE-6-CLUSTER-IP", "hash:ip,port", 0, true},
		{service.IPv6, "KUBE-6-LOAD-BALANCER-SOURCE-CID", "hash:ip,port,net", 0, true},
		{service.IPv6, "KUBE-6-LOAD-BALANCER-SOURCE-CIDR", "hash:ip,port,net", 0, false},
		{service.IPv6, "KUBE-6-NODE-PORT-LOCAL-SCTP-HAS", "hash:ip,port", service.SCTP, true},
		{service.IPv4, "KUBE-NODE-PORT-TCP", "bitmap:port", service.TCP, true},
		{service.IPv4, "KUBE-NODE-PORT-LOCAL-UDP", "bitmap:port", service.UDP, true},
		{service.IPv4, "KUBE-NODE-PORT-SCTP", "bitmap:port", service.SCTP, true},
		{service.IPv4, "KUBE-HEALTH-CHECK-NODE-PORT", "bitmap:port", 0, true},
		{service.IPv4, "KUBE-MINE", "hash:ip,port", 0, false},
		{service.IPv4, "", "", 0, false},
	} {
		proto, is := upstreamSet(tt.family, tt.name, tt.kind)
		kit.Check(t, proto == tt.proto && is == tt.is, "%s %s %s: %v, %t; want %v, %t", tt.family, tt.name, tt.kind, proto, is, tt.proto, tt.is)
	}
}

// TestUpstreamOwnedServers distinguishes kube-proxy's virtual servers from ours and from
// foreign ones.
func TestUpstreamOwnedServers(t *testing.T) {
	addr := netip.MustParseAddr
	u := &upstreamState{
		addrs: map[netip.Addr]bool{addr("10.96.0.1"): true, addr("10.97.0.1"): true},
		node:  map[netip.Addr]bool{addr("192.0.2.1"): true},
		ports: map[service.Address]bool{{Port: 30080, Protocol: service.TCP}: true},
	}
	s := &state{servers: map[service.Address]*observedServer{}}
	for k, flags := range map[service.Address]uint32{
		addressAt(addr("10.96.0.1"), 80, service.TCP):    0,
		addressAt(addr("10.96.0.1"), 81, service.TCP):    flagOwned,
		addressAt(addr("10.97.0.1"), 80, service.TCP):    0, // excluded
		addressAt(addr("192.0.2.1"), 30080, service.TCP): flagPersistent,
		addressAt(addr("192.0.2.1"), 30080, service.UDP): 0, // another protocol
		addressAt(addr("192.0.2.1"), 443, service.TCP):   0, // not a NodePort
		addressAt(addr("192.0.2.7"), 30080, service.TCP): 0, // not the node
	} {
		s.servers[k] = &observedServer{server: server{flags: flags}}
	}
	e := u.ownedServers(s, Options{Exclude: []netip.Prefix{netip.MustParsePrefix("10.97.0.0/16")}})
	got := []string{}
	for _, k := range e.servers {
		got = append(got, nameOf(k))
	}
	for _, a := range sortedAddrs(e.addrOps) {
		got = append(got, e.addrOps[a].text())
	}
	want := []string{"10.96.0.1:80 tcp", "192.0.2.1:30080 tcp", "- address 10.96.0.1 of interface kube-ipvs0"}
	kit.Same(t, "(-want +got)", want, got)
}

// TestUpstreamAdopted adopts kube-proxy's virtual servers and their endpoints, and no
// foreign ones.
func TestUpstreamAdopted(t *testing.T) {
	for _, made := range []bool{true, false} {
		t.Run(fmt.Sprint(made), func(t *testing.T) {
			k := newFake(service.IPv4)
			p := web(0, 1, service.TCP)
			at := addressAt(p.Frontends[0].Addr, 80, service.TCP)
			held := dest{addr: p.Cluster[0].Addr, weight: 1, conns: 3}
			k.servers[at] = &fakeServer{server{scheduler: "rr"}, map[netip.AddrPort]dest{held.addr: held}}
			if made {
				k.upstream = []service.Address{at}
			}
			b := newBackend(service.IPv4, k, Options{})
			plan := planOf(t, b, snapshot(p))
			took := slices.Contains(lines(plan), "~ virtual server 10.96.0.0:80 tcp, scheduler rr # shop/web-0")
			if err := plan.Apply(t.Context()).Err; took != made || (err == nil) != made {
				t.Errorf("taken over %t, %v\n%s", took, err, plan.Changes())
			}
			got := k.servers[at]
			kit.Check(t, got.owned() == made && got.dests[held.addr] == held, "there is %v", got)
		})
	}
}

func TestSharedMark(t *testing.T) {
	const all = math.MaxUint32
	wireguard := markRule{32764, true, 0xca6c, all, 51820}
	for name, tt := range map[string]struct {
		family service.Family
		bit    int
		rules  []markRule
		want   string // in the text, empty for none
	}{
		"no rules":           {service.IPv4, 14, nil, ""},
		"wg-quick":           {service.IPv4, 14, []markRule{{100, false, 1, all, 100}, wireguard}, `bit 0x4000 (ip rule has "32764: not fwmark 0xca6c lookup 51820")`},
		"wg-quick, IPv6":     {service.IPv6, 14, []markRule{wireguard}, `(ip -6 rule has "32764: not fwmark 0xca6c lookup 51820")`},
		"another bit":        {service.IPv4, 16, []markRule{wireguard}, ""},
		"the highest bit":    {service.IPv4, 31, []markRule{{7, false, 1 << 31, all, 9}}, `0x80000000 (ip rule has "7: fwmark 0x80000000 lookup 9")`},
		"a transparent one":  {service.IPv4, 14, []markRule{{100, false, 1, all, 100}}, ""},
		"beside the mask":    {service.IPv4, 14, []markRule{{9, false, 0x200, 0xf00, 2004}}, ""},
		"a field of marks":   {service.IPv4, 14, []markRule{{9, false, 0x2000, 0x6000, 5}}, `"9: fwmark 0x2000/0x6000 lookup 5"`},
		"a mark out of mask": {service.IPv4, 14, []markRule{{9, false, 0x4200, 0xf00, 5}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := Options{MasqueradeBit: tt.bit}.sharedMark(tt.family, tt.rules)
			kit.Check(t, (got == "") == (tt.want == "") && strings.Contains(got, tt.want), "%q, want %q", got, tt.want)
		})
	}
}

// TestSharedMarkIsShown has a program come that uses the masquerade bit, and go. A failure
// to read the rules changes nothing.
func TestSharedMarkIsShown(t *testing.T) {
	k := newFake(service.IPv4)
	b := newBackendWithRules(service.IPv4, k, Options{MasqueradeBit: 14})
	shown := "nothing"
	b.showSharedMark = func(text string) { shown = text }
	s := snapshot(web(0, 1, service.TCP))
	step := func(want bool, rules []markRule, err error) {
		t.Helper()
		k.marks, k.marksErr = rules, err
		k.clock = k.clock.Add(b.options.SyncPeriod)
		apply(t, b, s)
		kit.Check(t, strings.Contains(shown, "0xca6c") == want && (want || shown == ""), "shown is %q", shown)
		if err != nil {
			return
		}
		w, err := b.Trace(t.Context(), s, route.Conn{To: netip.MustParseAddrPort("192.0.2.99:51820"), Protocol: service.UDP, From: generate.NodeAddr[0]}, generate.IsNodeLocal)
		kit.Check(t, err == nil && (len(w.Notes) == 1) == want, "explain notes %v, %v", w, err)
	}
	rules := []markRule{{32764, true, 0xca6c, math.MaxUint32, 51820}}
	step(false, nil, nil)
	step(true, rules, nil)
	step(true, nil, errors.New("interrupted"))
	step(false, nil, nil)
	k.marks = rules
	w, err := b.Trace(t.Context(), s, route.Conn{To: netip.AddrPortFrom(first.Addr, first.Port), Protocol: service.TCP, From: generate.NodeAddr[0]}, generate.IsNodeLocal)
	kit.Check(t, err == nil && len(w.Notes) == 0, "explain of a Service notes %v, %v", w, err)
}

// TestReadOnce has many questions about one snapshot. The node is read once, and each answer has what
// is wrong for its packet, such as the set that is missing.
func TestReadOnce(t *testing.T) {
	first, second := web(0, 1, service.TCP), web(1, 2, service.TCP)
	k := newFake(service.IPv4)
	s := snapshot(first, second)
	apply(t, newBackendWithRules(service.IPv4, k, Options{MasqueradeBit: 14}), s)
	delete(k.sets.ByName, "KUBE-VS-RESTRICTED")
	at := second.Frontends[0]
	delete(k.servers[addressAt(at.Addr, at.Port, service.TCP)].dests, second.Cluster[0].Addr)
	once, anew := newBackendWithRules(service.IPv4, k, Options{MasqueradeBit: 14}), newBackendWithRules(service.IPv4, k, Options{MasqueradeBit: 14})
	once.ReadOnce()
	ask := func(b *Backend, p *service.Port) []string {
		t.Helper()
		w, err := b.Trace(t.Context(), s, route.Conn{From: generate.NodeAddr[0], To: netip.AddrPortFrom(p.Frontends[0].Addr, p.Frontends[0].Port), Protocol: service.TCP}, generate.IsNodeLocal)
		kit.Must(t, err)
		return w.Faults
	}
	for _, p := range []*service.Port{first, second, first} {
		got, want := ask(once, p), ask(anew, p)
		kit.Check(t, slices.Equal(got, want) && len(want) != 0, "%s: faults %q, want %q", p.Name, got, want)
	}
	k.reads = 0
	ask(once, second)
	s = snapshot(first, second)
	ask(once, second)
	kit.Check(t, k.reads == 1, "%d reads for a question of each of two snapshots, want 1 of the new one", k.reads)
}

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
