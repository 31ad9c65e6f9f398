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

// TestSilentDatagrams has two of four hosts fall silent behind a Service of UDP, after a flood of
// datagrams that servers ignore.
func TestSilentDatagrams(t *testing.T) { inModes(t, faultModes, silentDatagrams) }

func TestIPVSSilentDatagrams(t *testing.T) { withIPVS(t, silentDatagrams) }

func silentDatagrams(t *testing.T, m mode) {
	m.plain = true
	names := []string{"a", "b", "c", "d"}
	c := newClusterOf(t, m, names...)
	var all []*netlab.Host
	for _, name := range names {
		all = append(all, c.Host(name))
		nft(t, c.Host(name), "table inet ignored { chain in { type filter hook input priority -300; udp length 12 drop; }; }\n")
	}
	dns, log := app{name: "dns", number: 10, plain: true}.on(all...), app{name: "log", number: 11, plain: true}.on(all...)
	c.start(t, dns, log)
	c.awaitProgrammed(t)

	sent := 0
	c.set(t, "net/netfilter/nf_conntrack_udp_timeout", "2")                                                     // of entries without an answer
	for until := time.Now().Add(10 * time.Second); time.Now().Before(until) && !(m.userspace && sent > 2000); { // it bounds clients
		for range 50 {
			c.ignored(t, log)
			c.ignored(t, dns)
			sent += 2
		}
		x := c.silent(t)
		kit.Need(t, len(x) == 0, "after %d datagrams that servers ignore: %+v", sent, x)
		c.answer(t, dns)
	}
	lines := c.converse(t, "udp", dns, 2)

	start := time.Now()
	const cut = "table inet cut { chain in { type filter hook input priority -300; policy drop; }; }\n"
	nft(t, all[0], cut)
	nft(t, all[1], cut)
	c.set(t, "net/netfilter/nf_conntrack_udp_timeout", "30")
	for range 100 { // which the dead hosts do not answer either
		c.ignored(t, dns)
	}
	var loads []*netlab.Load
	for _, f := range service.Families {
		loads = append(loads, c.questions(t, dns, f))
	}
	kit.Until(t, "that silent endpoints are left out", func() bool { return c.leftOut(t, "dns", "udp") == 4 })
	t.Logf("left out after %s, %d ignored datagrams before", time.Since(start), sent)
	for _, l := range loads {
		r := l.Stop()
		t.Logf("meanwhile %d of %d questions had no answer", r.Lost(), r.Connections)
	}
	for _, x := range lines {
		a, err := x.conn.AskFor(t.Context(), pollTimeout)
		kit.Check(t, err == nil && a.Outcome == netlab.Answered, "%s: %s, %v", x.name, a.Outcome, err)
	}
	c.answer(t, dns)
	nft(t, all[0], "delete table inet cut\n")
	nft(t, all[1], "delete table inet cut\n")
	start = time.Now()
	kit.Until(t, "that all are used again", func() bool { return len(c.silent(t)) == 0 })
	t.Logf("%d flows go on; back after %s", len(lines), time.Since(start))
}

// answer has each of 200 questions answered.
func (c *cluster) answer(t *testing.T, a app) {
	t.Helper()
	for i := range 200 {
		q := netlab.Query{Proto: "udp", To: a.at(service.ClusterIP, service.Families[i%2]), Timeout: time.Second}
		x, err := c.Host("shopper").Ask(t.Context(), q)
		kit.Check(t, err == nil && x.Outcome == netlab.Answered, "%s, %v", x.Outcome, err)
	}
}

// questions asks over UDP at the ClusterIP, each time from another port.
func (c *cluster) questions(t *testing.T, a app, f service.Family) *netlab.Load {
	t.Helper()
	return c.Host("shopper").Load(t.Context(), netlab.LoadConfig{
		Query: netlab.Query{Proto: "udp", To: a.at(service.ClusterIP, f), Timeout: time.Second}, Workers: 8, Pause: 20 * time.Millisecond,
	})
}

// ignored sends a datagram that servers ignore.
func (c *cluster) ignored(t *testing.T, a app) {
	t.Helper()
	conn, err := c.Host("web-1").Dial(t.Context(), "udp", a.at(service.ClusterIP, service.IPv4).String())
	kit.Must(t, err)
	_, err = conn.Write([]byte("hush"))
	kit.Must(t, err)
	kit.Must(t, conn.Close())
}

// leftOut counts the endpoints of a Service port that are left out.
func (c *cluster) leftOut(t *testing.T, name, protocol string) int {
	t.Helper()
	n := 0
	for _, x := range c.silent(t) {
		if x.Name == name && x.Protocol == protocol && x.LeftOut {
			n++
		}
	}
	return n
}

// TestAcceleratedSecondDraw has one of two endpoints drop all first packets. Sockets that were
// taken get the other one, and those that connect to it directly do not. Without a second draw,
// the endpoint is left out after the first ones.
func TestAcceleratedSecondDraw(t *testing.T) { inModes(t, faultModes, acceleratedSecondDraw) }

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
