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
	if code != 0 || !strings.Contains(out, " connections: tracked to ") || !strings.Contains(out, ", ended") || strings.Contains(out, "go on to") {
		t.Errorf("exit %d, want three that ended in\n%s", code, out)
	}
}
