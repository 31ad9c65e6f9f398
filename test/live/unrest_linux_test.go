// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"encoding/json"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"kubeproxy/common/health/servicestate"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/nftables"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

// silence makes a host drop the first packets of connections, and waits until its endpoints
// of both families are left out by rules in force, which accelerated connections do not tell.
func (c *cluster) silence(t *testing.T, h *netlab.Host) {
	t.Helper()
	if c.accelerated {
		return
	}
	c.deafen(t, true, h)
	kit.Until(t, "that "+h.Name+" is left out", func() bool {
		var about servicestate.ProxyInfo
		_, text := c.ask(t, "status", "-o", "json")
		kit.Must(t, json.Unmarshal([]byte(text), &about))
		for _, f := range service.Families {
			if about.Health.Status[f.String()].OldestPending != nil {
				return false
			}
		}
		out := map[netip.Addr]bool{}
		for _, x := range about.Silent {
			if at := netip.MustParseAddrPort(x.Address); x.LeftOut && x.Protocol == "tcp" {
				out[at.Addr()] = true
			}
		}
		return out[h.IPv4] && out[h.IPv6]
	})
}

// settle makes a host answer again, and waits until p uses its endpoints of both families for
// web and ends no connections any more.
func (c *cluster) settle(t *testing.T, p *program.Proxy, web app, h *netlab.Host) {
	t.Helper()
	c.deafen(t, false, h)
	answers := time.Now()
	kit.Until(t, "that "+h.Name+" is used, and none is silent by dials from before", func() bool {
		var used [2]bool
		for i, a := range c.connects(t, web, 20) {
			used[i/4%2] = used[i/4%2] || a.Backend == h.Name
		}
		const dial = time.Second // at most
		return used[0] && used[1] && time.Since(answers) > dial && metric(t, p, "kubeproxy_silent_endpoints") == 0
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
		c.silence(t, four)
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
		c.settle(t, p, web, four)
		c.awaitProgrammed(t)
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
