// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"testing"

	"kubeproxy/test/netlab"
)

// deedsTables are what others may do to tables of iptables-nft as a whole, after
// which no rule in them works.
var deedsTables = []string{
	"nft add table ip nat '{ flags dormant; }'",
	"nft add table ip filter '{ flags dormant; }'",
}

// A table that somebody makes dormant is active again, for a proxy that runs and for
// one that starts, long before the sync period is over.
func TestIPTablesDormant(t *testing.T) {
	t.Parallel()
	alone := usual()
	alone.flags, alone.iptables = append(alone.flags, "--proxy-mode=iptables", "--iptables-localhost-nodeports=false"), "nft"
	for _, m := range []mode{alone, inUserspace("nft")} {
		t.Run(m.proxyMode(), func(t *testing.T) {
			t.Parallel()
			m = m.watchful()
			c := newCluster(t, m)
			web := app{name: "web", number: 10}.on(c.webs()...)
			none := app{name: "none", number: 11}
			c.save(t, web, none)
			p := c.start(t)
			want := c.settle(t)
			cells := c.cells([]*netlab.Host{c.Node, c.Host("shopper"), c.Host("customer")}, web, none)
			for _, deed := range deedsTables {
				c.undone(t, p, deed)
				c.check(t, want, cells)
			}
			p.Stop(t)
			for _, deed := range deedsTables {
				c.sh(t, deed+"\n")
			}
			c.start(t)
			c.check(t, want, cells)
		})
	}
}
