// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"kubeproxy/test/kit"
	"kubeproxy/test/program"
)

// nftTamperings are changes to the table of a cluster that has a Service of number 10 and
// one with affinity of number 11.
var nftTamperings = []struct{ name, text string }{
	{"flushes a chain", "flush chain ip kube-services dispatch"},
	{"flushes a hook", "flush chain ip6 kube-services prerouting"},
	{"deletes elements", "delete element ip kube-services services { 10.96.0.10 . tcp . 80 }; " +
		"delete element ip6 kube-services nodeports { udp . 30010 }; delete element ip kube-services cluster-ips { 10.96.0.11 }"},
	{"adds an element", "add element ip kube-services services { 10.96.0.99 . tcp . 80 : drop }"},
	{"inserts a rule", "insert rule ip kube-services dispatch ip daddr 10.96.0.0/16 drop"},
	{"replaces what an address leads to", "delete element ip kube-services services { 10.96.0.10 . tcp . 80 }; " +
		"add element ip kube-services services { 10.96.0.10 . tcp . 80 : goto refuse }"},
	{"adds a chain of its own", "add chain ip6 kube-services mine { type filter hook forward priority 0; }; " +
		"add rule ip6 kube-services mine drop"},
	{"empties a map", "flush map ip kube-services endpoints"},
	{"deletes a table", "delete table ip kube-services"},
	{"deletes both tables", "delete table ip kube-services; delete table ip6 kube-services"},
}

// TestNFTablesRepairsTampering checks that changes to our rules are found, repaired and
// reported, and that foreign rules stay unchanged.
func TestNFTablesRepairsTampering(t *testing.T) {
	t.Parallel()
	m := defaultMode()
	// The one is the default, the other too long to repair anything.
	m.flags = append(m.flags, "--iptables-min-sync-period=1s", "--iptables-sync-period=1h")
	c := newCluster(t, m)
	nft(t, c.Node, foreignNFTables)
	theirs := foreign(t, c.Node)
	web := app{name: "web", number: 10}.on(c.webs()...)
	sticky := app{name: "sticky", number: 11, sticky: 600, external: "Local"}.on(c.webs()...)
	c.save(t, web, sticky)
	p := c.start(t)
	want := c.awaitProgrammed(t)
	rules := ours(t, c.Node)

	for _, deed := range nftTamperings {
		t.Run(deed.name, func(t *testing.T) {
			reported := p.Log.Count("Others had altered our rules")
			nft(t, c.Node, deed.text+"\n")
			begin := time.Now()
			c.awaitSnapshot(t, want)
			t.Logf("healed after %s", time.Since(begin))
			kit.Until(t, "a word of it in the log", func() bool { return p.Log.Count("Others had altered our rules") > reported })
			if diff := cmp.Diff(rules, ours(t, c.Node)); diff != "" {
				t.Errorf("our rules are not as they were (-before +after):\n%s", diff)
			}
		})
	}
	c.check(t, want, c.cells(c.clientHosts(), web, sticky))
	c.save(t, web.on(c.Host("web-1")))
	c.remove(t, "sticky.yaml")
	c.awaitProgrammed(t)
	if diff := cmp.Diff(theirs, foreign(t, c.Node)); diff != "" {
		t.Errorf("the rules of others changed (-before +after):\n%s", diff)
	}

	p.Stop(t)
	out, err := program.Run(t, c.Node, kubeProxy.Command("--cleanup"))
	if err != nil {
		t.Errorf("cleanup: %v\n%s", err, out)
	}
	if diff := cmp.Diff(theirs, nft(t, c.Node, "list ruleset\n", "-a")); diff != "" {
		t.Errorf("after a cleanup (-rules of others +all rules):\n%s", diff)
	}
}

// TestFlushedRuleset checks that our rules are soon back after a flush of the whole
// ruleset.
func TestFlushedRuleset(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	web := app{name: "web", number: 10}.on(c.webs()...)
	c.save(t, web)
	c.start(t)
	for range 3 {
		nft(t, c.Node, "flush ruleset\n")
		c.check(t, c.awaitProgrammed(t), c.cells(c.clientHosts()[:1], web))
	}
}
