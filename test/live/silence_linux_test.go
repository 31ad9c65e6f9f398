// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"cmp"
	"regexp"
	"slices"
	"sync"
	"testing"
	"time"

	"kubeproxy/common/service"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

// TestSilentEndpoints has three of ten endpoints drop the first packets of connections while
// the API calls them ready.
func TestSilentEndpoints(t *testing.T) {
	for _, name := range faultModes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			silentEndpoints(t, modeNamed(name))
		})
	}
}

// lastGeneration returns the number of the latest snapshot that was programmed.
func lastGeneration(p *program.Proxy) string {
	all := regexp.MustCompile(`generation=[0-9]+`).FindAllString(p.Log.String(), -1)
	return slices.MaxFunc(all, func(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b)) })
}

func TestIPVSSilentEndpoints(t *testing.T) { withIPVS(t, silentEndpoints) }

// slow is a connect that had to repeat its first packet.
const slow = 900 * time.Millisecond

func silentEndpoints(t *testing.T, m mode) {
	m.plain = true
	var names []string
	for i := range 10 {
		names = append(names, string(rune('a'+i)))
	}
	c := newClusterOf(t, m, names...)
	var all []*netlab.Host
	for _, name := range names {
		all = append(all, c.Host(name))
	}
	web := app{name: "web", number: 10, plain: true}.on(all...)
	p := c.start(t, web)
	c.awaitProgrammed(t)
	lines := c.converse(t, "tcp", web, 2)
	silent := all[7:]

	start := time.Now()
	c.deafen(t, true, silent...)
	first := c.connects(t, web, 60)
	kit.Until(t, "that nobody waits for silent endpoints", func() bool { return slowOnes(c.connects(t, web, 40)) == 0 })
	t.Logf("%s after they fell silent nobody waits; %d of the first 60 connects were slow", time.Since(start), slowOnes(first))
	later := c.connects(t, web, 200)
	if n := slowOnes(later); n > 0 {
		t.Errorf("%d of 200 connects are slow although the endpoints are known to be silent", n)
	}
	for _, h := range silent {
		if slices.ContainsFunc(later, func(a netlab.Answer) bool { return a.Backend == h.Name }) {
			t.Errorf("%s answered", h.Name)
		}
	}
	lines.checkSameServer(t)

	back := time.Now()
	c.deafen(t, false, silent[0])
	kit.Until(t, "that an endpoint which answers again is used", func() bool {
		return slices.ContainsFunc(c.connects(t, web, 20), func(a netlab.Answer) bool { return a.Backend == silent[0].Name })
	})
	if took := time.Since(back); took > 12*time.Second {
		t.Errorf("it was used after %s, want 10 s at most", took)
	} else {
		t.Logf("an endpoint that answers again is used after %s", took)
	}

	c.deafen(t, true, all...)
	generation := lastGeneration(p)
	for _, a := range c.connects(t, web, 20) {
		if a.Outcome == netlab.Answered {
			t.Errorf("%s answered, although no endpoint should", a.Backend)
		}
	}
	if now := lastGeneration(p); now != generation {
		t.Errorf("snapshot %s became %s although all endpoints are silent", generation, now)
	}
	lines.checkSameServer(t)
}

// deafen has hosts drop the first packet of each connection, or stop to do so.
func (c *cluster) deafen(t *testing.T, drop bool, hosts ...*netlab.Host) {
	t.Helper()
	for _, h := range hosts {
		text := "add table inet deaf\ndelete table inet deaf\n"
		if drop {
			text += "add table inet deaf\nadd chain inet deaf input { type filter hook input priority 0; tcp flags & (syn | ack) == syn drop; }\n"
		}
		nft(t, h, text)
	}
}

// connects asks a n times, at its ClusterIPs, four at once, and returns the answers.
func (c *cluster) connects(t *testing.T, a app, n int) []netlab.Answer {
	t.Helper()
	answers := make([]netlab.Answer, n)
	var workers sync.WaitGroup
	for w := range 4 {
		workers.Go(func() {
			for i := w; i < n; i += 4 {
				q := netlab.Query{Proto: "tcp", To: a.at(service.ClusterIP, service.Families[i/4%2]), Timeout: 4 * time.Second}
				x, err := c.Host("shopper").Ask(t.Context(), q)
				if err != nil {
					t.Error(err)
				}
				answers[i] = x
			}
		})
	}
	workers.Wait()
	return answers
}

// slowOnes counts the answers that came late or not at all.
func slowOnes(all []netlab.Answer) int {
	n := 0
	for _, a := range all {
		if a.Outcome != netlab.Answered || a.Took > slow {
			n++
		}
	}
	return n
}
