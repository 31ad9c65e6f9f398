// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strconv"
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

// widePort returns a port with n endpoints, those from first on.
func widePort(first, n int) *service.Port {
	p := &service.Port{
		Name: service.PortName{Namespace: "shop", Name: "wide", Protocol: service.TCP}, Family: service.IPv4,
		Frontends: []service.Frontend{{Kind: service.ClusterIP, Addr: netip.MustParseAddr("10.96.0.10"), Port: 80}},
	}
	for i := first; i < first+n; i++ {
		a := netip.AddrFrom4([4]byte{10, 244, byte(i >> 8), byte(i)})
		p.Cluster = append(p.Cluster, service.Endpoint{Addr: netip.AddrPortFrom(a, 8080)})
	}
	return p
}

func wide(generation uint64, p *service.Port) *service.Snapshot {
	return service.New(generation, wideNode, []*service.Port{p})
}

var wideNode = &service.Node{NodePorts: service.AnyAddress()}

// shares adds up the probability of each endpoint below a chain with probability
// share, and returns with how many rules a connection is compared at most.
func shares(t *testing.T, k *fake, chain string, share float64, all map[string]float64) (longest int) {
	t.Helper()
	left := share
	for n, r := range k.Tables[nat][chain] {
		w := packet.Split(r)
		to, below := targetOf(w), 0
		if to == markClusterChain {
			continue
		}
		p := left
		if text := packet.Argument(w, "--probability"); text != "" {
			f, err := strconv.ParseFloat(text, 64)
			kit.Must(t, err)
			p = left * f
		}
		if to == "DNAT" {
			all[packet.Argument(w, "--to-destination")] += p
		} else {
			below = shares(t, k, to, p, all)
		}
		left -= p
		longest = max(longest, n+1+below)
	}
	return longest
}

// Each endpoint of a list has the same probability, and a connection is compared with
// few rules.
func TestListShares(t *testing.T) {
	for _, n := range []int{1, 2, 64, 65, 80, 1000, 5000} {
		k := newFake()
		apply(t, newBackend(service.IPv4, k), wide(1, widePort(1, n)))
		all := map[string]float64{}
		longest := shares(t, k, portChainName(clusterPrefix, widePort(1, 1)), 1, all)
		kit.Check(t, len(all) == n && longest <= 120,
			"%d endpoints: %d in the rules, %d rules for a connection", n, len(all), longest)
		for to, p := range all {
			kit.Check(t, math.Abs(p*float64(n)-1) <= 1e-4, "%d endpoints: %s has %g of the connections", n, to, p)
		}
	}
}

// One of many endpoints that leaves or comes writes its branch and what leads there, and
// the tables are then those of a new process.
func TestListChange(t *testing.T) {
	for _, affinity := range []time.Duration{0, time.Hour} {
		k := newFake()
		b := newBackend(service.IPv4, k)
		generation := uint64(0)
		// next applies a port and returns how many rules were written.
		next := func(first, n int) int {
			p := widePort(first, n)
			p.Affinity = affinity
			generation++
			apply(t, b, wide(generation, p))
			fresh := newFake()
			apply(t, newBackend(service.IPv4, fresh), wide(generation, p))
			kit.Need(t, k.Text() == fresh.Text(), "%d endpoints from %d, affinity %s: now\n%s\nnew process\n%s", n, first, affinity, k.Text(), fresh.Text())
			return b.rules.Written[nat]
		}
		next(1, 1000)
		for _, n := range []int{999, 1000, 1001, 1000} {
			written := next(1, n)
			kit.Check(t, written != 0 && written <= 250, "affinity %s: %d endpoints: %d rules written", affinity, n, written)
		}
		for _, n := range []int{64, 65, 64, 2, 300, 0, 70, 0} {
			next(1, n)
		}
		next(1, 500)
		next(250, 500)
	}
}

// A list that no frontend uses any more leaves no branch.
func TestListOfOtherPolicy(t *testing.T) {
	k := newFake()
	b := newBackend(service.IPv4, k)
	p := widePort(1, 200)
	p.Local = p.Cluster
	local := *p
	local.Internal = service.PolicyLocal
	for i, q := range []*service.Port{p, &local, p} {
		apply(t, b, wide(uint64(i+1), q))
		fresh := newFake()
		apply(t, newBackend(service.IPv4, fresh), wide(1, q))
		kit.Need(t, k.Text() == fresh.Text(), "policy %d: now\n%s\nnew process\n%s", i, k.Text(), fresh.Text())
	}
}

// Explain shows the endpoints of all branches as one draw.
func TestTraceList(t *testing.T) {
	k := newFake()
	b := newBackend(service.IPv4, k)
	want := wide(1, widePort(1, 200))
	apply(t, b, want)
	w, err := b.Trace(t.Context(), want, route.Conn{
		Protocol: service.TCP, From: netip.MustParseAddr("10.244.9.9"), To: netip.MustParseAddrPort("10.96.0.10:80"), Interface: "eth0",
	}, generate.IsNodeLocal)
	kit.Need(t, err == nil && len(w.Faults) == 0 && len(w.Targets) == 200,
		"%d targets, faults %q, %v", len(w.Targets), w.Faults, err)
	lists := slices.DeleteFunc(slices.Clone(w.Hops), func(h explain.Hop) bool { return !strings.HasPrefix(h.Does, "one of ") })
	kit.Check(t, len(lists) == 1 && strings.HasPrefix(lists[0].Does, "one of 200 endpoints: "), "hops %+v", w.Hops)
}

// TestJumpsBehindWhatPasses inserts foreign rules ahead of ours. If one lets all packets
// pass, our rule moves ahead of it, the move is reported, and the foreign rule stays.
func TestJumpsBehindWhatPasses(t *testing.T) {
	for name, tc := range map[string]struct {
		in    id
		rule  string
		moves bool
	}{
		"accept":             {id{nat, "PREROUTING"}, "-j ACCEPT", true},
		"return":             {id{nat, "OUTPUT"}, "-j RETURN", true},
		"translate":          {id{nat, "PREROUTING"}, "-p tcp -j DNAT --to-destination :15001", true},
		"with a comment":     {id{filter, "INPUT"}, `-m comment --comment "-j DROP" -j ACCEPT`, true},
		"forward":            {id{filter, "FORWARD"}, "-j ACCEPT", true},
		"masquerade":         {id{nat, "POSTROUTING"}, "-j MASQUERADE", true},
		"drop":               {id{filter, "FORWARD"}, "-j DROP", false},
		"some":               {id{nat, "PREROUTING"}, "-s 192.0.2.0/24 -j ACCEPT", false},
		"known connections":  {id{filter, "INPUT"}, "-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", false},
		"another protocol":   {id{filter, "INPUT"}, "-p icmp -j ACCEPT", false},
		"to another chain":   {id{nat, "PREROUTING"}, "-j CNI-HOSTPORT-DNAT", false},
		"that does not end":  {id{nat, "PREROUTING"}, "-j LOG", false},
		"without any effect": {id{nat, "PREROUTING"}, "-p tcp", false},
	} {
		t.Run(name, func(t *testing.T) {
			k := newFake()
			b := newBackend(service.IPv4, k)
			apply(t, b, simple(3))
			k.Tables[nat]["CNI-HOSTPORT-DNAT"] = nil
			rules := k.Tables[tc.in.table][tc.in.name]
			k.Tables[tc.in.table][tc.in.name], k.Dirty = slices.Insert(slices.Clone(rules), 0, tc.rule), true
			p := apply(t, b, simple(3))
			got := k.Tables[tc.in.table][tc.in.name]
			want := append([]string{tc.rule}, rules...)
			if tc.moves {
				want = append(slices.Clone(rules), tc.rule)
			}
			kit.Check(t, slices.Equal(got, want),
				"chain %s is\n%s\nwant\n%s", tc.in.name, strings.Join(got, "\n"), strings.Join(want, "\n"))
			line := strings.Join(p.Outcome().Drift, "\n")
			if reported := strings.Contains(line, "hidden: rule") && strings.Contains(line, "-j "+targetOf(packet.Split(tc.rule))); reported != tc.moves {
				t.Errorf("reported %t, want %t: %q", reported, tc.moves, p.Outcome().Drift)
			}
		})
	}
}

// TestSecondJumpBehindWhatPasses has a jump twice, before and behind a rule that lets
// all packets pass. One stays, at the position where it works.
func TestSecondJumpBehindWhatPasses(t *testing.T) {
	k := newFake()
	b := newBackend(service.IPv4, k)
	apply(t, b, simple(3))
	const ours, accept = "-j KUBE-SERVICES", "-j ACCEPT"
	k.Tables[nat]["PREROUTING"], k.Dirty = []string{ours, accept, ours}, true
	apply(t, b, simple(3))
	got := k.Tables[nat]["PREROUTING"]
	kit.Check(t, slices.Equal(got, []string{ours, accept}), "chain PREROUTING is %q", got)
}

// TestSurplusJumpsGo adds jumps to our chains beside ours. Those that a service proxy
// makes are removed, wherever they are, and reported. Those of others stay.
func TestSurplusJumpsGo(t *testing.T) {
	const comment = `-m comment --comment "kubernetes health check service ports" `
	for name, tc := range map[string]struct {
		in    id
		rule  string
		first bool // before ours
		goes  bool
	}{
		"a second one of ours":        {id{nat, "PREROUTING"}, "-j KUBE-SERVICES", true, true},
		"one of ours with a comment":  {id{filter, "FORWARD"}, comment + "-j KUBE-FORWARD", false, true},
		"the same before ours":        {id{filter, "INPUT"}, comment + newOnly + "-j KUBE-SERVICES", true, true},
		"without our match":           {id{filter, "INPUT"}, "-j KUBE-SERVICES", true, true},
		"of kube-proxy":               {id{filter, "INPUT"}, comment + "-j KUBE-NODEPORTS", true, true},
		"of its mode userspace":       {id{nat, "PREROUTING"}, "-m addrtype --dst-type LOCAL -j KUBE-NODEPORTS", true, true},
		"from another chain":          {id{nat, "POSTROUTING"}, "-j KUBE-SERVICES", true, true},
		"with a match of somebody's":  {id{nat, "PREROUTING"}, "-s 192.0.2.1/32 -j KUBE-SERVICES", true, false},
		"to what marks":               {id{nat, "PREROUTING"}, "-j KUBE-MARK-MASQ", true, false},
		"to a chain that is not ours": {id{filter, "INPUT"}, "-j KUBE-FIREWALL", true, false},
	} {
		t.Run(name, func(t *testing.T) {
			k := newFake()
			b := newBackend(service.IPv4, k)
			apply(t, b, simple(3))
			before := k.Text()
			k.Tables[filter]["KUBE-FIREWALL"] = nil
			rules := k.Tables[tc.in.table][tc.in.name]
			if tc.first {
				rules = slices.Insert(rules, 0, tc.rule)
			} else {
				rules = append(rules, tc.rule)
			}
			k.Tables[tc.in.table][tc.in.name], k.Dirty = rules, true
			p := apply(t, b, simple(3))
			delete(k.Tables[filter], "KUBE-FIREWALL")
			after := k.Text()
			if tc.goes {
				after = strings.ReplaceAll(after, comment, "")
			}
			kit.Check(t, (after == before) == tc.goes, "goes %t, want %t:\n%s", !tc.goes, tc.goes, after)
			if reported := strings.Contains(strings.Join(p.Outcome().Drift, "\n"), "foreign: rule"); reported != tc.goes {
				t.Errorf("reported %t, want %t: %q", reported, tc.goes, p.Outcome().Drift)
			}
		})
	}
}

// TestNodePortsOfKubeProxy takes over what kube-proxy leads to NodePorts.
func TestNodePortsOfKubeProxy(t *testing.T) {
	const last = `-m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain" `
	for rule, want := range map[string]string{
		last + "-m addrtype --dst-type LOCAL -j KUBE-NODEPORTS":                       "[0.0.0.0/0]",
		"! -d 127.0.0.0/8 " + last + "-m addrtype --dst-type LOCAL -j KUBE-NODEPORTS": "[0.0.0.0/0]",
		"-d 192.0.2.1/32 " + last + "-j KUBE-NODEPORTS":                               "[192.0.2.1/32]",
		"-d 192.0.2.1/32 -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS":              "[192.0.2.1/32]",
		// Not every address in it is the node's.
		"-d 192.0.2.0/24 " + last + "-j KUBE-NODEPORTS":          "[]",
		"-i eth0 -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS": "[]",
		"-d 2001:db8::1/128 " + last + "-j KUBE-NODEPORTS":       "[]",
		"-j KUBE-NODEPORTS": "[]",
		last + "-m addrtype --dst-type LOCAL -j KUBE-SVC-AAAAAAAAAA": "[]",
	} {
		b := newBackend(service.IPv4, newFake())
		h := parse("*nat\n:KUBE-SERVICES - [0:0]\n-A KUBE-SERVICES "+rule+"\nCOMMIT\n", nil)
		kit.Equal(t, fmt.Sprint(b.nodePortsIn(h)), want, "%s", rule)
	}
}

// TestPendingNodePorts restarts while the node's addresses are not known. The
// addresses that answered NodePorts do so until they are.
func TestPendingNodePorts(t *testing.T) {
	for name, before := range map[string]netip.Prefix{
		"-d 192.0.2.1/32 -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS":  netip.MustParsePrefix("192.0.2.1/32"),
		"-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS": netip.MustParsePrefix("0.0.0.0/0"),
	} {
		k := newFake()
		pending := &service.Node{NodePortsPending: [2]bool{true, true}}
		ports := []*service.Port{simplePort(1)}
		ports[0].Frontends = append(ports[0].Frontends, service.Frontend{Kind: service.NodePort, Port: 30080})
		apply(t, newBackend(service.IPv4, k), service.New(1, pending, ports))
		kit.Need(t, !strings.Contains(k.Text(), "-j "+nodePortsChain), "an unknown node answers NodePorts:\n%s", k.Text())
		apply(t, newBackend(service.IPv4, k), service.New(1, &service.Node{NodePorts: []netip.Prefix{before}}, ports))
		b := newBackend(service.IPv4, k)
		s := service.New(2, pending, ports)
		apply(t, b, s)
		other := *ports[0]
		other.Cluster = nil
		apply(t, b, s.With(3, pending, []service.Change{{Old: ports[0], New: &other}}))
		kit.Need(t, strings.Contains(k.Text(), name), "NodePorts are closed before the node is known:\n%s", k.Text())
		apply(t, b, service.New(4, &service.Node{}, ports))
		kit.Check(t, !strings.Contains(k.Text(), "-j "+nodePortsChain), "the node is known and has no address, and NodePorts are answered:\n%s", k.Text())
	}
}

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
		is := w.Remembered == p.Cluster[1].Addr && len(w.Targets) == 1
		kit.Check(t, is == remembered, "%s ago: targets %v, remembered %s, want that: %t", age, w.Targets, w.Remembered, remembered)
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
			kit.Check(t, w.Action == c.action && strings.Join(to, " ") == c.targets && strings.Contains(strings.Join(doubts, " "), c.doubt),
				"%v to %v, doubts about %v, of %+v", w.Action, to, doubts, w.Others)
		})
	}
}
