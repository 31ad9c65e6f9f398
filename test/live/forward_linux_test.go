// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"net/netip"
	"testing"

	"kubeproxy/test/netlab"
)

// closeForward has the node pass nothing on of its own accord, as container
// engines do.
func (c *cluster) closeForward(t *testing.T) {
	t.Helper()
	c.neighbour(t, "*filter\n:FORWARD DROP [0:0]\nCOMMIT\n")
	q := netlab.Query{Proto: "tcp", To: netip.AddrPortFrom(c.Host("web-1").IPv4, target), Timeout: netlab.Silence}
	if a, err := c.Host("customer").Ask(t.Context(), q); err != nil || a.Outcome != netlab.TimedOut {
		t.Fatalf("to an endpoint itself: %s, %v; want nothing to be passed on", a.Outcome, err)
	}
}

// Where the node passes nothing on, what is masqueraded reaches its endpoints.
// For pods among themselves others have to care, as without a proxy.
func TestIPTablesForwardClosed(t *testing.T) {
	eachVariant(t, func(t *testing.T, m mode) {
		c := newCluster(t, m)
		c.closeForward(t)
		web := app{name: "web", number: 10}.on(c.webs()...)
		c.save(t, web)
		p := c.start(t)
		want := c.settle(t)
		var lines talks
		for _, x := range c.cells([]*netlab.Host{c.Host("customer"), c.Node}, web) {
			lines = append(lines, open(t, x, c.port()))
		}
		c.check(t, want, c.cells([]*netlab.Host{c.Host("customer"), c.Node}, web))
		p.Stop(t)
		lines.answered(t)
	})
}

// The same holds for all clients of mode userspace, also while the kernel leads
// them instead of the process, and for those whom it has led when the process is
// back.
func TestUserspaceForwardClosed(t *testing.T) {
	throughProxy(t, func(t *testing.T, m mode) {
		c := newCluster(t, inUserspace(m.iptables))
		c.closeForward(t)
		web := app{name: "web", number: 10}.on(c.webs()...)
		local := app{name: "local", number: 11, external: "Local"}.on(c.Host("web-1"), c.Host("web-3"))
		c.save(t, web, local)
		p := c.start(t)
		want := c.settle(t)
		loads := c.loads(t, web, local)
		p.Stop(t)
		c.check(t, want, c.cells(c.callers(), web, local))
		lines, packets := c.talk(t, "tcp", local, 1), c.talk(t, "udp", local, 1)
		p = c.launch(t)
		c.settle(t)
		lines.goOn(t)
		packets.answered(t)
		c.check(t, want, c.cells(c.callers(), web, local))
		t.Logf("%d connections made meanwhile", connectionsOf(loads))
		lossless(t, loads)
		p.Stop(t)
	})
}
