// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"kubeproxy/common/explain"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/packet"
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
			if k.Text() != fresh.Text() {
				t.Fatalf("%d endpoints from %d, affinity %s: now\n%s\nnew process\n%s", n, first, affinity, k.Text(), fresh.Text())
			}
			return b.rules.Written[nat]
		}
		next(1, 1000)
		for _, n := range []int{999, 1000, 1001, 1000} {
			if written := next(1, n); written == 0 || written > 250 {
				t.Errorf("affinity %s: %d endpoints: %d rules written", affinity, n, written)
			}
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
		if k.Text() != fresh.Text() {
			t.Fatalf("policy %d: now\n%s\nnew process\n%s", i, k.Text(), fresh.Text())
		}
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
			if (after == before) != tc.goes {
				t.Errorf("goes %t, want %t:\n%s", !tc.goes, tc.goes, after)
			}
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
		if strings.Contains(k.Text(), "-j "+nodePortsChain) {
			t.Fatalf("an unknown node answers NodePorts:\n%s", k.Text())
		}
		apply(t, newBackend(service.IPv4, k), service.New(1, &service.Node{NodePorts: []netip.Prefix{before}}, ports))
		b := newBackend(service.IPv4, k)
		s := service.New(2, pending, ports)
		apply(t, b, s)
		other := *ports[0]
		other.Cluster = nil
		apply(t, b, s.With(3, pending, []service.Change{{Old: ports[0], New: &other}}))
		if !strings.Contains(k.Text(), name) {
			t.Fatalf("NodePorts are closed before the node is known:\n%s", k.Text())
		}
		apply(t, b, service.New(4, &service.Node{}, ports))
		if strings.Contains(k.Text(), "-j "+nodePortsChain) {
			t.Errorf("the node is known and has no address, and NodePorts are answered:\n%s", k.Text())
		}
	}
}
