// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"kubeproxy/common/health/servicestate"
	"kubeproxy/common/service"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
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
	c.start(t, web)
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
	for _, a := range c.connects(t, web, 20) {
		if a.Outcome == netlab.Answered {
			t.Errorf("%s answered, although no endpoint should", a.Backend)
		}
	}
	for _, x := range c.silent(t) {
		at := netip.MustParseAddrPort(x.Address).Addr()
		if x.LeftOut && x.Protocol == "tcp" && !slices.ContainsFunc(silent, func(h *netlab.Host) bool { return at == h.IPv4 || at == h.IPv6 }) {
			t.Errorf("all endpoints are silent, and one is left out: %+v", x)
		}
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

// silentFile is a configuration file.
const silentFile = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nsilentEndpoints: %s\n"

// dropWeb makes a host take no TCP packets to its endpoint, as a dead node does.
func dropWeb(t *testing.T, h *netlab.Host) {
	t.Helper()
	nft(t, h, fmt.Sprintf("table inet silent { chain in { type filter hook input priority -300; tcp dport %d drop; }; }\n", target))
}

// silent returns what status says of endpoints that do not answer.
func (c *cluster) silent(t *testing.T) []servicestate.SilentEndpoint {
	t.Helper()
	_, out := c.ask(t, "status", "-o", "json")
	var x servicestate.Response
	kit.Must(t, json.Unmarshal([]byte(out), &x))
	layer := func(name string) bool { return strings.HasPrefix(name, "silent-endpoints=") }
	kit.Check(t, x.Endpoints > 0 && slices.ContainsFunc(x.Layers, layer), "%d endpoints, layers %q", x.Endpoints, x.Layers)
	return x.Silent
}

// awaitSilent waits until status names a TCP endpoint n times, left out or not. Others of its host
// may be silent, too.
func (c *cluster) awaitSilent(t *testing.T, at string, n int, leftOut bool) {
	t.Helper()
	kit.Until(t, fmt.Sprintf("%s is silent %d times, left out %v", at, n, leftOut), func() bool {
		found := 0
		for _, x := range c.silent(t) {
			if x.Address != at || x.Protocol != "tcp" {
				continue
			}
			if x.LeftOut != leftOut {
				return false
			}
			found++
		}
		return found == n
	})
}

// TestSilentEndpointsAreSeen has an endpoint fall silent, with each value of the setting, and
// looks at what names it.
func TestSilentEndpointsAreSeen(t *testing.T) {
	for _, name := range faultModes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := modeNamed(name)
			file := filepath.Join(t.TempDir(), "config.yaml")
			set := func(value string) { kit.Must(t, os.WriteFile(file, fmt.Appendf(nil, silentFile, value), 0o644)) }
			set("on")
			m.flags, m.plain = append(m.flags, "--config="+file), true // accelerated connections tell nothing
			c := newCluster(t, m)
			web := app{name: "web", number: 10, plain: true}.on(c.webs()...)
			p := c.start(t, web)
			dropWeb(t, c.Host("web-3"))
			load := c.Host("shopper").Load(t.Context(), netlab.LoadConfig{
				Query: netlab.Query{Proto: "tcp", To: web.at(service.ClusterIP, service.IPv4), Timeout: 2 * time.Second}, Workers: 8, Pause: 20 * time.Millisecond,
			})
			const at = "10.244.2.11:8080"
			c.awaitSilent(t, at, 1, true)
			c.names(t, at, "shop/web", "yes")
			c.explainsSilence(t, at+" node-b - ready no - it has not answered since ", "; left out")
			p.AwaitLog(t, "Endpoints do not answer", at)
			if out, _ := p.Metric(t, "kubeproxy_silent_endpoints", "use=out"); out < 1 {
				t.Errorf("%v endpoints are counted as left out", out)
			}
			set("observe")
			c.awaitSilent(t, at, 1, false)
			c.names(t, at, "shop/web", "no")
			c.explainsSilence(t, at+" node-b - ready yes ", " it is ready, but has not answered since ", "; only observed")
			set("off")
			c.awaitSilent(t, at, 0, false)
			set("on")
			c.awaitSilent(t, at, 1, true)
			nft(t, c.Host("web-3"), "delete table inet silent\n")
			c.awaitSilent(t, at, 0, true)
			p.AwaitLog(t, "Endpoints answer again, or are gone", at)
			load.Stop()
			for range 20 {
				if a, err := c.Host("shopper").Ask(t.Context(), netlab.Query{Proto: "tcp", To: web.at(service.ClusterIP, service.IPv4)}); err != nil || a.Outcome != netlab.Answered {
					t.Fatalf("%s, %v", a.Outcome, err)
				}
			}
		})
	}
}

// explainsSilence checks what explain says of an endpoint.
func (c *cluster) explainsSilence(t *testing.T, words ...string) {
	t.Helper()
	_, out := c.runExplain(t, c.Host("shopper").IPv4.String(), "10.96.0.10:80")
	text := strings.Join(strings.Fields(out), " ")
	for _, w := range words {
		if !strings.Contains(text, w) {
			t.Errorf("no %q in\n%s", w, out)
		}
	}
	if !c.mode.userspace && !strings.Contains(text, agrees) { // whose relay names connections that failed
		t.Errorf("the node differs:\n%s", out)
	}
}

// names checks the line of status about a silent endpoint.
func (c *cluster) names(t *testing.T, words ...string) {
	t.Helper()
	_, out := c.ask(t, "status", "-o", "wide")
	for line := range strings.Lines(out) {
		rest, has := line, true
		for _, w := range words {
			_, after, found := strings.Cut(rest, w)
			rest, has = after, has && found
		}
		if has {
			return
		}
	}
	t.Errorf("no line with %q in\n%s", words, out)
}

// TestSilentEndpointsOfTenants has a tenant try to get the endpoints of another one left out: by
// SYNs with the addresses of others as their source, whose answers do not come back through the
// node, and by a Service of his own that names them beside endpoints that he keeps silent.
func TestSilentEndpointsOfTenants(t *testing.T) {
	for _, name := range faultModes[:2] { // the relay answers clients itself, so forged ones connect to nothing
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := modeNamed(name)
			m.plain = true
			c := newCluster(t, m)
			shop := app{name: "web", number: 10, plain: true}.on(c.Host("web-3"), c.Host("web-4"))
			p := c.start(t, shop)
			tenant := app{name: "tenant", number: 11, plain: true}.on(c.Host("web-3"), c.Host("web-1"), c.Host("web-2"))
			dropWeb(t, c.Host("web-1"))
			dropWeb(t, c.Host("web-2"))
			// On one node with those of the shop, he says.
			c.write(t, "tenant.yaml", []byte(strings.ReplaceAll(string(tenant.yaml(t)), "nodeName: "+netlab.NodeName, "nodeName: "+netlab.OtherName)))
			p.AwaitLogs(t, `"Programmed"`)
			load := c.Host("customer").Load(t.Context(), netlab.LoadConfig{
				Query: netlab.Query{Proto: "tcp", To: shop.at(service.NodePort, service.IPv4)}, Workers: 2, Pause: 5 * time.Millisecond,
			})
			forged := c.forge(t, c.Host("web-4").IPv4, shop, tenant)
			r := load.Stop()
			if r.Lost() > 0 || r.Backends["web-3"].Count == 0 || r.Backends["web-4"].Count == 0 {
				t.Errorf("%s", r)
			}
			t.Logf("%d forged SYNs; %s", forged, r)
		})
	}
}

// forge sends first packets to the ClusterIPs of apps with a source of somebody else for 15
// seconds, and returns how many. No endpoint on the other node may count as silent.
func (c *cluster) forge(t *testing.T, source netip.Addr, apps ...app) int {
	t.Helper()
	w, sent := newWire(t, c.Host("shopper")), 0
	for until := time.Now().Add(15 * time.Second); time.Now().Before(until); {
		for i := range 100 {
			to := apps[i%len(apps)].at(service.ClusterIP, service.IPv4)
			w.send(t, c.Host("shopper"), probe{w.next(), service.TCP, netip.AddrPortFrom(source, w.port()), to})
			sent++
		}
		for _, x := range c.silent(t) {
			if strings.HasPrefix(x.Address, "10.244.2.") {
				t.Fatalf("after %d forged SYNs: %+v", sent, x)
			}
		}
	}
	return sent
}

// TestStickyClients has the endpoint of a client with session affinity fall silent, and come back while
// the next one loses every other answer.
func TestStickyClients(t *testing.T) {
	for _, name := range faultModes[:2] { // the relay tells itself
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := modeNamed(name)
			m.plain = true // accelerated sockets do not pass rules
			stickyClients(t, m)
		})
	}
}

// TestStickyClientsLetGo has the endpoint of a client with session affinity fall silent where
// nothing leaves it out, or half are already. The client gets another one, and keeps that.
func TestStickyClientsLetGo(t *testing.T) {
	for _, setting := range []string{"off", "on"} {
		for _, name := range faultModes[:2] {
			t.Run(name+" "+setting, func(t *testing.T) {
				t.Parallel()
				m := modeNamed(name)
				m.plain = true
				m.flags = append(slices.Clip(m.flags), "--silent-endpoints="+setting)
				stickyClientsLetGo(t, m, setting == "on")
			})
		}
	}
}

func stickyClientsLetGo(t *testing.T, m mode, half bool) {
	c := newCluster(t, m)
	shop, other := app{name: "shop", number: 10, sticky: 3600, plain: true}.on(c.webs()...), app{name: "other", number: 11}.on(c.webs()...)
	c.start(t, shop, other)
	c.awaitProgrammed(t)
	families := service.Families[:]
	if half {
		families = families[:1]
	}
	for _, f := range families {
		ask := func() netlab.Answer {
			a, err := c.Host("shopper").Ask(t.Context(), netlab.Query{Proto: "tcp", To: shop.at(service.ClusterIP, f), Timeout: time.Minute})
			if err != nil || a.Outcome != netlab.Answered {
				t.Errorf("%s: %s, %v", f, a.Outcome, err)
			}
			return a
		}
		had := ask().Backend
		if half {
			c.silenceTwo(t, slices.DeleteFunc(c.webs(), func(h *netlab.Host) bool { return h.Name == had })[:2], other)
		}
		dropWeb(t, c.Host(had))
		if half { // it may draw the same one
			kit.Until(t, "that the client gets another one", func() bool {
				a, _ := c.Host("shopper").Ask(t.Context(), netlab.Query{Proto: "tcp", To: shop.at(service.ClusterIP, f), Timeout: 10 * time.Second})
				return a.Outcome == netlab.Answered
			})
		}
		next := ask()
		t.Logf("%s: %s is silent; %s answers after %s", f, had, next.Backend, next.Took)
		nft(t, c.Host(had), "delete table inet silent\n")
		for range 10 {
			if now := ask().Backend; now != next.Backend {
				t.Errorf("%s: the client went on from %s to %s", f, next.Backend, now)
			}
		}
	}
}

// silenceTwo has two hosts answer nothing until clients of an app have them left out.
func (c *cluster) silenceTwo(t *testing.T, two []*netlab.Host, of app) {
	t.Helper()
	dropWeb(t, two[0])
	dropWeb(t, two[1])
	kit.Until(t, "that two are left out", func() bool {
		c.connects(t, of, 8)
		out := map[string]bool{}
		for _, x := range c.silent(t) {
			out[x.Address] = x.LeftOut
		}
		at := func(h *netlab.Host) string { return netip.AddrPortFrom(h.IPv4, target).String() }
		return out[at(two[0])] && out[at(two[1])]
	})
}

func stickyClients(t *testing.T, m mode) {
	c := newCluster(t, m)
	shop := app{name: "shop", number: 10, sticky: 3600, plain: true}.on(c.webs()...)
	p := c.start(t, shop)
	c.awaitProgrammed(t)
	ask := func() (string, time.Duration) {
		a, err := c.Host("shopper").Ask(t.Context(), netlab.Query{Proto: "tcp", To: shop.at(service.ClusterIP, service.IPv4), Timeout: time.Minute})
		if err != nil || a.Outcome != netlab.Answered {
			t.Errorf("%s, %v", a.Outcome, err)
		}
		return a.Backend, a.Took
	}
	had, _ := ask()
	dropWeb(t, c.Host(had))
	var next string
	var took time.Duration
	var client sync.WaitGroup
	start := time.Now()
	client.Go(func() { next, took = ask() })
	kit.Until(t, had+" is left out", func() bool { n, _ := p.Metric(t, "kubeproxy_silent_endpoints", "use=out"); return n > 0 })
	known := time.Since(start)
	client.Wait()
	// The first packet comes again after 1, 3, 7, 15 and 31 s: after the endpoint is left out, at
	// the latest as much later.
	if took > 2*known+3*time.Second {
		t.Errorf("%s was left out after %s, and %s answered after %s", had, known, next, took)
	} else {
		t.Logf("%s was left out after %s, and %s answered after %s", had, known, next, took)
	}
	nft(t, c.Host(had), "delete table inet silent\n")
	nft(t, c.Host(next), "table inet lossy { chain out { type filter hook output priority 0; tcp flags & (syn|ack) == (syn|ack) numgen inc mod 2 0 drop; }; }\n")
	for until := time.Now().Add(15 * time.Second); time.Now().Before(until); {
		if now, _ := ask(); now != next {
			t.Fatalf("the client went on to %s, although %s answers", now, next)
		}
	}
}
