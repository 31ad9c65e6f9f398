// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

func TestRestart(t *testing.T) {
	t.Parallel()
	restarts(t, usual(), func(c *cluster) string {
		return fmt.Sprintf("written %d times\n%s", program.Generation(t, c.Node), withoutClients(ours(t, c.Node)))
	})
}

// restarts has a proxy be stopped, and crash, and be started again, which writes
// nothing, so that what rules lists stays as it is. Nobody who is connected
// notices.
func restarts(t *testing.T, m mode, rules func(*cluster) string) {
	c := newCluster(t, m)
	web := app{name: "web", number: 10}.on(c.webs()...)
	sticky := app{name: "sticky", number: 11, sticky: 600}.on(c.webs()...)
	c.save(t, web, sticky)
	p := c.start(t)
	want := c.settle(t)
	lines, packets := c.talk(t, "tcp", web, 2), c.talk(t, "udp", web, 2)
	home := settleDown(t, c, sticky)
	before := rules(c)
	for _, end := range []func(){func() { p.Stop(t) }, func() { p.Kill() }} {
		end()
		lines.goOn(t)
		packets.goOn(t)
		c.check(t, want, c.cells(c.callers()[:1], web))
		p = c.launch(t)
		p.AwaitLog(t, `"Programmed"`, "IPv4", "changed=false")
		p.AwaitLog(t, `"Programmed"`, "IPv6", "changed=false")
		lines.goOn(t)
	}
	p.Stop(t) // what a round entails is done now
	lines.goOn(t)
	packets.goOn(t)
	if p.Log.Has("Removed stale flows") {
		t.Error("flows were removed at the start")
	}
	if moved := home.moved(t); len(moved) > 0 {
		t.Errorf("clients were forgotten: %v", moved)
	}
	if diff := cmp.Diff(before, rules(c)); diff != "" {
		t.Errorf("the rules changed (-before +after):\n%s", diff)
	}
}

// What changed while the proxy was down is all that changes when it is back.
func TestChangedMeanwhile(t *testing.T) {
	t.Parallel()
	c := newCluster(t, usual())
	web := app{name: "web", number: 10}.on(c.webs()...)
	gone := app{name: "gone", number: 11}.on(c.webs()...)
	rolled := app{name: "rolled", number: 12}.on(c.Host("web-1"))
	c.save(t, web, gone, rolled)
	c.start(t).Stop(t)
	stay, leave, move := c.talk(t, "udp", web, 2), c.talk(t, "udp", gone, 1), c.talk(t, "udp", rolled, 1)

	c.remove(t, "gone.yaml")
	c.save(t, rolled.on(c.Host("web-4")), app{name: "new", number: 13}.on(c.Host("web-2")))
	p := c.start(t)
	c.check(t, c.settle(t), c.cells(c.callers(), web, rolled))
	move.come(t, "follows", func(_ talk, a netlab.Answer) bool { return a.Backend == "web-4" })
	p.Stop(t)
	stay.goOn(t)
	leave.come(t, "ends", func(_ talk, a netlab.Answer) bool { return a.Outcome != netlab.Answered })
}
