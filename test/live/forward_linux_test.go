// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"net/netip"
	"testing"

	"kubeproxy/test/netlab"
)

// dropForward makes the node's firewall drop forwarded packets by default, as container
// engines do.
func (c *cluster) dropForward(t *testing.T) {
	t.Helper()
	c.restoreBothFamilies(t, "*filter\n:FORWARD DROP [0:0]\nCOMMIT\n")
	q := netlab.Query{Proto: "tcp", To: netip.AddrPortFrom(c.Host("web-1").IPv4, target), Timeout: netlab.SilenceTimeout}
	if a, err := c.Host("customer").Ask(t.Context(), q); err != nil || a.Outcome != netlab.TimedOut {
		t.Fatalf("to an endpoint itself: %s, %v; want nothing to be passed on", a.Outcome, err)
	}
}

// TestIPTablesForwardClosed checks that masqueraded traffic reaches its endpoints on such
// a node. Traffic between pods must be allowed by others, as without a proxy.
func TestIPTablesForwardClosed(t *testing.T) {
	eachVariant(t, func(t *testing.T, m mode) {
		c := newCluster(t, m)
		c.dropForward(t)
		web := app{name: "web", number: 10}.on(c.webs()...)
		c.save(t, web)
		p := c.start(t)
		want := c.awaitProgrammed(t)
		var lines conversations
		for _, x := range c.cells([]*netlab.Host{c.Host("customer"), c.Node}, web) {
			lines = append(lines, open(t, x, c.port()))
		}
		c.check(t, want, c.cells([]*netlab.Host{c.Host("customer"), c.Node}, web))
		p.Stop(t)
		lines.checkAnswered(t)
	})
}

// TestUserspaceForwardClosed checks the same for all clients of mode userspace, also
// while the kernel forwards instead of the process, and after the process is back.
func TestUserspaceForwardClosed(t *testing.T) {
	withUserspace(t, func(t *testing.T, m mode) {
		c := newCluster(t, inUserspace(m.iptables))
		c.dropForward(t)
		web := app{name: "web", number: 10}.on(c.webs()...)
		local := app{name: "local", number: 11, external: "Local"}.on(c.Host("web-1"), c.Host("web-3"))
		c.save(t, web, local)
		p := c.start(t)
		want := c.awaitProgrammed(t)
		loads := c.loads(t, web, local)
		p.Stop(t)
		c.check(t, want, c.cells(c.clientHosts(), web, local))
		lines, packets := c.converse(t, "tcp", local, 1), c.converse(t, "udp", local, 1)
		p = c.launch(t)
		c.awaitProgrammed(t)
		lines.checkSameServer(t)
		packets.checkAnswered(t)
		c.check(t, want, c.cells(c.clientHosts(), web, local))
		t.Logf("%d connections made meanwhile", connectionsOf(loads))
		lossless(t, loads)
		p.Stop(t)
	})
}
