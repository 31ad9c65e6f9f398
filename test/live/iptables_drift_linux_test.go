// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"strings"
	"testing"

	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

// tableTamperings are changes of others to whole tables of iptables-nft, which disable
// all rules in them.
var tableTamperings = []string{
	"nft add table ip nat '{ flags dormant; }'",
	"nft add table ip filter '{ flags dormant; }'",
}

// TestIPTablesDormant checks that a dormant table is activated again, by a running proxy
// and by a starting one, long before the sync period is over. See dormant in nft(8).
func TestIPTablesDormant(t *testing.T) {
	t.Parallel()
	alone := defaultMode()
	alone.flags, alone.iptables = append(alone.flags, "--proxy-mode=iptables", "--iptables-localhost-nodeports=false"), "nft"
	for _, m := range []mode{alone, inUserspace("nft")} {
		t.Run(m.proxyMode(), func(t *testing.T) {
			t.Parallel()
			m = m.withoutPeriodicSync()
			c := newCluster(t, m)
			web := app{name: "web", number: 10}.on(c.webs()...)
			none := app{name: "none", number: 11}
			c.save(t, web, none)
			p := c.start(t)
			want := c.awaitProgrammed(t)
			cells := c.cells([]*netlab.Host{c.Node, c.Host("shopper"), c.Host("customer")}, web, none)
			for _, deed := range tableTamperings {
				c.tamperIPVSAndAwaitRepair(t, p, deed)
				c.check(t, want, cells)
			}
			p.Stop(t)
			for _, deed := range tableTamperings {
				c.sh(t, deed+"\n")
			}
			c.start(t)
			c.check(t, want, cells)
		})
	}
}

// rulesAheadTamperings put rules ahead of ours, or ours behind others. Each is one change:
// of two, the first one may be repaired before the second one is made.
var rulesAheadTamperings = []string{
	"iptables --wait=60 -t nat -I PREROUTING 1 -j ACCEPT",
	"iptables --wait=60 -t nat -I OUTPUT 1 -p tcp -j RETURN",
	"iptables --wait=60 -t filter -I INPUT 1 -m comment --comment all -j ACCEPT",
	"iptables --wait=60 -t filter -I FORWARD 1 -j ACCEPT",
	"rule=$(iptables --wait=60 -t nat -S PREROUTING | grep -o -e '-j KUBE-.*')\n" +
		"iptables --wait=60 -t nat -D PREROUTING $rule\niptables --wait=60 -t nat -A PREROUTING $rule",
}

// TestIPTablesRulesAhead checks a foreign rule that accepts all packets ahead of our
// rules. Our rules move ahead of it, and the log contains its text. Rules that match less
// keep their place.
func TestIPTablesRulesAhead(t *testing.T) {
	t.Parallel()
	alone := defaultMode()
	alone.flags = append(alone.flags, "--proxy-mode=iptables", "--iptables-localhost-nodeports=false")
	for _, variant := range program.IPTablesVariants {
		alone.iptables = variant
		for _, m := range []mode{alone, inUserspace(variant)} {
			t.Run(m.proxyMode()+"/"+variant, func(t *testing.T) {
				t.Parallel()
				c := newCluster(t, m.withoutPeriodicSync())
				web := app{name: "web", number: 10}.on(c.webs()...)
				none := app{name: "none", number: 11}
				c.save(t, web, none)
				p := c.start(t)
				want := c.awaitProgrammed(t)
				cells := c.cells([]*netlab.Host{c.Node, c.Host("shopper"), c.Host("customer")}, web, none)
				c.sh(t, "iptables --wait=60 -t nat -I PREROUTING 1 -p icmp -j ACCEPT\n")
				for _, deed := range rulesAheadTamperings {
					c.tamperIPVSAndAwaitRepair(t, p, deed)
					c.check(t, want, cells)
				}
				p.AwaitLog(t, "hidden: rule", "-m comment --comment all -j ACCEPT")
				if listing := c.listing(t); !strings.Contains(listing, "-A PREROUTING -j ACCEPT\n-A PREROUTING -p icmp -j ACCEPT") {
					t.Errorf("rules of others were moved:\n%s", listing)
				}
			})
		}
	}
}
