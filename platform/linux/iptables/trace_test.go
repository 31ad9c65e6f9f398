// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"kubeproxy/common/explain"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/packet"
	"kubeproxy/test/backendtest"
	"kubeproxy/test/generate"
	"kubeproxy/test/kit"
)

// traceCase is a connection to a node in mode iptables.
type traceCase struct {
	*backendtest.Traced
	k *fake
	b *Backend
}

// requireNamed tampers, and requires that a difference contains text.
func (c traceCase) requireNamed(text string, tamper func(k *fake)) {
	whole := map[string]map[string][]string{}
	for table, chains := range c.k.Tables {
		whole[table] = maps.Clone(chains)
	}
	tamper(c.k)
	c.RequireNamed(text)
	for table, chains := range whole {
		c.k.Tables[table] = chains
	}
	c.k.DormantTables = nil
}

// met returns the chains that the packet meets.
func (c traceCase) met() *path {
	q := Question{Want: c.Want, Conn: c.Conn, Local: generate.IsNodeLocal}
	p := newPath(c.b.layout, packet.Parse(c.k.Text()), c.b.node(q, nil))
	p.follow(c.Conn)
	return p
}

// Whatever a packet meets, Trace names what is missing, altered or added, and finds
// nothing before.
func TestTraceFindsTampering(t *testing.T) {
	cluster := func(w generate.Cluster) backendtest.Cluster { return generate.WithoutServiceCIDRs{Cluster: w} }
	backendtest.TraceTampering(t, cluster, func(w generate.Cluster, x *backendtest.Traced) func() {
		k := newFake()
		k.addForeignChains()
		o := Options{MasqueradeBit: 14, DropInvalid: true, ListSize: w.DrawInt("size of lists", 3)}
		c := traceCase{x, k, NewWith(w.Family, o, k)}
		x.State = k.Text
		x.Follow = func(ctx context.Context) (*explain.Walk, error) {
			return c.b.Trace(ctx, x.Want, x.Conn, generate.IsNodeLocal)
		}
		x.Hairpin = func(e service.Endpoint) bool { return e.Addr.Addr() == x.Conn.From }
		apply(x.T, c.b, x.Want)
		return c.tamper
	})
}

func (c traceCase) tamper() {
	c.RequireAgreement()
	p := c.met()
	for _, i := range slices.SortedFunc(maps.Keys(p.visits), id.compare) {
		packets := p.visits[i]
		where := fmt.Sprintf("chain %s of table %s", i.name, i.table)
		if (*Role)(nil).owns(i) {
			c.tamperChain(p, i, packets, where)
			continue
		}
		for _, j := range c.b.jumps() {
			if j.from == i {
				c.requireNamed(fmt.Sprintf("%s lacks the rule %q", where, j.rule), func(k *fake) {
					k.Tables[i.table][i.name] = slices.DeleteFunc(slices.Clone(k.Tables[i.table][i.name]), func(r string) bool { return r == j.rule })
				})
				c.requireNamed("stands behind", func(k *fake) { c.prepend(i, "-j ACCEPT") })
			}
		}
		if i.table == filter && route.Decide(c.Want, c.Conn).Action != route.Drop { // else it is right that it is dropped
			c.requireNamed(fmt.Sprintf("rule %q of %s drops", "-j DROP", where), func(k *fake) { c.prepend(i, "-j DROP") })
		}
		c.requireNamed(fmt.Sprintf("%s has the flag dormant", i.table), func(k *fake) { k.DormantTables = []string{i.table} })
	}
}

func (c traceCase) prepend(i id, rule string) {
	c.k.Tables[i.table][i.name] = append([]string{rule}, c.k.Tables[i.table][i.name]...)
}

// tamperChain adds a rule, and removes and alters one of those that concern the packet.
func (c traceCase) tamperChain(p *path, i id, packets []packet.Packet, where string) {
	c.requireNamed(where+` has the rule "-j DROP"`, func(*fake) { c.prepend(i, "-j DROP") })
	var concerning []int
	rules := p.tables.List(packet.Chain{Table: i.table, Name: i.name})
	for n := range rules {
		if slices.ContainsFunc(packets, func(pk packet.Packet) bool { return packet.Concerns(&rules[n], pk) }) {
			concerning = append(concerning, n)
		}
	}
	if len(concerning) == 0 {
		return
	}
	n := rapid.SampledFrom(concerning).Draw(c.T, "rule")
	change := func(to ...string) func(*fake) {
		return func(k *fake) {
			k.Tables[i.table][i.name] = slices.Replace(slices.Clone(k.Tables[i.table][i.name]), n, n+1, to...)
		}
	}
	lacks := fmt.Sprintf("%s lacks the rule %q", where, rules[n].Text)
	c.requireNamed(lacks, change())
	if !strings.Contains(rules[n].Text, "--to-destination") {
		c.requireNamed(lacks, change("-m mark --mark 0x1/0x1 "+rules[n].Text))
		return
	}
	elsewhere := netip.AddrPortFrom(generate.NthAddr(c.Conn.From.String(), 77), 1).String()
	c.requireNamed(lacks, change("-p "+c.Conn.Protocol.String()+" -j DNAT --to-destination "+elsewhere))
}

// A client that a list of recent clients has goes where it went before.
func TestTraceRemembers(t *testing.T) {
	p := &service.Port{
		Name: service.PortName{Namespace: "shop", Name: "web", Protocol: service.TCP}, Family: service.IPv4, Affinity: time.Hour,
		Frontends: []service.Frontend{{Kind: service.ClusterIP, Addr: netip.MustParseAddr("10.96.0.10"), Port: 80}},
	}
	for n := range 3 {
		p.Cluster = append(p.Cluster, service.Endpoint{Addr: netip.AddrPortFrom(generate.NthAddr("10.244.1.0", n+1), 8080)})
	}
	want := service.New(1, &service.Node{NodePorts: service.AnyAddress()}, []*service.Port{p})
	for _, size := range []int{0, 1} {
		k := newFake()
		b := NewWith(service.IPv4, Options{MasqueradeBit: 14, ListSize: size}, k)
		apply(t, b, want)
		traceRemembers(t, k, b, want, p)
	}
}

func traceRemembers(t *testing.T, k *fake, b *Backend, want *service.Snapshot, p *service.Port) {
	client := netip.MustParseAddr("10.244.1.99")
	list := packet.Argument(packet.Split(recentMatch(p, p.Cluster[1].Addr, "--update")), "--name")
	for age, remembered := range map[time.Duration]bool{time.Minute: true, 2 * time.Hour: false} {
		k.RecentClients = map[string]map[netip.Addr]time.Duration{list: {client: age}}
		w, err := b.Trace(t.Context(), want, route.Conn{Protocol: service.TCP, From: client, To: netip.MustParseAddrPort("10.96.0.10:80"), Interface: "eth0"}, generate.IsNodeLocal)
		kit.Must(t, err)
		if is := w.Remembered == p.Cluster[1].Addr && len(w.Targets) == 1; is != remembered {
			t.Errorf("%s ago: targets %v, remembered %s, want that: %t", age, w.Targets, w.Remembered, remembered)
		}
	}
}

// On loopback addresses, NodePorts answer where route_localnet is on.
func TestTraceLoopback(t *testing.T) {
	p := &service.Port{
		Name: service.PortName{Namespace: "shop", Name: "web", Protocol: service.TCP}, Family: service.IPv4,
		Frontends: []service.Frontend{{Kind: service.NodePort, Port: 30010}},
		Cluster:   []service.Endpoint{{Addr: netip.MustParseAddrPort("10.244.1.1:8080")}},
	}
	want := service.New(1, &service.Node{NodePorts: service.AnyAddress()}, []*service.Port{p})
	k := newFake()
	b := NewWith(service.IPv4, Options{MasqueradeBit: 14, LocalhostNodePorts: true}, k)
	apply(t, b, want)
	c := route.Conn{Protocol: service.TCP, From: netip.MustParseAddr("127.0.0.1"), To: netip.MustParseAddrPort("127.0.0.1:30010"), ToNode: true}
	for routed, faults := range map[bool]int{true: 0, false: 1} {
		k.RouteLocalnet = routed
		w, err := b.Trace(t.Context(), want, c, generate.IsNodeLocal)
		kit.Check(t, err == nil && w.Action == route.Forward && w.ByDesign != "" && len(w.Faults) == faults,
			"route_localnet %t: %+v, %v; want %d faults", routed, w, err, faults)
	}
}

// TestTraceOthers follows packets to chains of others: what the node sends to itself comes back by
// lo, where table nat does not see it again, and a translation says what it leaves open.
func TestTraceOthers(t *testing.T) {
	const node, pod = "192.0.2.1:22", "10.244.1.1:8080"
	for _, c := range []struct {
		name, from, to string
		rules          map[id]string
		action         route.Action
		targets        string
		doubt          string
	}{
		{"back by lo", "192.0.2.1", node, map[id]string{{mangle, "PREROUTING"}: "-i lo -j DROP"}, route.Drop, "", ""},
		{"out by lo", "192.0.2.1", node, map[id]string{{mangle, "POSTROUTING"}: "-o lo -j DROP"}, route.Drop, "", ""},
		{"another source when it is back", "192.0.2.1", node, map[id]string{{nat, "POSTROUTING"}: "-j MASQUERADE", {mangle, "INPUT"}: "-s 192.0.2.1/32 -j DROP"}, route.Pass, "", "INPUT"},
		{"out by the interface before a translation", "192.0.2.1", pod, map[id]string{{nat, "OUTPUT"}: "-p tcp -j DNAT --to-destination 192.0.2.1:22", {filter, "OUTPUT"}: "-o lo -j DROP"}, route.Forward, node, ""},
		{"table nat once", "192.0.2.1", node, map[id]string{{nat, "PREROUTING"}: "-j DNAT --to-destination 10.244.1.9:1"}, route.Pass, "", ""},
		{"the port of the packet", "10.244.1.99", pod, map[id]string{{nat, "PREROUTING"}: "-p tcp -j DNAT --to-destination 10.244.1.9"}, route.Forward, "10.244.1.9:8080", ""},
		{"anywhere", "10.244.1.99", pod, map[id]string{{nat, "PREROUTING"}: "-p tcp -j DNAT --to-destination 10.244.1.9-10.244.1.11", {filter, "FORWARD"}: "-j DROP"}, route.Pass, "", "FORWARD"},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := newFake()
			for i, rule := range c.rules {
				if k.Tables[i.table] == nil {
					k.Tables[i.table] = map[string][]string{}
				}
				k.Tables[i.table][i.name] = []string{rule}
			}
			conn := route.Conn{Protocol: service.TCP, From: netip.MustParseAddr(c.from), To: netip.MustParseAddrPort(c.to), ToNode: c.to == node}
			if c.from != "192.0.2.1" {
				conn.Interface = "eth0"
			}
			b := NewWith(service.IPv4, Options{MasqueradeBit: 14}, k)
			p := traceCase{&backendtest.Traced{Want: service.New(1, nil, nil), Conn: conn}, k, b}.met()
			kit.Must(t, p.err)
			w := p.walk()
			var to, doubts []string
			for a := range w.Targets {
				to = append(to, a.String())
			}
			for _, o := range w.Others {
				if len(o.Doubts) > 0 {
					doubts = append(doubts, o.Chain)
				}
			}
			if w.Action != c.action || strings.Join(to, " ") != c.targets || !strings.Contains(strings.Join(doubts, " "), c.doubt) {
				t.Errorf("%v to %v, doubts about %v, of %+v", w.Action, to, doubts, w.Others)
			}
		})
	}
}
