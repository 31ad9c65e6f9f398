// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"kubeproxy/common/explain"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/ipset"
	"kubeproxy/test/backendtest"
	"kubeproxy/test/generate"
	"kubeproxy/test/xtables"
)

// traceCase is a connection to a node in mode ipvs.
type traceCase struct {
	t    *rapid.T
	k    *fake
	b    *Backend
	want *service.Snapshot
	conn route.Conn
}

// look compares what Trace finds with what route decides.
func (c traceCase) look() *explain.Explanation {
	w, err := c.b.Trace(c.t.Context(), c.want, c.conn, generate.IsNodeLocal)
	if err != nil {
		c.t.Fatal(err)
	}
	x := backendtest.Explain(route.Decide(c.want, c.conn), func(e service.Endpoint) bool {
		return e.Addr.Addr() == c.conn.From && !generate.IsNodeLocal(c.conn.From)
	})
	x.Compare(w.Path())
	return x
}

// requireNamed tampers, and requires that a difference contains text.
func (c traceCase) requireNamed(text string, tamper func(k *fake)) {
	whole := c.k.clone()
	tamper(c.k)
	x := c.look()
	state := c.k.tables.Text() + c.k.sets.Text()
	c.k.restore(whole)
	if x.Verdict != explain.Differ || !slices.ContainsFunc(x.Differences, func(s string) bool { return strings.Contains(s, text) }) {
		c.t.Errorf("%+v: want %q, found %s %q\n%s", c.conn, text, x.Verdict, x.Differences, state)
	}
}

// clone copies what tampering changes.
func (k *fake) clone() *fake {
	x := &fake{device: k.device, routes: maps.Clone(k.routes), servers: map[key]*fakeServer{}, sets: xtables.NewSets(), tables: &xtables.System{Tables: map[string]xtables.Table{}}}
	for at, s := range k.servers {
		x.servers[at] = &fakeServer{s.server, maps.Clone(s.dests)}
	}
	for name, s := range k.sets.ByName {
		x.sets.ByName[name] = &xtables.SetContents{Set: s.Set, Members: maps.Clone(s.Members), Altered: s.Altered}
	}
	for name, t := range k.tables.Tables {
		x.tables.Tables[name] = maps.Clone(t)
	}
	return x
}

func (k *fake) restore(from *fake) {
	k.device, k.routes, k.servers = from.device, from.routes, from.servers
	k.sets.ByName, k.tables.Tables, k.tables.DormantTables, k.missingSettings = from.sets.ByName, from.tables.Tables, nil, nil
}

// Whatever a packet meets of IPVS, routes, sets and chains, Trace names what is missing,
// altered or added, and finds nothing before.
func TestTraceFindsTampering(t *testing.T) {
	for _, f := range service.Families {
		t.Run(f.String(), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				w := clusterWithNodeAddrs{generate.Cluster{T: t, Family: f}}
				ports := w.Ports()
				k := newFake(f)
				k.addForeignServers(f)
				c := traceCase{t: t, k: k, b: newBackendWithRules(f, k, Options{MasqueradeBit: 14}), want: service.New(1, w.Node(), ports)}
				apply(t, c.b, c.want)
				for range 2 {
					c.conn = w.Conn(ports)
					if _, ours := k.routes[c.conn.From]; !ours { // no client has such an address
						c.tamper()
					}
				}
			})
		})
	}
}

func (c traceCase) tamper() {
	if x := c.look(); x.Verdict != explain.Agree {
		c.t.Fatalf("%+v: %q before anything was changed\n%s%s%v", c.conn, x.Differences, c.k.tables.Text(), c.k.sets.Text(), c.k.servers)
	}
	c.requireNamed("vs.conntrack", func(k *fake) { k.missingSettings = []string{"net.ipv4.vs.conntrack = 1"} })
	c.requireNamed("interface kube-ipvs0 is missing", func(k *fake) { k.device = false })
	if _, routed := c.k.routes[c.conn.To.Addr()]; routed {
		a := c.conn.To.Addr()
		c.requireNamed("the local route to "+a.String()+" on interface kube-ipvs0 is missing", func(k *fake) { delete(k.routes, a) })
		c.requireNamed("has the source", func(k *fake) { k.routes[a] = localRoute{a, c.k.addrs[1]} })
	}
	c.tamperServers()
	for _, table := range slices.Sorted(maps.Keys(c.k.tables.Tables)) {
		hook := map[string]string{"nat": "PREROUTING", "mangle": "PREROUTING", "filter": "INPUT"}[table]
		if c.conn.Interface == "" {
			hook = "OUTPUT"
		}
		early := table == "nat" && route.Decide(c.want, c.conn).Action == route.Drop // it does not get that far
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
func (c traceCase) met() []key {
	var all []key
	add := func(to netip.AddrPort) {
		k := key{to.Addr(), to.Port(), c.conn.Protocol}
		if s := c.k.servers[k]; s != nil && s.owned() && len(s.dests) > 0 {
			all = append(all, k)
		}
	}
	if o := trace(c.k, c.conn); o.Action != route.Forward {
		return nil
	}
	x := newTracer(c.k, c.conn)
	hook := "PREROUTING"
	if c.conn.Interface == "" {
		hook = "OUTPUT"
	}
	x.runBeforeIPVS(hook)
	add(x.Conn.To)
	return all
}

func (c traceCase) tamperServers() {
	for _, at := range c.met() {
		name := "virtual server " + at.String()
		c.requireNamed(name+" is missing", func(k *fake) { delete(k.servers, at) })
		c.requireNamed(name+" has scheduler lc", func(k *fake) { k.servers[at].scheduler = "lc" })
		foreign := netip.AddrPortFrom(at.addr, 1)
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
	e := ipset.Entry{Addr: c.conn.To.Addr(), Protocol: c.conn.Protocol, Port: c.conn.To.Port()}
	local := newTracer(c.k, c.conn).Local(c.conn.To.Addr())
	dropped, restricted := "KUBE-VS-DROPPED", "KUBE-VS-RESTRICTED"
	if c.b.family == service.IPv6 {
		dropped, restricted = "KUBE-VS6-DROPPED", "KUBE-VS6-RESTRICTED"
	}
	s := c.k.sets.ByName[dropped]
	_, there := s.Members[e]
	_, early := c.k.sets.ByName[restricted].Members[e] // source ranges may drop it before that
	if there && !early {
		c.requireNamed("ipset "+dropped+" lacks the element "+s.Text(e), func(k *fake) { delete(k.sets.ByName[dropped].Members, e) })
	} else if route.Decide(c.want, c.conn).Action == route.Forward {
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
			if x := c.look(); x.Action == "drop" && !strings.HasSuffix(name, "-RESTRICTED") {
				continue // it does not get that far
			}
			c.requireNamed("ipset "+name+" lacks the element", func(k *fake) { delete(k.sets.ByName[name].Members, mine) })
		}
	}
}
