// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

func TestExplainForeign(t *testing.T) {
	t.Parallel()
	explainsForeign(t, defaultMode())
}

func TestIPTablesExplainForeign(t *testing.T) { eachVariant(t, explainsForeign) }

func TestUserspaceExplainForeign(t *testing.T) { withUserspace(t, explainsForeign) }

func TestIPVSExplainForeign(t *testing.T) { withIPVS(t, explainsForeign) }

// othersRules are rules of others, what a client then gets, and what explain says. The
// Service has one endpoint, on another node.
var othersRules = []struct {
	name, rules string
	// source and to are what is asked. pods and node are clients: shopper and the node.
	source, to string
	outcome    netlab.Outcome
	code       int
	want       []string
	modes      string // the modes for which it counts, "" for all
}{
	{"prerouting drops", "chain first { type filter hook prerouting priority mangle; ip daddr 10.96.0.10 drop; }",
		"pod", "10.96.0.10:80", netlab.TimedOut, 1, []string{"handle", "of chain first of table inet other drops packets to 10.96.0.10:80", "look nft -a list chain inet other first"}, ""},
	{"forward rejects by a set", "set bad { type ipv4_addr . inet_service; flags interval; elements = { 10.244.2.0/24 . 8000-8100 } }; chain guard { type filter hook forward priority filter; ct state established accept; ip daddr . tcp dport @bad reject; }",
		"pod", "10.96.0.10:80", netlab.Refused, 1, []string{"of chain guard of table inet other refuses packets to 10.244.2.11:8080"}, "nftables iptables"},
	{"a policy drops", "chain guard { type filter hook forward priority 10; policy drop; ct state established accept; ct status snat accept; }",
		"pod", "10.96.0.10:80", netlab.TimedOut, 1, []string{"the policy of chain guard of table inet other drops packets to 10.244.2.11:8080"}, "nftables iptables"},
	{"a chain drops what was translated", "chain sub { iifname \"veth-*\" oifname eth0 drop; }; chain guard { type filter hook forward priority 10; ct status dnat ct direction original jump sub; }",
		"pod", "10.96.0.10:80", netlab.TimedOut, 1, []string{"of chain sub of table inet other drops packets to 10.244.2.11:8080"}, "nftables iptables"},
	{"input drops", "chain local { type filter hook input priority 0; iifname != lo meta l4proto tcp ct state new drop; }",
		"pod", "10.96.0.10:80", netlab.TimedOut, 1, []string{"of chain local of table inet other drops packets to"}, "userspace ipvs"},
	{"output drops", "chain out { type filter hook output priority 10; tcp dport 8080 drop; }",
		"pod", "10.96.0.10:80", netlab.TimedOut, 1, []string{"of chain out of table inet other drops packets to 10.244.2.11:8080"}, "userspace ipvs"},
	{"output drops the node's", "chain out { type filter hook output priority mangle; tcp dport vmap { 80 : drop, 443 : accept }; }",
		"node", "10.96.0.10:80", netlab.TimedOut, 1, []string{"of chain out of table inet other drops packets to 10.96.0.10:80"}, ""},
	{"postrouting drops", "chain post { type filter hook postrouting priority 10; meta mark != 0x1 ip daddr { 10.244.2.11, 10.244.2.12 } ct direction original drop; }",
		"pod", "10.96.0.10:80", netlab.TimedOut, 1, []string{"of chain post of table inet other drops packets to 10.244.2.11:8080"}, ""},
	{"another translates", "chain nat { type nat hook prerouting priority dstnat; ip daddr 10.96.0.10 tcp dport 80 dnat ip to 192.0.2.77:1; }",
		"pod", "10.96.0.10:80", netlab.TimedOut, 1, []string{"of chain nat of table inet other gives packets to 10.96.0.10:80 another destination"}, "nftables nft"},
	{"another translates first", "chain nat { type nat hook prerouting priority -110; ip daddr 10.96.0.10 tcp dport 80 dnat ip to 192.0.2.77:1; }",
		"pod", "10.96.0.10:80", netlab.TimedOut, 1, []string{"of chain nat of table inet other gives packets to 10.96.0.10:80 another destination"}, ""},
	{"untracked", "chain raw { type filter hook prerouting priority raw; ip daddr 10.96.0.10 notrack; }",
		"pod", "10.96.0.10:80", netlab.TimedOut, 1, []string{"of chain raw of table inet other exempts packets to 10.96.0.10:80 from connection tracking"}, "nftables iptables userspace"},
	{"a limit cannot be told", "chain pre { type filter hook prerouting priority 10; tcp dport 8080 limit rate over 1000/second drop; }",
		"pod", "10.96.0.10:80", netlab.Answered, 0, []string{"as far as the rules of others can be followed", "of chain pre of table inet other may drop it (expression limit)"}, "nftables iptables"},
	{"all is accepted", "chain guard { type filter hook forward priority 10; policy drop; ip saddr 10.244.0.0/16 accept; ip daddr 10.244.0.0/16 accept; }",
		"pod", "10.96.0.10:80", netlab.Answered, 0, []string{agrees, "inet other guard lets it pass"}, "nftables iptables"},
}

// othersCommands are rules of iptables of either variant, in the form of othersRules.
var othersCommands = []struct{ name, rule, stops string }{
	{"addresses", "FORWARD -s 10.244.1.0/24 -d 10.244.2.11 -j DROP", "drops"},
	{"matches", "FORWARD -p tcp -m conntrack --ctstate NEW -m addrtype ! --dst-type LOCAL -m multiport --dports 22,8000:9000 -j REJECT", "refuses"},
	{"interfaces", "FORWARD -i veth-+ -o eth0 -p tcp --dport 8080 -m mark ! --mark 0x1/0x1 -j DROP", "drops"},
}

// explainsForeign has rules of others stop a connection, and requires that explain names
// them, and that they do what it says.
func explainsForeign(t *testing.T, m mode) {
	c := newCluster(t, m)
	c.save(t, app{name: "web", number: 10, plain: true}.on(c.Host("web-3")))
	c.start(t)
	c.awaitProgrammed(t)
	clients := map[string]*netlab.Host{"pod": c.Host("shopper"), "node": c.Node}
	if m.proxyMode() == "nftables" {
		c.explainIPTables(t)
	}
	for _, r := range othersRules {
		if r.modes != "" && !strings.Contains(r.modes, m.proxyMode()) && (m.iptables == "" || m.userspace || !strings.Contains(r.modes, m.iptables)) {
			continue
		}
		t.Run(r.name, func(t *testing.T) {
			nft(t, c.Node, "table inet other { "+r.rules+"; }\n")
			t.Cleanup(func() { c.sh(t, "nft delete table inet other\nconntrack -F 2>/dev/null\n") })
			q := netlab.Query{Proto: "tcp", To: netip.MustParseAddrPort(r.to), Timeout: time.Second}
			a, err := clients[r.source].Ask(t.Context(), q)
			if err != nil || a.Outcome != r.outcome && (r.outcome == netlab.Answered || a.Outcome == netlab.Answered) {
				t.Errorf("%+v, %v; want %s", a, err, r.outcome)
			}
			source := r.source
			if source == "pod" {
				source = c.Host("shopper").IPv4.String()
			}
			c.explain(t, asked{source, r.to, r.code, r.want})
			if testing.Verbose() {
				_, out := c.runExplain(t, source, r.to)
				fmt.Println(out)
			}
		})
	}
}

// explainIPTables has rules of iptables stop a connection.
func (c *cluster) explainIPTables(t *testing.T) {
	t.Helper()
	pod := c.Host("shopper")
	for _, variant := range program.IPTablesVariants {
		for _, r := range othersCommands {
			t.Run(variant+" "+r.name, func(t *testing.T) {
				table := "ip filter"
				if variant == "legacy" {
					table = "filter of iptables-legacy"
				}
				c.explain(t, asked{pod.IPv4.String(), "10.96.0.10:80", 0, []string{agrees}})
				c.sh(t, "iptables-"+variant+" -A "+r.rule+"\n")
				t.Cleanup(func() { c.sh(t, "iptables-"+variant+" -D "+r.rule+"\n") })
				a, err := pod.Ask(t.Context(), netlab.Query{Proto: "tcp", To: netip.MustParseAddrPort("10.96.0.10:80"), Timeout: time.Second})
				if err != nil || a.Outcome == netlab.Answered {
					t.Errorf("%+v, %v", a, err)
				}
				c.explain(t, asked{pod.IPv4.String(), "10.96.0.10:80", 1, []string{"of chain FORWARD of table " + table + " " + r.stops + " packets to 10.244.2.11:8080"}})
			})
		}
	}
}
