// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"kubeproxy/common/service"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
)

// TestAcceleratedSecondDraw has one of two endpoints drop all first packets. Sockets that were
// taken get the other one, and those that connect to it directly do not. Without a second draw,
// the endpoint is left out after the first ones.
func TestAcceleratedSecondDraw(t *testing.T) {
	inModes(t, faultModes, acceleratedSecondDraw)
}

func acceleratedSecondDraw(t *testing.T, m mode) {
	m.accelerated = true
	flags := append(slices.Clip(m.flags), "--silent-endpoints=off")
	m.flags = append(slices.Clip(m.flags), "--second-draw=false")
	c := newCluster(t, m)
	silent := c.Host("web-3")
	web := app{name: "web", number: 10}.on(silent, c.Host("web-4"))
	c.deafen(t, true, silent)
	connect := func(from *netlab.Host, f service.Family, patience time.Duration) netlab.Report {
		return from.Load(t.Context(), netlab.LoadConfig{
			Query: netlab.Query{Proto: "tcp", To: web.at(service.ClusterIP, f), Timeout: patience}, Workers: 40, Total: 40,
		}).Wait()
	}
	c.save(t, web)
	p := c.launch(t)
	p.AwaitLogs(t, `"Programmed"`, m.proxyMode()+" FAMILY")
	if r := connect(c.Host("shopper"), service.IPv4, 4*time.Second); r.Outcomes[netlab.TimedOut] < 5 {
		t.Errorf("without a second draw: %s, want some without an answer", r)
	}
	kit.Until(t, "that nobody waits for the silent endpoint", func() bool { return slowOnes(c.connects(t, web, 20)) == 0 })
	p.Stop(t)
	c.mode.flags = flags
	p = c.start(t, web)
	for _, f := range service.Families {
		direct := make(chan netlab.Answer)
		go func() {
			a, _ := c.Host("shopper").Ask(t.Context(), netlab.Query{Proto: "tcp", Unbound: true, To: netip.AddrPortFrom(silent.Addr(web.at(service.ClusterIP, f).Addr()), target), Timeout: 6 * time.Second})
			direct <- a
		}()
		for _, from := range []*netlab.Host{c.Host("shopper"), c.Node} {
			r := connect(from, f, 6*time.Second)
			kit.Check(t, r.Outcomes[netlab.Answered] == 40 && r.Backends[silent.Name] == nil,
				"%s from %s with a second draw: %s, want all of them answered", f, from.Name, r)
			t.Logf("%s from %s: %s", f, from.Name, r)
		}
		if a := <-direct; a.Outcome != netlab.TimedOut {
			t.Errorf("a connection to the silent endpoint itself: %s by %s", a.Outcome, a.Backend)
		}
	}
	p.Stop(t)
	rules := nft(t, c.Node, "list ruleset\n")
	kit.Check(t, !strings.Contains(rules, "kube-redraw"), "after the end:\n%s", rules)
}
