// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"kubeproxy/test/netlab"
)

// faultModes are modes in which faults of endpoints are tried.
var faultModes = []string{"nftables", "iptables-nft", "userspace"}

// TestExplainEvidence has connections that ended, that nobody answers, and that a rule of
// others leads astray, and looks at what explain makes of their entries.
func TestExplainEvidence(t *testing.T) {
	for _, name := range faultModes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, modeNamed(name))
			web := app{name: "web", number: 10, plain: true}
			c.start(t, web.on(c.Host("web-3")))
			c.awaitProgrammed(t)
			to, client := "10.96.0.10:80", c.Host("shopper").IPv4.String()
			ask := func(times int, outcome netlab.Outcome) {
				t.Helper()
				for range times {
					q := netlab.Query{Proto: "tcp", To: netip.MustParseAddrPort(to)}
					if outcome != netlab.Answered {
						q.Timeout = netlab.SilenceTimeout
					}
					if a, err := c.Host("shopper").Ask(t.Context(), q); err != nil || a.Outcome != outcome {
						t.Errorf("%s, %v; want %s", a.Outcome, err, outcome)
					}
				}
			}
			c.endedConnections(t, web, func() { ask(3, netlab.Answered) })

			nft(t, c.Node, "table ip other { chain nat { type nat hook prerouting priority -110; ip daddr 10.96.0.10 tcp dport 80 dnat ip to 192.0.2.77:1; }; }\n")
			ask(4, netlab.TimedOut)
			code, out := c.runExplain(t, client, to)
			text := strings.Join(strings.Fields(out), " ")
			rule, entries := strings.Index(text, "gives packets to 10.96.0.10:80 another destination, and"), strings.Index(text, " entries of connection tracking lead to 192.0.2.77:1, which is no endpoint for it")
			fixes := regexp.MustCompile(`(?m)^  fix  (conntrack .*)$`).FindAllStringSubmatch(out, -1)
			if code != 1 || rule < 0 || entries < rule || len(fixes) != 1 {
				t.Fatalf("exit %d, %d commands; want the rule, the entries and one command in\n%s", code, len(fixes), out)
			}
			nft(t, c.Node, "delete table ip other\n")
			ask(1, netlab.Answered)
			c.explain(t, asked{client, to, 0, []string{" connections: tracked to 192.0.2.77:1, not answered", agrees}})
			c.shell(t, fixes[0][1])
			if _, out := c.runExplain(t, client, to); strings.Contains(out, "192.0.2.77") || !strings.Contains(out, ", ended") {
				t.Errorf("%q deletes other entries in\n%s", fixes[0][1], out)
			}

			if name == "userspace" { // which answers its clients itself
				return
			}
			nft(t, c.Host("web-1"), "table ip drops { chain in { type filter hook input priority 0; tcp dport 8080 drop; }; }\n")
			ask(3, netlab.TimedOut)
			c.explain(t, asked{client, to, 0, []string{" connections: tracked to 10.244.1.11:8080, not answered yet", agrees,
				"But look further: ", " connections of the last minute to 10.244.1.11:8080 got no answer"}})
		})
	}
}

// endedConnections has connections to an endpoint end, which then goes.
func (c *cluster) endedConnections(t *testing.T, web app, connect func()) {
	t.Helper()
	connect()
	c.awaitProgrammed(t, web.on(c.Host("web-1")))
	code, out := c.runExplain(t, c.Host("shopper").IPv4.String(), "10.96.0.10:80")
	if code != 0 || !strings.Contains(out, " connections: tracked to ") || !strings.Contains(out, ", ended") || strings.Contains(out, "go on to") || strings.Contains(out, "Rules of others") {
		t.Errorf("exit %d, want three that ended, and no rules of others in\n%s", code, out)
	}
}

// probeFault is what the only endpoint has, or the way to it, and what a probe from web-2 finds.
type probeFault struct {
	name, endpoint, to string
	rules, at          string // of nft, and the host that has them
	code               int
	want               []string
}

var probeFaults = []probeFault{
	{"all works", "web-3", "10.96.0.10:80", "", "", 0, []string{
		"Dialed over tcp: FROM TO RESULT TIME PACKETS here endpoint 10.244.2.11:8080 connected", "client endpoint 10.244.2.11:8080 connected", "1500 bytes arrive", "client 10.96.0.10:80 connected", agrees}},
	{"all works over UDP", "web-1", "10.96.0.10:80/udp", "", "", 0, []string{"Dialed over udp", "client 10.96.0.10:80 answered"}},
	{"all works over IPv6", "web-3", "[fd00:10:96::a]:80", "", "", 0, []string{"client endpoint [fd00:10:244:2::11]:8080 connected", "1500 bytes arrive"}},
	{"nothing listens", "shopper", "10.96.0.10:80", "", "", 1, []string{"client endpoint 10.244.1.13:8080 refused",
		"The probe fails: endpoint 10.244.1.13:8080 refuses connections: nothing listens on port 8080/tcp there", "advice compare targetPort"}},
	{"nothing listens over UDP", "shopper", "10.96.0.10:80/udp", "", "", 1, []string{"client endpoint 10.244.1.13:8080 refused", "nothing listens on port 8080/udp there"}},
	{"the endpoint drops", "web-1", "10.96.0.10:80", "table ip t { chain in { type filter hook input priority 0; tcp dport 8080 drop; }; }", "web-1", 1,
		[]string{"client endpoint 10.244.1.11:8080 timed out ", "endpoint 10.244.1.11:8080 does not answer within "}},
	{"the endpoint drops over UDP", "web-1", "10.96.0.10:80/udp", "table ip t { chain in { type filter hook input priority 0; udp dport 8080 drop; }; }", "web-1", 0,
		[]string{"client endpoint 10.244.1.11:8080 no answer ", "no answer over UDP may also come from a program that works"}},
	{"the endpoint drops the client", "web-3", "10.96.0.10:80", "table ip t { chain in { type filter hook input priority 0; ip saddr 10.244.1.12 tcp dport 8080 drop; }; }", "web-3", 1,
		[]string{"endpoint 10.244.2.11:8080 answers the node, and not the client: timed out"}},
	{"the way refuses", "web-3", "10.96.0.10:80", "table ip t { chain in { type filter hook forward priority 0; tcp dport 8080 reject with icmp host-unreachable; }; }", "node-b", 1,
		[]string{"no route", "endpoint 10.244.2.11:8080 cannot be reached: no route to host"}},
	{"large packets are lost", "web-3", "10.96.0.10:80", "table ip t { chain in { type filter hook forward priority 0; ip daddr 10.244.2.11 ip length > 1400 drop; }; }", "node-b", 1,
		[]string{"1500 bytes lost", "packets of 1500 bytes get lost on the way to endpoint 10.244.2.11:8080, small ones arrive"}},
	{"closed ports are silent", "web-3", "10.96.0.10:80", "table ip t { chain in { type filter hook input priority 0; udp dport 33434 drop; }; }", "web-3", 0,
		[]string{"whether large packets arrive was not told"}},
	{"the Service fails", "web-3", "10.96.0.10:80", "table ip t { chain in { type filter hook prerouting priority -300; ip daddr 10.96.0.10 drop; }; }", "node-a", 1,
		[]string{"the Service fails at 10.96.0.10:80, though its endpoints answer: timed out"}},
}

// TestProbe has faults of endpoints that the rules of the node do not show.
func TestProbe(t *testing.T) {
	for _, name := range faultModes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, modeNamed(name))
			web := app{name: "web", number: 10, plain: true}
			p := c.start(t, web.on(c.Host("web-1")))
			c.inhabit(t, "web-2")
			c.inhabit(t, "customer")
			for _, f := range probeFaults {
				t.Run(f.name, func(t *testing.T) {
					c.awaitProgrammed(t, web.on(c.Host(f.endpoint)))
					c.probes(t, f)
				})
			}
			p.AwaitLog(t, "explain --probe dials", `client="10.244.1.12"`, `destination="10.96.0.10:80/tcp"`, `service="shop/web"`, "endpoints=1")
			c.onePacket(t, web)
		})
	}
}

// probes makes a fault, and looks at what a probe from web-2 finds.
func (c *cluster) probes(t *testing.T, f probeFault) {
	t.Helper()
	if f.rules != "" {
		nft(t, c.Host(f.at), f.rules)
		t.Cleanup(func() { nft(t, c.Host(f.at), "delete table ip t\n") })
	}
	client := c.Host("web-2").IPv4
	if strings.HasPrefix(f.to, "[") {
		client = c.Host("web-2").IPv6
	}
	code, out := c.runExplain(t, client.String(), f.to, "--probe")
	text := strings.Join(strings.Fields(out), " ")
	for _, w := range f.want {
		if code != f.code || !strings.Contains(text, w) {
			t.Errorf("exit %d, want %d; want %q in\n%s", code, f.code, w, out)
		}
	}
}

// onePacket counts the packets of a probe. A client that is elsewhere is not dialed from.
func (c *cluster) onePacket(t *testing.T, web app) {
	t.Helper()
	web1 := c.Host("web-1")
	c.awaitProgrammed(t, web.on(web1))
	nft(t, web1, "table ip t { chain in { type filter hook input priority 0; tcp dport 8080 counter drop; }; }\n")
	code, out := c.runExplain(t, "10.244.2.99", "10.244.1.11:8080", "--probe")
	if counted := nft(t, web1, "list table ip t\n"); code != 1 || !strings.Contains(counted, "counter packets 1 bytes") || !strings.Contains(out, "not dialed from the client 10.244.2.99") {
		t.Errorf("exit %d, packets: %s\n%s", code, counted, out)
	}
}
