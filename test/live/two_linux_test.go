// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"kubeproxy/common/health"
	"kubeproxy/common/service"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

// secondHealth and secondMetrics are the addresses of the servers of a second proxy.
const secondHealth, secondMetrics = "127.0.0.1:20256", "127.0.0.1:20249"

// startSecond starts a second proxy on c's node, in mode m, with manifests of its own.
func (c *cluster) startSecond(t *testing.T, m mode, apps ...app) (*cluster, *program.Proxy) {
	t.Helper()
	d := &cluster{Lab: c.Lab, dir: t.TempDir()}
	d.setMode(t, m)
	d.write(t, "node.yaml", program.Manifest[any](t, node()))
	d.save(t, apps...)
	args := append([]string{"--manifests=" + d.dir, "--iptables-min-sync-period=10ms"}, m.flags...)
	args = append(args, "--healthz-bind-address="+secondHealth, "--metrics-bind-address="+secondMetrics)
	return d, program.Start(t, c.Node, d.command(args...))
}

// reportOf returns the full health report of a proxy. It checks that load balancers get
// status 200 all the time.
func reportOf(t *testing.T, p *program.Proxy, metrics string) health.Report {
	t.Helper()
	at := program.HealthAddr
	if metrics == secondMetrics {
		at = secondHealth
	}
	if page := p.Fetch(t, at, "/healthz"); page.Status != http.StatusOK || strings.Contains(string(page.Body), "process ") {
		t.Errorf("/healthz at %s: status %d, want 200 and no process\n%s", at, page.Status, page.Body)
	}
	var r struct{ Health health.Report }
	if err := json.Unmarshal(p.Fetch(t, metrics, "/services").Body, &r); err != nil {
		t.Fatal(err)
	}
	return r.Health
}

func rounds(r health.Report) int {
	n := 0
	for _, s := range r.Status {
		n += s.Rounds
	}
	return n
}

// TestTwoProxies checks that two proxies of one node, in any modes, do not undo each
// other's work. The one that started last programs the node, both report that, and when
// it ends the other one takes over. No connection is lost.
func TestTwoProxies(t *testing.T) {
	t.Parallel()
	for _, pair := range [][2]string{
		{"nftables", "nftables"}, {"nftables", "iptables-nft"}, {"iptables-legacy", "iptables-legacy"},
		{"iptables-nft", "nftables"}, {"userspace", "userspace"},
	} {
		t.Run(strings.Join(pair[:], " and "), func(t *testing.T) {
			t.Parallel()
			twoProxies(t, pair[0], pair[1])
		})
	}
}

// TestIPVSTwoProxies does the same with mode ipvs, where the other one's virtual servers
// count as well.
func TestIPVSTwoProxies(t *testing.T) {
	needIPVS(t)
	t.Parallel()
	for _, second := range []string{"ipvs", "nftables"} {
		t.Run(second, func(t *testing.T) { twoProxies(t, "ipvs", second) })
	}
}

func modeNamed(name string) mode {
	if name == "userspace" {
		return inUserspace("nft")
	}
	return switchableModes()[name]
}

func twoProxies(t *testing.T, first, second string) {
	c := newCluster(t, modeNamed(first))
	one, two := c.Host("web-1"), c.Host("web-2")
	web := app{name: "web", number: 10}
	c.save(t, web.on(one))
	p := c.start(t)
	var loads []*netlab.Load
	for _, f := range service.Families {
		loads = append(loads, c.Host("shopper").Load(t.Context(), netlab.LoadConfig{
			Query: netlab.Query{Proto: "tcp", To: web.at(service.ClusterIP, f)}, Workers: 1,
		}))
	}
	d, q := c.startSecond(t, modeNamed(second), web.on(two))
	for _, f := range service.Families {
		q.AwaitLog(t, `"Programmed"`, d.mode.proxyMode()+" "+f.String())
	}
	kit.Until(t, "that the first proxy stands by", func() bool {
		return strings.Contains(reportOf(t, p, program.MetricsAddr).Conditions["other-proxy"], fmt.Sprintf("process %d (", q.Pid()))
	})
	kit.Until(t, "that the second proxy names the first", func() bool {
		return strings.Contains(reportOf(t, q, secondMetrics).Conditions["other-proxy"], fmt.Sprintf("process %d (", p.Pid()))
	})
	before := rounds(reportOf(t, p, program.MetricsAddr))
	for i := range 10 { // changes for the first one only
		c.save(t, app{name: fmt.Sprintf("more-%d", i), number: 20 + i}.on(one))
	}
	d.save(t, app{name: "late", number: 12}.on(two))
	d.awaitReached(t, web, "web-2")
	if n := rounds(reportOf(t, p, program.MetricsAddr)) - before; n != 0 {
		t.Errorf("the first proxy did %d rounds while the second one programs the node", n)
	}
	if v, ok := p.Metric(t, "kubeproxy_standby"); !ok || v != 1 {
		t.Errorf("kubeproxy_standby of the first = %v, %t, want 1", v, ok)
	}
	if n := p.Log.Count("another service proxy programs this node"); n != 1 {
		t.Errorf("said %d times that another proxy programs the node, want once", n)
	}
	q.Stop(t)
	kit.Until(t, "that the first proxy is alone", func() bool {
		r := reportOf(t, p, program.MetricsAddr)
		return r.Conditions["other-proxy"] == "" && r.Standby == ""
	})
	c.awaitReached(t, web, "web-1")
	if first != second {
		for _, f := range service.Families {
			p.AwaitLog(t, "Removed what an earlier service proxy left", f.String())
		}
		c.checkOnlyMode(t, first)
	}
	for i, l := range loads {
		if r := l.Stop(); r.Lost() > 0 || r.Connections == 0 {
			t.Errorf("load %d: %s", i, r)
		}
	}
	if p.Log.Has("Others had altered our rules") || q.Log.Has("Others had altered our rules") {
		t.Error("one took the other's rules for alterations of its own")
	}
	p.Stop(t)
}

// awaitReached waits until connections to a reach the host.
func (c *cluster) awaitReached(t *testing.T, a app, host string) {
	t.Helper()
	for _, f := range service.Families {
		kit.Until(t, "that "+host+" answers", func() bool {
			r, err := c.Host("customer").Ask(t.Context(), netlab.Query{Proto: "tcp", To: a.at(service.NodePort, f)})
			return err == nil && r.Backend == host
		})
	}
}

// TestSecondProxyCrashes checks that a proxy with the lease that crashes leaves its rules
// in force, and that the previous one continues from them.
func TestSecondProxyCrashes(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	web := app{name: "web", number: 10}
	c.save(t, web.on(c.Host("web-1")))
	p := c.start(t)
	for range 3 {
		d, q := c.startSecond(t, defaultMode(), web.on(c.Host("web-2")))
		d.awaitReached(t, web, "web-2")
		q.Kill()
		c.awaitReached(t, web, "web-1")
	}
	p.Stop(t)
}

// TestScriptAgainstRules runs a script that breaks the rules in a loop. Its changes are
// repaired, but not each by a round of its own. The script is named, and does not fill
// the log.
func TestScriptAgainstRules(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	web := app{name: "web", number: 10}.on(c.webs()...)
	c.save(t, web)
	p := c.start(t)
	want := c.awaitProgrammed(t)
	deeds := 0
	kit.Until(t, "a condition that names nft", func() bool {
		nft(t, c.Node, "delete element ip kube-services services { 10.96.0.10 . tcp . 80 }\n")
		deeds++
		c.awaitSnapshot(t, want)
		return strings.Contains(reportOf(t, p, program.MetricsAddr).Conditions["drift-IPv4"], "(nft)")
	})
	before, began := reportOf(t, p, program.MetricsAddr).Status["IPv4"].Rounds, time.Now()
	for range 3 {
		nft(t, c.Node, "delete element ip kube-services services { 10.96.0.10 . tcp . 80 }\n")
		for range 20 {
			nft(t, c.Node, "add chain ip kube-services mine\nadd rule ip kube-services mine counter\n")
		}
		c.awaitSnapshot(t, want)
	}
	// A pause of a second follows each round that repairs something. The news of a change may
	// come after its repair, and cause a round that finds nothing.
	n := reportOf(t, p, program.MetricsAddr).Status["IPv4"].Rounds - before
	took := time.Since(began)
	if most := 2*int(took/time.Second) + 8; n > most {
		t.Errorf("%d rounds for 63 changes by a script in %s, want %d at most", n, took, most)
	}
	if n := p.Log.Count("Others had altered our rules", "nftables IPv4"); n > 12 {
		t.Errorf("%d lines of the log about %d changes", n, deeds)
	}
	if v, ok := p.Metric(t, "kubeproxy_condition", "condition", "drift-IPv4"); !ok || v != 1 {
		t.Errorf("kubeproxy_condition of drift-IPv4 = %v, %t, want 1", v, ok)
	}
	c.check(t, want, c.cells(c.clientHosts()[:1], web))
}

// TestCommandsWithRunningProxy checks that a program that rewrites the rules for a while does
// not block commands that end by themselves, which need no lease.
func TestCommandsWithRunningProxy(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	web := app{name: "web", number: 10}.on(c.webs()...)
	c.save(t, web)
	p := c.start(t)
	want := c.awaitProgrammed(t)
	for _, args := range [][]string{{"--init-only"}, {"render", "--manifests=" + c.dir}, {"--cleanup"}} {
		out, err := program.Run(t, c.Node, c.command(append(args, c.mode.flags...)...))
		// The proxy may make a table anew before the cleanup looks whether it is gone.
		if err != nil && !strings.Contains(out, "which was removed: another program makes it") {
			t.Errorf("%v beside a proxy: %v\n%s", args, err, out)
		}
	}
	c.awaitSnapshot(t, want)
	if r := reportOf(t, p, program.MetricsAddr); r.Standby != "" || r.Conditions["other-proxy"] != "" {
		t.Errorf("commands count as proxies: %v", r.Conditions)
	}
}
