// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"kubeproxy/common/explain"
	"kubeproxy/common/service"
	"kubeproxy/test/netlab"
)

// ruleMaker makes tables that others could have, with what explain can evaluate.
type ruleMaker struct {
	*rand.Rand
	family service.Family
	client *netlab.Host
	chains []string
}

func pick[T any](r *ruleMaker, all ...T) T { return all[r.IntN(len(all))] }

// ip is the word of nft for the family.
func (r *ruleMaker) ip() string { return pick2(r.family == service.IPv4, "ip", "ip6") }

func pick2(first bool, a, b string) string {
	if first {
		return a
	}
	return b
}

// addr returns an address or prefix that matters now and then.
func (r *ruleMaker) addr() string {
	if r.family == service.IPv4 {
		return pick(r, "10.96.0.10", "10.96.0.11", "10.244.1.11", "10.244.2.11", "10.244.1.0/24", "10.244.0.0/16", "192.0.2.10", r.client.IPv4.String(), "192.0.2.0/25", "203.0.113.0/24")
	}
	return pick(r, "fd00:10:96::a", "fd00:10:96::b", "fd00:10:244:1::11", "fd00:10:244:2::11", "fd00:10:244:1::/64", "fd00:10:244::/48", r.client.IPv6.String(), "2001:db8:2::/64", "2001:db8:3::/64")
}

// single returns an address without a prefix.
func (r *ruleMaker) single() string {
	for {
		if a := r.addr(); !strings.Contains(a, "/") {
			return a
		}
	}
}

// distinct joins n different results of draw.
func (r *ruleMaker) distinct(n int, draw func() string) string {
	var all []string
	for range n {
		if s := draw(); !strings.Contains(strings.Join(all, "|")+"|", s+"|") {
			all = append(all, s)
		}
	}
	return strings.Join(all, ", ")
}

func (r *ruleMaker) port() string { return pick(r, "80", "8080", "443", "30010", "53") }

func (r *ruleMaker) not() string { return pick(r, "", "", "!= ") }

// condition returns one of the matches that explain evaluates at every hook.
func (r *ruleMaker) condition(hook string) string {
	side := pick(r, "saddr", "daddr")
	device := pick(r, "iifname", "oifname")
	switch hook {
	case "prerouting":
		device = "iifname"
	case "output":
		device = "oifname"
	}
	return pick(r,
		func() string { return r.ip() + " " + side + " " + r.not() + r.addr() },
		func() string { return r.ip() + " daddr { " + r.distinct(3, r.single) + " }" },
		func() string { return r.ip() + " daddr != { " + r.distinct(2, r.single) + " }" },
		func() string { return "th dport " + r.not() + r.port() },
		func() string {
			return pick(r, "tcp", "udp") + " dport " + pick(r, "1-1023", "8000-9000", "{ 80, 8080 }", "{ 22, 79-81, 8000-8100 }", "< 1024", ">= 8080", "!= 80")
		},
		func() string { return "meta l4proto " + r.not() + pick(r, "tcp", "udp") },
		func() string {
			return device + " " + r.not() + pick(r, `"eth0"`, `"veth-*"`, `"lo"`, `"veth-web-1"`, `"veth-shopper"`)
		},
		func() string { return "ct state " + pick(r, "new", "established,related", "new,untracked", "invalid") },
		func() string { return "ct status " + pick(r, "dnat", "& dnat == 0") },
		func() string { return "ct original " + r.ip() + " daddr " + r.single() },
		func() string { return "meta l4proto tcp ct original proto-dst " + r.port() },
		func() string { return "meta mark & 0xff " + pick(r, "== ", "!= ") + pick(r, "0", "1", "3") },
		func() string { return "ct mark " + pick(r, "0", "7") },
		func() string { return "fib daddr type " + r.not() + pick(r, "local", "unicast") },
		func() string {
			return r.ip() + " daddr . th dport { " + r.distinct(3, func() string { return r.single() + " . " + r.port() }) + " }"
		},
		func() string { return r.ip() + " saddr . " + r.ip() + " daddr { " + r.addr() + " . " + r.addr() + " }" },
		func() string { return "tcp flags & (fin|syn|rst|ack) == syn" },
		func() string { return "meta nfproto " + pick(r, "ipv4", "ipv6") },
	)()
}

// verdict returns what ends a rule, if anything. Chains lead to later ones only.
func (r *ruleMaker) verdict(chain int) string {
	all := []string{"drop", "accept", "accept", "return", "meta mark set 1", "meta mark set meta mark or 0x3", "ct mark set 7", "counter"}
	if chain+1 < len(r.chains) {
		to := r.chains[chain+1+r.IntN(len(r.chains)-chain-1)]
		all = append(all, "jump "+to, "jump "+to, "jump "+to, "goto "+to)
	}
	return pick(r, all...)
}

func (r *ruleMaker) rule(hook string, chain int) string {
	if r.IntN(6) == 0 {
		values := func() string { return pick(r, "drop", "accept", "return") }
		return pick(r,
			"th dport vmap { 80 : "+values()+", 8080 : "+values()+", 9000-9999 : drop }",
			r.ip()+" daddr vmap { "+r.distinct(1, r.single)+" : "+values()+" }")
	}
	var all []string
	for range 1 + r.IntN(3) {
		all = append(all, r.condition(hook))
	}
	return strings.Join(append(all, r.verdict(chain)), " ")
}

// table returns a table of one base chain and some others. Answers pass, and so does what
// the command asks the proxy.
func (r *ruleMaker) table(hook string) string {
	r.chains = []string{"base", "one", "two", "three"}
	var b strings.Builder
	fmt.Fprintf(&b, "table inet other {\n")
	for i := len(r.chains) - 1; i >= 0; i-- {
		fmt.Fprintf(&b, "chain %s {\n", r.chains[i])
		if i == 0 {
			fmt.Fprintf(&b, "type filter hook %s priority %d; policy %s;\nct direction reply accept\nct state established accept\nip daddr 127.0.0.0/8 accept\nmeta l4proto { icmp, ipv6-icmp } accept\n", hook, pick(r, -150, -110, -50, 0, 50, 150), pick(r, "accept", "accept", "drop"))
		}
		for range 1 + r.IntN(4) {
			fmt.Fprintf(&b, "%s\n", r.rule(hook, i))
		}
		fmt.Fprintf(&b, "}\n")
	}
	return b.String() + "}\n"
}

// TestExplainRandomForeign has random tables of others meet connections, and requires that a
// connection is answered exactly if explain says that nothing stops it.
func TestExplainRandomForeign(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	c.save(t, app{name: "far", number: 10, plain: true}.on(c.Host("web-3")), app{name: "near", number: 11, plain: true}.on(c.Host("web-1")))
	c.start(t)
	c.awaitProgrammed(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := &ruleMaker{Rand: rand.New(rand.NewPCG(seed, 1))}
	results := map[string]int{}
	const tables = 60
	for range tables {
		result := c.explainRandom(t, r)
		results[result]++
	}
	t.Logf("%v", results)
	if results["told to pass"] < tables/10 || results["told to end"] < tables/10 || results["not told"] > tables/3 {
		t.Errorf("of %d tables, %v", tables, results)
	}
}

// explainRandom compares explain with a packet for one table.
func (c *cluster) explainRandom(t *testing.T, r *ruleMaker) string {
	t.Helper()
	r.family = service.Families[r.IntN(2)]
	r.client = pick(r, c.Host("shopper"), c.Host("customer"), c.Node)
	hook := pick(r, "prerouting", "forward", "forward", "postrouting")
	source := r.client.IPv4.String()
	to := netip.AddrPortFrom(pick(r, netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("10.96.0.11")), 80)
	if r.family == service.IPv6 {
		source = r.client.IPv6.String()
		to = netip.AddrPortFrom(pick(r, netip.MustParseAddr("fd00:10:96::a"), netip.MustParseAddr("fd00:10:96::b")), 80)
	}
	if r.client == c.Node {
		source, hook = "node", pick(r, "output", "postrouting")
	}
	proto := pick(r, "tcp", "udp")
	table := r.table(hook)
	for c.sh(t, "if nft -c -f - 2>&1 >/dev/null <<'END'\n"+table+"END\nthen echo valid; fi\n") != "valid\n" { // such as two protocols in a rule
		table = r.table(hook)
	}
	nft(t, c.Node, table)
	defer nft(t, c.Node, "delete table inet other\n")
	var a netlab.Answer
	var asked sync.WaitGroup
	asked.Go(func() { // meanwhile explain reads the rules
		var err error
		if a, err = r.client.Ask(t.Context(), netlab.Query{Proto: proto, To: to, Timeout: 700 * time.Millisecond}); err != nil {
			t.Error(err)
		}
	})
	_, out := c.runExplain(t, source, to.String()+"/"+proto, "-o", "json")
	asked.Wait()
	var x explain.Explanation
	if err := json.Unmarshal([]byte(out), &x); err != nil {
		t.Fatalf("%v in\n%s", err, out)
	}
	for _, o := range x.Installed.Others {
		if len(o.Doubts) > 0 && x.Verdict == explain.Agree {
			t.Logf("%v", o.Doubts)
			return "not told"
		}
		if o.Does == explain.Unmarks { // an answer comes if its way leads through this node anyhow
			return "not told"
		}
	}
	if (x.Verdict == explain.Agree) != (a.Outcome == netlab.Answered) {
		t.Errorf("%s %s -> %s: explain says %s %q, the packet was %s, with\n%s%v", proto, source, to, x.Verdict, x.Differences, a.Outcome, table, x.Installed.Others)
	}
	return pick2(x.Verdict == explain.Agree, "told to pass", "told to end")
}
