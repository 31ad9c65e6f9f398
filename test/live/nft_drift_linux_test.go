// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"testing"
	"time"

	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

// nftTableTamperings are changes to the table of web other than to its rules and
// elements. Each of them interrupts Services.
var nftTableTamperings = []string{
	"nft add table ip kube-services '{ flags dormant; }'",
	"nft add chain ip kube-services output '{ policy drop; }'",
	"nft 'delete chain ip kube-services prerouting; add chain ip kube-services prerouting " +
		"{ type nat hook prerouting priority 300; policy accept; }; add rule ip kube-services prerouting jump dispatch'",
	"nft 'delete table ip kube-services; add table ip kube-services { flags dormant; }'",
}

// TestNFTablesDrift checks that changes to flags, policies, hooks and priorities are
// repaired, counted and logged, by a running proxy and by a starting one.
func TestNFTablesDrift(t *testing.T) {
	t.Parallel()
	m := defaultMode()
	m.flags = append(m.flags, "--iptables-sync-period=1h")
	c := newCluster(t, m)
	web := app{name: "web", number: 10}.on(c.webs()...)
	c.save(t, web)
	p := c.start(t)
	want := c.want(t)
	cells := c.cells([]*netlab.Host{c.Node, c.Host("shopper"), c.Host("customer")}, web)
	for _, deed := range nftTableTamperings {
		p = c.undoneWithin(t, p, deed, time.Second)
		c.awaitSnapshot(t, want)
		c.check(t, want, cells)
	}
	for _, deed := range nftTableTamperings {
		p.Stop(t)
		c.sh(t, deed+"\n")
		p = c.start(t)
		c.check(t, want, cells)
	}
}

// undoneWithin is undone in so short a time, once in a few tries: the machine may have
// much else to do. Each try has a proxy of its own, as repairs of a dispute wait.
func (c *cluster) undoneWithin(t *testing.T, p *program.Proxy, deed string, most time.Duration) *program.Proxy {
	t.Helper()
	var took []time.Duration
	for range 4 {
		begin := time.Now()
		c.tamperIPVSAndAwaitRepair(t, p, deed)
		if took = append(took, time.Since(begin)); took[len(took)-1] <= most {
			t.Logf("%s: undone after %v", deed, took)
			return p
		}
		p.Stop(t)
		p = c.start(t)
	}
	t.Errorf("%s: undone after %v, want once within %s", deed, took, most)
	return p
}
