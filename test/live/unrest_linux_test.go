// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"os"
	"slices"
	"testing"
	"time"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/nftables"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

// silence makes a host drop the first packets of connections, and waits until p leaves its
// endpoints out, which accelerated connections do not tell.
func (c *cluster) silence(t *testing.T, p *program.Proxy, h *netlab.Host) {
	t.Helper()
	if c.accelerated {
		return
	}
	c.deafen(t, true, h)
	kit.Until(t, "that "+h.Name+" is left out", func() bool { return metric(t, p, "kubeproxy_silent_endpoints") > 0 })
}

// settle makes hosts answer again, and waits until p uses all endpoints and ends no
// connections any more.
func (c *cluster) settle(t *testing.T, p *program.Proxy, hosts ...*netlab.Host) {
	t.Helper()
	c.deafen(t, false, hosts...)
	var calm time.Time
	kit.Until(t, "that no endpoint is silent for two seconds, as dials from before may still decide", func() bool {
		switch silent := metric(t, p, "kubeproxy_silent_endpoints") > 0; {
		case silent:
			calm = time.Time{}
		case calm.IsZero():
			calm = time.Now()
		}
		return !calm.IsZero() && time.Since(calm) > 2*time.Second
	})
	c.awaitLeft(t, "gone when all is calm", false)
}

// TestUnrest has an endpoint fall silent and another one die and leave, over and over, while
// proxies are killed and somebody deletes the table that ends connections. No connection to
// others is lost, those to the dead one end, and in the end nothing is left of it.
// KUBEPROXY_SOAK says how long.
func TestUnrest(t *testing.T) {
	inModes(t, faultModes, unrest)
}

func unrest(t *testing.T, m mode) {
	m.plain = true // accelerated connections tell nothing
	c := newClusterOf(t, m, "web-3", "web-4", "db-1", "db-2")
	four, stays, dead := c.Host("web-4"), c.Host("db-1"), c.Host("db-2")
	web, db := app{name: "web", number: 10}.on(c.webs()...), app{name: "db", number: 11}
	p := c.start(t, web, db.on(stays, dead))
	rules, lines := c.countRules(t), c.converse(t, "tcp", web, 1)
	open, used := files(t, p), memory(t, p)
	loads := c.loadsAt(t, 20*time.Millisecond, web)
	soak, _ := time.ParseDuration(os.Getenv("KUBEPROXY_SOAK"))
	round, began := 0, time.Now()
	for ; round < 2 || time.Since(began) < soak && !t.Failed(); round++ {
		kept, lost := c.converse(t, "tcp", db, 1).split(dead.Name)
		c.silence(t, p, four)
		dies(t, dead)
		c.save(t, db.on(stays))
		switch {
		case m.userspace: // whose connections end with the process
		case round%2 == 0:
			for i := range 20 { // until all have ended, more or less
				name := nftables.LeftPlace(service.Families[i%2], "").Name()
				nft(t, c.Node, "add table "+name+"\ndelete table "+name+"\n")
			}
		default:
			p.Kill()
			p = c.launch(t)
			p.AwaitLogs(t, `"Programmed"`, "FAMILY")
		}
		lost.checkEnd(t, netlab.DefaultTimeout)
		kept.checkSameServer(t)
		for _, x := range slices.Concat(kept, lost) {
			x.conn.Close()
		}
		nft(t, dead, "delete table inet dead\n")
		c.save(t, db.on(stays, dead))
		c.settle(t, p, four)
		c.awaitProgrammed(t)
		kit.Until(t, four.Name+" is used", func() bool {
			return slices.ContainsFunc(c.connects(t, web, 20), func(a netlab.Answer) bool { return a.Backend == four.Name })
		})
		lines.checkSameServer(t)
	}
	t.Logf("%d rounds in %s, %d connections", round, time.Since(began).Round(time.Second), connectionsOf(loads))
	lossless(t, loads)
	kit.Until(t, "as many rules as before", func() bool { return c.countRules(t) == rules })
	kit.Until(t, "as few open files as before", func() bool { return files(t, p) <= open+8 })
	if now := memory(t, p); now > 2*used {
		t.Errorf("the proxy uses %.0f MB, and %.0f MB at first", now/1e6, used/1e6)
	}
	p.Stop(t)
	c.awaitLeft(t, "gone at the end", false)
}
