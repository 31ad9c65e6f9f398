// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"kubeproxy/test/kit"
	"kubeproxy/test/program"
)

// TestKilledWhileManifestsChange kills proxies while they program changes of other
// Services. An unchanged Service loses no connection. At the end the right rules are in
// force, and there are as many as before. KUBEPROXY_NIGHTLY=1 kills 30 in each mode.
func TestKilledWhileManifestsChange(t *testing.T) {
	withoutIPVS(t, killedUnderChanges)
}

func killedUnderChanges(t *testing.T, m mode) {
	c := newCluster(t, m)
	web := app{name: "web", number: 10}.on(c.webs()...)
	c.save(t, web)
	var variants []variant
	for n := range 3 {
		variants = append(variants, c.variant(t, n))
	}
	p := c.start(t)
	before, last := c.countRules(t), variants[len(variants)-1]
	loads, lines := c.loads(t, web), c.converse(t, "tcp", web, 1)
	kills := 4
	if kit.Nightly() {
		kills = 30
	}
	partial := 0
	for n := range kills {
		v, was := variants[n%(len(variants)-1)], program.Generation(t, c.Node)
		c.write(t, "many.json", v.text)
		if n%2 == 0 && m.iptables != "legacy" { // which the generation does not count
			kit.Until(t, "the proxy writes", func() bool { return program.Generation(t, c.Node) != was })
		} else {
			time.Sleep(time.Duration(rand.Int64N(int64(200 * time.Millisecond))))
		}
		p.Kill()
		if c.kernel.Diff(t, v.want) != "" {
			partial++
		}
		p = c.launch(t)
		p.AwaitLog(t, `"Programmed"`, "IPv4")
		p.AwaitLog(t, `"Programmed"`, "IPv6")
	}
	c.write(t, "many.json", last.text)
	c.awaitSnapshot(t, last.want)
	c.check(t, last.want, last.samples)
	lines.checkSameServer(t)
	t.Logf("%d kills, %d before all was in force; %d connections", kills, partial, connectionsOf(loads))
	lossless(t, loads)
	kit.Until(t, "as many rules as before", func() bool { return c.countRules(t) == before })
	p.Stop(t)
}

// countRules counts the rules and elements of the mode.
func (c *cluster) countRules(t *testing.T) int {
	t.Helper()
	if c.mode.iptables != "" {
		return strings.Count(c.listing(t), "\n")
	}
	return strings.Count(withoutClients(ours(t, c.Node)), "\n")
}
