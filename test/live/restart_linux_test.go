// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
	"kubeproxy/test/judge"
	"kubeproxy/test/kit"
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
	p := c.start(t, web, sticky)
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
		p.AwaitLogs(t, `"Programmed"`, "FAMILY", "changed=false")
		lines.checkSameServer(t)
	}
	p.Stop(t) // the follow-up of a round is done now
	lines.checkSameServer(t)
	packets.checkSameServer(t)
	kit.Check(t, !p.Log.Has("Removed stale flows"), "flows were removed at the start")
	moved := home.movedClients(t)
	kit.Check(t, len(moved) == 0, "clients were forgotten: %v", moved)
	kit.Same(t, "the rules changed (-before +after)", before, rules(c))
}

// TestChangedMeanwhile checks that only what changed while the proxy was down changes
// when it is back.
func TestChangedMeanwhile(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	web := app{name: "web", number: 10}.on(c.webs()...)
	gone := app{name: "gone", number: 11}.on(c.webs()...)
	rolled := app{name: "rolled", number: 12}.on(c.Host("web-1"))
	c.start(t, web, gone, rolled).Stop(t)
	stay, leave, move := c.converse(t, "udp", web, 2), c.converse(t, "udp", gone, 1), c.converse(t, "udp", rolled, 1)

	c.remove(t, "gone.yaml")
	p := c.start(t, rolled.on(c.Host("web-4")), app{name: "new", number: 13}.on(c.Host("web-2")))
	c.check(t, c.awaitProgrammed(t), c.cells(c.clientHosts(), web, rolled))
	move.await(t, "follows", func(_ conversation, a netlab.Answer) bool { return a.Backend == "web-4" })
	p.Stop(t)
	stay.checkSameServer(t)
	leave.await(t, "ends", func(_ conversation, a netlab.Answer) bool { return a.Outcome != netlab.Answered })
}

// variant is one of several clusters that share little.
type variant struct {
	text    []byte
	want    *service.Snapshot
	samples []judge.Call
}

// many is enough apps for several transactions in each family.
const many = 300

func (c *cluster) variant(t *testing.T, n int) variant {
	t.Helper()
	var items []any
	var apps, absent []app
	webs := c.webs()
	for i := range many {
		a := app{name: fmt.Sprintf("many-%d", i), number: 100 + (i+37*n)%many}.on(webs[(i+n)%3 : 4-i*n%2]...)
		if (i+n)%5 == 0 {
			absent = append(absent, a)
			continue
		}
		if (i+n)%7 == 0 {
			a.external = "Local"
		}
		if (i+n)%11 == 0 {
			a.sticky = 60
		}
		apps = append(apps, a)
		items = append(items, a.service(), a.slice(service.IPv4), a.slice(service.IPv6))
	}
	text, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "List", "items": items})
	kit.Must(t, err)
	c.write(t, "many.json", text)
	samples := c.cells(c.clientHosts()[:1], apps[0], apps[len(apps)/2], apps[len(apps)-1], absent[0], absent[len(absent)/2])
	return variant{text, c.want(t), samples}
}

// killOnce starts a proxy and kills it at some moment after its first transaction, or
// after a while if it has nothing to write.
func (c *cluster) killOnce(t *testing.T, after time.Duration) {
	t.Helper()
	before := program.Generation(t, c.Node)
	p := c.launch(t)
	kit.Until(t, "the proxy writes", func() bool {
		return program.Generation(t, c.Node) != before || p.Log.Has(`"Programmed"`)
	})
	time.Sleep(after)
	p.Kill()
}

// TestKilled kills proxies while they program. The next proxy must complete the partial
// state, whatever its desired state is.
func TestKilled(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	var variants []variant
	for n := range 3 {
		variants = append(variants, c.variant(t, n))
	}
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	partial, at := 0, 0
	next := func() variant { // never the same twice
		at = (at + 1 + random.IntN(len(variants)-1)) % len(variants)
		c.write(t, "many.json", variants[at].text)
		return variants[at]
	}
	// About every other kill finds a partial state. If it is rarer, more rounds are
	// needed to distinguish it from never.
	const fewestRounds, enoughRounds, mostRounds = 4, 12, 60
	for round := 0; round < fewestRounds || partial < 3 && round < enoughRounds || partial == 0 && round < mostRounds; round++ {
		for range 1 + random.IntN(3) {
			v := next()
			c.killOnce(t, max(0, time.Duration(random.Int64N(int64(30*time.Millisecond)))-15*time.Millisecond))
			if c.kernel.Diff(t, v.want) != "" {
				partial++
			}
		}
		v := next()
		p := c.launch(t)
		p.AwaitLogs(t, `"Programmed"`, "FAMILY")
		c.awaitSnapshot(t, v.want)
		c.check(t, v.want, v.samples)
		p.Kill()
	}
	t.Logf("%d times something was half done", partial)
	kit.Check(t, partial != 0, "no proxy was killed while it programmed")
}

// TestKilledWhileManifestsChange kills proxies while they program changes of other
// Services, and while an endpoint is left out because it is silent. A Service that does not
// change loses no connection. At the end the right rules are in
// force, and there are as many as before. KUBEPROXY_NIGHTLY=1 kills 30 in each mode.
func TestKilledWhileManifestsChange(t *testing.T) { withoutIPVS(t, killedUnderChanges) }

func killedUnderChanges(t *testing.T, m mode) {
	c := newCluster(t, m)
	web := app{name: "web", number: 10}.on(c.webs()...)
	c.save(t, web)
	var variants []variant
	for n := range 3 {
		variants = append(variants, c.variant(t, n))
	}
	p := c.start(t)
	before, last := c.countRules(t), variants[len(variants)-1]
	loads, lines := c.loads(t, web), c.converse(t, "tcp", web, 1)
	kills := 4
	if kit.Nightly() {
		kills = 30
	}
	partial := 0
	for n := range kills {
		silent := n%4 < 2
		if silent {
			c.silence(t, c.Host("web-4"))
		} else {
			c.settle(t, p, web, c.Host("web-4"))
		}
		v, was := variants[n%(len(variants)-1)], program.Generation(t, c.Node)
		c.write(t, "many.json", v.text)
		if n%2 == 0 && m.iptables != "legacy" { // which the generation does not count
			kit.Until(t, "the proxy writes", func() bool { return program.Generation(t, c.Node) != was })
		} else {
			time.Sleep(time.Duration(rand.Int64N(int64(200 * time.Millisecond))))
		}
		p.Kill()
		if !silent && c.kernel.Diff(t, v.want) != "" {
			partial++
		}
		p = c.launch(t)
		p.AwaitLogs(t, `"Programmed"`, "FAMILY")
	}
	c.settle(t, p, web, c.Host("web-4"))
	c.write(t, "many.json", last.text)
	c.awaitSnapshot(t, last.want)
	c.check(t, last.want, last.samples)
	lines.checkSameServer(t)
	t.Logf("%d kills, %d before all was in force; %d connections", kills, partial, connectionsOf(loads))
	lossless(t, loads)
	kit.Until(t, "as many rules as before", func() bool { return c.countRules(t) == before })
	p.Stop(t)
}

// countRules counts the rules and elements of the mode.
func (c *cluster) countRules(t *testing.T) int {
	t.Helper()
	if c.mode.iptables != "" {
		return strings.Count(c.listing(t), "\n")
	}
	return strings.Count(withoutClients(ours(t, c.Node)), "\n")
}

// TestUDPEndsThoughKilled kills proxies shortly after they were told that a Service is
// deleted, in several modes. Whatever they had done until then, a client with an old flow
// is not answered any more, and other flows go on.
func TestUDPEndsThoughKilled(t *testing.T) {
	for name, m := range map[string]mode{"nftables": defaultMode(), "iptables": modeNamed("iptables-nft"), "userspace": inUserspace("nft")} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, m)
			gone := app{name: "gone", number: 10}.on(c.Host("web-1"))
			stays := app{name: "stays", number: 12}.on(c.webs()...)
			c.save(t, stays)
			var others conversations
			for try := range 6 {
				p := c.start(t, gone)
				leaving := c.converse(t, "udp", gone, 1)
				if try == 0 && name != "userspace" { // whose flows end with the process
					others = c.converse(t, "udp", stays, 2)
				}
				before := program.Generation(t, c.Node)
				c.remove(t, "gone.yaml")
				kit.Until(t, "the proxy writes", func() bool { return program.Generation(t, c.Node) != before })
				time.Sleep(time.Duration(try) * time.Millisecond)
				p.Kill()
				c.start(t).Kill()
				leaving.await(t, "ends", func(_ conversation, a netlab.Answer) bool { return a.Outcome != netlab.Answered })
			}
			others.checkSameServer(t)
		})
	}
}

// connections is the least number of connections while endpoints change.
const connections = 10_000

// TestRollout changes endpoints all the time. No connection is lost, neither to the
// endpoint that stays nor to the others, which end only after they were removed.
func TestRollout(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	one, two, three, four := c.Host("web-1"), c.Host("web-2"), c.Host("web-3"), c.Host("web-4")
	web := app{name: "web", number: 10}
	sticky := app{name: "sticky", number: 11, sticky: 60, external: "Local"}
	stages := [][]*netlab.Host{{one, two, three}, {one, three, four}, {one}, {four, one}, {two, one}, {one, two, three, four}}
	p := c.start(t, web.on(stages[0]...), sticky.on(stages[0]...))

	var loads []*netlab.Load
	for _, l := range []struct {
		from *netlab.Host
		app  app
		kind service.Kind
	}{
		{c.Host("shopper"), web, service.ClusterIP}, {c.Host("customer"), web, service.NodePort},
		{c.Node, web, service.ClusterIP}, {c.Host("customer"), sticky, service.LoadBalancerIP},
	} {
		for _, f := range service.Families {
			loads = append(loads, l.from.Load(t.Context(), netlab.LoadConfig{
				Query: netlab.Query{Proto: "tcp", To: l.app.at(l.kind, f)}, Workers: 2,
			}))
		}
	}
	made := 0
	for stage := 1; made < connections || stage <= 2*len(stages); stage++ {
		hosts := stages[stage%len(stages)]
		c.awaitProgrammed(t, web.on(hosts...), sticky.on(hosts...))
		made = 0
		for _, l := range loads {
			made += l.Report().Connections
		}
	}
	for i, l := range loads {
		r := l.Stop()
		kit.Check(t, r.Lost() <= 0 && r.Connections != 0, "load %d: %s", i, r)
	}
	p.Stop(t)
}

// TestOpenConnectionsOutliveRollout checks that an open connection goes on after its
// endpoint was removed, until the endpoint itself ends.
func TestOpenConnectionsOutliveRollout(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	web := app{name: "web", number: 10}.on(c.Host("web-1"))
	c.start(t, web)
	open := c.converse(t, "tcp", web, 1)
	c.awaitProgrammed(t, web.on(c.Host("web-3")))
	open.checkSameServer(t)
	c.remove(t, "web.yaml")
	c.awaitProgrammed(t)
	open.checkSameServer(t)
}

// configHead begins every configuration file.
const configHead = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"

// volume is a mounted volume that holds a configuration file.
type volume struct{ dir string }

// mount installs a version of the file in one step, by swapping a link, as kubelet does.
// See
// https://kubernetes.io/docs/concepts/configuration/configmap/#mounted-configmaps-are-updated-automatically
func (v volume) mount(t *testing.T, version, body string) {
	t.Helper()
	dir, next := filepath.Join(v.dir, version), filepath.Join(v.dir, "..data_tmp")
	kit.Must(t, errors.Join(
		os.Mkdir(dir, 0o755),
		os.WriteFile(filepath.Join(dir, "config.conf"), []byte(configHead+body), 0o600),
		os.Symlink(version, next),
		os.Rename(next, filepath.Join(v.dir, "..data"))))
}

// newVolume mounts a first version and returns the file's path as well.
func newVolume(t *testing.T, body string) (v volume, path string) {
	t.Helper()
	v = volume{t.TempDir()}
	v.mount(t, "..first", body)
	path = filepath.Join(v.dir, "config.conf")
	kit.Must(t, os.Symlink(filepath.Join("..data", "config.conf"), path))
	return v, path
}

// TestReload swaps the volume. Settings that a running proxy can apply are then in force,
// and no connection is lost.
func TestReload(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	v, path := newVolume(t, "")
	c.mode.flags = append(c.mode.flags, "--config="+path)
	web := app{name: "web", number: 10}.on(c.webs()...)
	p := c.start(t, web)
	want := c.awaitProgrammed(t)
	c.checkNodePorts(t, want, web)
	lines := c.converse(t, "tcp", web, 1)
	load := c.Host("shopper").Load(t.Context(), netlab.LoadConfig{
		Query: netlab.Query{Proto: "tcp", To: web.at(service.ClusterIP, service.IPv4)}, Pause: 5 * time.Millisecond,
	})

	v.mount(t, "..second", "nodePortAddresses: [10.244.1.0/24, 'fd00:10:244:1::/64']\nipvs: {scheduler: sh}\n")
	p.AwaitLog(t, "is in force", "nodePortAddresses: [] -> ", "10.244.1.0/24", "notInUse", "ipvs.scheduler")
	c.mode.trackOptions.NodePorts = prefixes("10.244.1.0/24", "fd00:10:244:1::/64")
	want = c.awaitProgrammed(t)
	c.check(t, want, c.cells(c.clientHosts(), web))
	c.checkNodePorts(t, want, web)
	lines.checkSameServer(t)

	v.mount(t, "..third", "nftables: {masqueradeAll: true, syncPeriod: 20s}\nhealthzBindAddress: 127.0.0.1:10256\n")
	p.AwaitLog(t, "is in force", "nftables.masqueradeAll: false -> true", "healthzBindAddress", "nftables.syncPeriod")
	c.mode.trackOptions.NodePorts, c.mode.trackOptions.MasqueradeAll = nil, true
	want = c.awaitProgrammed(t)
	c.check(t, want, c.cells(c.clientHosts(), web))
	c.checkNodePorts(t, want, web)
	lines.checkSameServer(t)
	kit.Until(t, "the health server at its new address", func() bool {
		return p.Status(t, program.HealthAddr, "/healthz") == http.StatusOK && p.Status(t, "192.0.2.10:10256", "/healthz") == 0
	})
	report := load.Stop()
	kit.Check(t, report.Lost() <= 0, "connections were lost meanwhile: %s", report)
	n, _ := p.Metric(t, "kubeproxy_config_reloads_total", "result", "applied")
	kit.Check(t, n == 2, "%v reloads are counted, want 2", n)
	var shown struct {
		Config struct {
			NFTables struct{ MasqueradeAll bool }
		} `json:"kubeproxy.config.k8s.io"`
	}
	if p.JSON(t, "/configz", &shown); !shown.Config.NFTables.MasqueradeAll {
		t.Error("/configz does not show what is in force")
	}
}

// TestReloadBadFile checks that a faulty file changes nothing, is reported once, and that
// the condition ends when it is good again.
func TestReloadBadFile(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	path := filepath.Join(t.TempDir(), "config.yaml")
	put := func(body string) { // in one step: half a file may be taken for a faulty one
		t.Helper()
		kit.Must(t, errors.Join(os.WriteFile(path+".next", []byte(configHead+body), 0o600), os.Rename(path+".next", path)))
	}
	put("nodePortAddresses: [10.244.1.0/24]\n")
	c.mode.flags = append(c.mode.flags, "--config="+path)
	c.mode.trackOptions.NodePorts = prefixes("10.244.1.0/24")
	web := app{name: "web", number: 10}.on(c.webs()...)
	p := c.start(t, web)
	want, rules := c.awaitProgrammed(t), program.Generation(t, c.Node)
	for i, tc := range []struct {
		name   string
		change func()
		said   []string
	}{
		{"no YAML", func() { put("mode: [\n") }, []string{"not YAML"}},
		{"a misspelt field", func() { put("nodePortAdresses: []\n") }, []string{"config.yaml:3", "nodePortAdresses", "did you mean"}},
		{"an impossible value", func() { put("nodePortAddresses: [all, everywhere]\n") }, []string{"config.yaml:3", "everywhere"}},
		{"gone", func() { os.Remove(path) }, []string{"no such file"}},
	} {
		tc.change()
		p.AwaitLog(t, append(tc.said, "cannot be used", "stays")...)
		page := p.Fetch(t, program.HealthAddr, "/healthz")
		kit.Check(t, page.Status == http.StatusOK && strings.Contains(string(page.Body), tc.said[0]),
			"%s: health is %d, %s; want 200 and the reason", tc.name, page.Status, page.Body)
		n, _ := p.Metric(t, "kubeproxy_config_reloads_total", "result", "rejected")
		kit.Check(t, n == float64(i+1), "%s: %v rejections are counted, want %d", tc.name, n, i+1)
	}
	c.check(t, want, c.cells(c.clientHosts()[:1], web))
	put("# good again\nnodePortAddresses: [10.244.1.0/24]\n")
	p.AwaitLog(t, "means the same")
	kit.Must(t, syscall.Kill(p.Pid(), syscall.SIGHUP))
	kit.Until(t, "a second look, which was asked for", func() bool { return p.Log.Count("means the same") == 2 })
	if page := p.Fetch(t, program.HealthAddr, "/healthz"); strings.Contains(string(page.Body), "configuration") {
		t.Errorf("the condition stays: %s", page.Body)
	}
	n, _ := p.Metric(t, "kubeproxy_config_last_reload_successful")
	kit.Check(t, n == 1, "the last reload counts as %v, want 1", n)
	now := program.Generation(t, c.Node)
	kit.Check(t, now == rules, "the rules were written %d times", now-rules)
	p.Stop(t)
}

// TestReloadByRestart checks that the old process exits with success for a setting that
// only a new one can apply. The rules stay, and the new process adopts them.
func TestReloadByRestart(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	v, path := newVolume(t, "nftables: {syncPeriod: 30s}\n")
	c.mode.flags = append(c.mode.flags, "--config="+path)
	web := app{name: "web", number: 10}.on(c.webs()...)
	p := c.start(t, web)
	want := c.awaitProgrammed(t)
	lines, rules := c.converse(t, "tcp", web, 1), program.Generation(t, c.Node)
	v.mount(t, "..second", "bindAddress: 192.0.2.10\nnodePortAddresses: [192.0.2.10/32, 2001:db8:2::10/128]\n")
	err := p.Wait(t)
	kit.Need(t, err == nil, "the proxy ended with %v, want exit status 0", err)
	kit.Check(t, p.Log.Has("only a new process can apply", "bindAddress") && p.Log.Has("the rules stay in force"),
		"the log does not say why the proxy ended")
	lines.checkSameServer(t)
	c.check(t, want, c.cells(c.clientHosts()[:1], web))
	p = c.launch(t)
	p.AwaitLogs(t, `"Programmed"`, "FAMILY", "changed=false")
	lines.checkSameServer(t)
	if now := program.Generation(t, c.Node); now != rules+1 {
		t.Errorf("the node was written to %d times, want once: the settings of the new process", now-rules)
	}
	p.Stop(t)
}

// TestReloadEarly checks that a SIGHUP during the start does not end the process, but
// leads to a check of the file as soon as possible.
func TestReloadEarly(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	_, path := newVolume(t, "")
	c.save(t, app{name: "web", number: 10}.on(c.webs()...))
	c.mode.flags = append(c.mode.flags, "--config="+path)
	p := c.launch(t)
	p.AwaitLog(t, "Services come from manifests")
	kit.Must(t, syscall.Kill(p.Pid(), syscall.SIGHUP))
	p.AwaitLog(t, "was read again")
	p.Stop(t)
}

// TestStalledLogDoesNotBlock starts the program with a pipe as standard error that is not
// read and fills up after some lines. Changes are still programmed, and a signal ends the
// program in time.
func TestStalledLogDoesNotBlock(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	r, w, err := os.Pipe()
	kit.Must(t, err)
	defer r.Close()
	_, err = unix.FcntlInt(w.Fd(), unix.F_SETPIPE_SZ, 4096)
	kit.Must(t, err)
	cmd := c.command(append([]string{"--manifests=" + c.dir, "--iptables-min-sync-period=10ms", "-v=9"}, c.mode.flags...)...)
	cmd.Stderr, cmd.Stdout = w, w
	ended := startOnNode(t, c, cmd)
	w.Close()
	for i := range 20 {
		c.awaitProgrammed(t, app{name: "web", number: 10 + i}.on(c.webs()...))
	}
	kit.Must(t, cmd.Process.Signal(syscall.SIGTERM))
	endsInTime(t, ended, 5*time.Second)
}

// TestLogWithoutReader ends the reader of the log while the program runs, as a log shipper that
// restarts. Changes are still programmed. A command that prints ends with its reader, silently.
func TestLogWithoutReader(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"text", "json"} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, defaultMode())
			cmd := c.command(append([]string{"--manifests=" + c.dir, "--iptables-min-sync-period=10ms", "-v=4", "--logging-format=" + format}, c.mode.flags...)...)
			r, w, err := os.Pipe()
			kit.Must(t, err)
			cmd.Stderr, cmd.Stdout = w, w
			ended := startOnNode(t, c, cmd)
			w.Close()
			_, err = r.Read(make([]byte, 1))
			kit.Must(t, err)
			r.Close()
			for i := range 5 {
				c.awaitProgrammed(t, app{name: "web", number: 10 + i}.on(c.webs()...))
			}
			kit.Must(t, cmd.Process.Signal(syscall.SIGTERM))
			endsInTime(t, ended, 5*time.Second)
			kit.Check(t, cmd.ProcessState.Success(), "ended with %s", cmd.ProcessState)
		})
	}
	for _, args := range [][]string{{"--help"}, {"--write-config-to=-"}} {
		cmd := kubeProxy.Command(args...)
		r, w, err := os.Pipe()
		kit.Must(t, err)
		r.Close()
		var problems strings.Builder
		cmd.Stdout, cmd.Stderr = w, &problems
		err = cmd.Run()
		w.Close()
		if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGPIPE || problems.Len() > 0 {
			t.Errorf("%q: %v, %s; want an end by SIGPIPE", args, err, problems.String())
		}
	}
}

// TestPipesAndKernelFilesAreRefused replaces manifests by a named pipe and by a link to
// the kernel's log, beside a manifest that keeps changing.
func TestPipesAndKernelFilesAreRefused(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	p := c.start(t, app{name: "web", number: 10}.on(c.webs()...))
	swap := func(make func(path string) error) {
		t.Helper()
		next := filepath.Join(c.dir, ".next")
		kit.Must(t, make(next))
		kit.Must(t, os.Rename(next, filepath.Join(c.dir, "odd.yaml")))
	}
	swap(func(path string) error { return unix.Mkfifo(path, 0o600) })
	p.AwaitLog(t, "odd.yaml", "is a named pipe; want a regular file")
	swap(func(path string) error { return os.Symlink("/proc/kmsg", path) })
	p.AwaitLog(t, "odd.yaml", "is a file of the kernel; want a regular file")
	for i := range 5 {
		swap(func(path string) error { return unix.Mkfifo(path, 0o600) })
		c.save(t, app{name: "two", number: 20 + i}.on(c.webs()...))
		c.remove(t, "odd.yaml") // the test itself could not read it
		c.awaitProgrammed(t)
	}
}

// startOnNode starts cmd on the node, and returns a channel that receives its error.
func startOnNode(t *testing.T, c *cluster, cmd *exec.Cmd) <-chan error {
	t.Helper()
	kit.Must(t, c.Node.Start(cmd))
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	return ended
}

// endsInTime requires that a process ends.
func endsInTime(t *testing.T, ended <-chan error, limit time.Duration) {
	t.Helper()
	select {
	case <-ended:
	case <-time.After(limit):
		t.Errorf("has not ended after %s", limit)
	}
}
