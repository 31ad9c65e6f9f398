// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"testing"
	"time"

	"kubeproxy/common/service"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
)

// TestSilentDatagrams has two of four hosts fall silent behind a Service of UDP, after a flood of
// datagrams that servers ignore.
func TestSilentDatagrams(t *testing.T) {
	inModes(t, faultModes, silentDatagrams)
}

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
