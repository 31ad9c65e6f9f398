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
	restarts(t, defaultMode(), func(c *cluster) string {
		return fmt.Sprintf("written %d times\n%s", program.Generation(t, c.Node), withoutClients(ours(t, c.Node)))
	})
}

// restarts stops, kills and starts a proxy. A new process writes nothing, so the listing
// of rules stays the same. No connection is lost.
func restarts(t *testing.T, m mode, rules func(*cluster) string) {
	c := newCluster(t, m)
	web := app{name: "web", number: 10}.on(c.webs()...)
	sticky := app{name: "sticky", number: 11, sticky: 600}.on(c.webs()...)
	c.save(t, web, sticky)
	p := c.start(t)
	want := c.awaitProgrammed(t)
	lines, packets := c.converse(t, "tcp", web, 2), c.converse(t, "udp", web, 2)
	home := newAffinityClients(t, c, sticky)
	before := rules(c)
	for _, end := range []func(){func() { p.Stop(t) }, func() { p.Kill() }} {
		end()
		lines.checkSameServer(t)
		packets.checkSameServer(t)
		c.check(t, want, c.cells(c.clientHosts()[:1], web))
		p = c.launch(t)
		p.AwaitLog(t, `"Programmed"`, "IPv4", "changed=false")
		p.AwaitLog(t, `"Programmed"`, "IPv6", "changed=false")
		lines.checkSameServer(t)
	}
	p.Stop(t) // the follow-up of a round is done now
	lines.checkSameServer(t)
	packets.checkSameServer(t)
	if p.Log.Has("Removed stale flows") {
		t.Error("flows were removed at the start")
	}
	if moved := home.movedClients(t); len(moved) > 0 {
		t.Errorf("clients were forgotten: %v", moved)
	}
	if diff := cmp.Diff(before, rules(c)); diff != "" {
		t.Errorf("the rules changed (-before +after):\n%s", diff)
	}
}

// TestChangedMeanwhile checks that only what changed while the proxy was down changes
// when it is back.
func TestChangedMeanwhile(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	web := app{name: "web", number: 10}.on(c.webs()...)
	gone := app{name: "gone", number: 11}.on(c.webs()...)
	rolled := app{name: "rolled", number: 12}.on(c.Host("web-1"))
	c.save(t, web, gone, rolled)
	c.start(t).Stop(t)
	stay, leave, move := c.converse(t, "udp", web, 2), c.converse(t, "udp", gone, 1), c.converse(t, "udp", rolled, 1)

	c.remove(t, "gone.yaml")
	c.save(t, rolled.on(c.Host("web-4")), app{name: "new", number: 13}.on(c.Host("web-2")))
	p := c.start(t)
	c.check(t, c.awaitProgrammed(t), c.cells(c.clientHosts(), web, rolled))
	move.await(t, "follows", func(_ conversation, a netlab.Answer) bool { return a.Backend == "web-4" })
	p.Stop(t)
	stay.checkSameServer(t)
	leave.await(t, "ends", func(_ conversation, a netlab.Answer) bool { return a.Outcome != netlab.Answered })
}
