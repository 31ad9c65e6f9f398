// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"context"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/iptables"
	"kubeproxy/platform/linux/ipvs"
	"kubeproxy/platform/linux/nftables"
	"kubeproxy/test/judge"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

// switchableModes are the modes that a node may be switched between, by name.
func switchableModes() map[string]mode {
	all := map[string]mode{"nftables": defaultMode()}
	if ipvs.Installed() {
		m := defaultMode()
		m.flags = append(m.flags, "--proxy-mode=ipvs")
		m.ipvs = true
		all["ipvs"] = m
	}
	for _, v := range program.IPTablesVariants {
		m := defaultMode()
		m.flags = append(m.flags, "--proxy-mode=iptables", "--iptables-localhost-nodeports=false")
		m.iptables = v
		all["iptables-"+v] = m
	}
	return all
}

// tour passes from every mode to every other one.
var tour = []string{"nftables", "iptables-legacy", "iptables-nft", "nftables", "iptables-nft", "iptables-legacy", "nftables"}

// TestSwitchUnderLoad switches a node from mode to mode. No open connection ends, and no
// new one is refused or lost.
func TestSwitchUnderLoad(t *testing.T) {
	t.Parallel()
	c := newCluster(t, switchableModes()[tour[0]])
	c.variant(t, 0) // some hundred Services more
	c.switchThrough(t, tour, 5*time.Millisecond)
}

// switchThrough passes through the modes of tour, while each client makes a connection,
// waits for its answer, and pauses. Protocols in less may lose some connections.
func (c *cluster) switchThrough(t *testing.T, tour []string, pause time.Duration, less ...service.Protocol) {
	t.Helper()
	web := app{name: "web", number: 10}.on(c.webs()...)
	local := app{name: "local", number: 11, external: "Local"}.on(c.Host("web-1"), c.Host("web-3"))
	empty := app{name: "empty", number: 12}
	c.save(t, web, local, empty)
	p := c.start(t)
	c.awaitProgrammed(t)
	loads := c.loadsAt(t, pause, web, local)
	lines, packets := c.converse(t, "tcp", web, 1), c.converse(t, "udp", web, 1)
	for i, name := range tour[1:] {
		made := connectionsOf(loads)
		if p.Stop(t); i%2 == 0 { // else it crashes
			p.Kill()
		}
		c.setMode(t, switchableModes()[name])
		p = c.launch(t)
		for _, f := range service.Families {
			p.AwaitLog(t, "Found what an earlier service proxy left", f.String())
			if tour[i] == "ipvs" { // which carries connections itself
				p.AwaitLog(t, "takes no new connections from now on", f.String())
				continue
			}
			p.AwaitLog(t, "Removed what an earlier service proxy left", f.String())
		}
		want := c.awaitProgrammed(t)
		if tour[i] != "ipvs" {
			c.checkOnlyMode(t, name)
		}
		lines.checkSameServer(t)
		packets.checkSameServer(t)
		c.check(t, want, without(less, c.cells(c.clientHosts(), web, local, empty)))
		t.Logf("%s: %d connections made meanwhile", name, connectionsOf(loads)-made)
	}
	lossless(t, loads, less...)
}

// without leaves out calls of some protocols.
func without(less []service.Protocol, calls []judge.Call) []judge.Call {
	return slices.DeleteFunc(calls, func(x judge.Call) bool { return slices.Contains(less, x.Proto) })
}

// loads makes connections to apps continuously, of both protocols and families, from a
// pod, from outside and from the node.
func (c *cluster) loads(t *testing.T, apps ...app) []load {
	t.Helper()
	return c.loadsAt(t, 5*time.Millisecond, apps...)
}

func (c *cluster) loadsAt(t *testing.T, pause time.Duration, apps ...app) []load {
	t.Helper()
	var calls []judge.Call
	for _, f := range service.Families {
		for _, a := range apps {
			calls = append(calls, c.dials([]*netlab.Host{c.Host("shopper")}, a, service.ClusterIP, f)...)
			calls = append(calls, c.dials([]*netlab.Host{c.Host("customer")}, a, service.NodePort, f)...)
		}
		calls = append(calls, c.dials([]*netlab.Host{c.Node}, apps[0], service.ClusterIP, f)...)
	}
	var all []load
	for _, x := range calls {
		q := netlab.Query{Proto: x.Proto.String(), To: x.To}
		all = append(all, load{x.From.Load(t.Context(), netlab.LoadConfig{Query: q, Pause: pause}), x})
	}
	return all
}

// load is a Load with what it dials.
type load struct {
	*netlab.Load
	call judge.Call
}

// lossless ends loads and requires that every connection was answered, except for those
// of protocols in less.
func lossless(t *testing.T, loads []load, less ...service.Protocol) {
	t.Helper()
	for _, l := range loads {
		if r := l.Stop(); r.Lost() > 0 && !slices.Contains(less, l.call.Proto) {
			t.Errorf("%s: %s", l.call, r)
		}
	}
}

func connectionsOf(loads []load) int {
	n := 0
	for _, l := range loads {
		n += l.Report().Connections
	}
	return n
}

// checkOnlyMode requires the rules of one mode, and none of the others.
func (c *cluster) checkOnlyMode(t *testing.T, name string) {
	t.Helper()
	for _, f := range service.Families {
		for other, find := range map[string]finder{
			"nftables":        nftables.Leftovers{Family: f, Table: nftables.TableName},
			"iptables-legacy": iptables.Leftovers{Variant: iptables.Legacy, Family: f},
			"iptables-nft":    iptables.Leftovers{Variant: iptables.NFT, Family: f},
			"ipvs":            ipvs.Leftovers{Family: f},
		} {
			what := c.finds(t, find)
			if (what != "") != (other == name) {
				t.Errorf("mode is %s, and for %s %s has left %q", name, f, other, what)
			}
		}
	}
}

// finder returns the content of a place.
type finder interface {
	Find(context.Context) (string, error)
}

func (c *cluster) finds(t *testing.T, f finder) string {
	t.Helper()
	var what string
	err := c.Node.Do(func() (err error) {
		what, err = f.Find(t.Context())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return what
}

// TestSwitchWithoutCommands checks that leftovers that cannot be removed are a condition
// until they can, by this process or, after a crash, by the next one.
func TestSwitchWithoutCommands(t *testing.T) {
	t.Parallel()
	for name, crash := range map[string]bool{"later": false, "after a crash": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, switchableModes()["iptables-legacy"])
			web := app{name: "web", number: 10}.on(c.webs()...)
			c.save(t, web)
			c.start(t).Stop(t)
			lines := c.converse(t, "tcp", web, 1)
			dir := t.TempDir()
			p := c.startWithLeftovers(t, dir)
			c.check(t, c.awaitProgrammed(t), c.cells(c.clientHosts()[:1], web))
			if crash {
				p.Kill()
				p = c.launch(t)
			} else {
				linkLegacyCommands(t, dir)
			}
			p.AwaitLog(t, "Removed what an earlier service proxy left", "iptables-legacy", "chains of this proxy")
			kit.Until(t, "the condition goes", func() bool {
				return !strings.Contains(string(p.Fetch(t, program.HealthAddr, "/healthz").Body), "leftovers")
			})
			c.checkOnlyMode(t, "nftables")
			c.check(t, c.awaitProgrammed(t), c.cells(c.clientHosts()[:1], web))
			lines.checkSameServer(t)
		})
	}
}

// startWithLeftovers starts the proxy in mode nftables with only the commands in dir, and
// requires that it reports the leftovers.
func (c *cluster) startWithLeftovers(t *testing.T, dir string) *program.Proxy {
	t.Helper()
	c.setMode(t, defaultMode())
	cmd := c.command(append([]string{"--manifests=" + c.dir}, c.mode.flags...)...)
	cmd.Env = append(os.Environ(), "PATH="+dir)
	p := program.Start(t, c.Node, cmd)
	p.AwaitLog(t, "still there; trying again", "IPv4", "the command iptables-legacy-restore is missing")
	kit.Until(t, "both families to be in force, and the condition to show", func() bool {
		page := p.Fetch(t, program.HealthAddr, "/healthz")
		return page.Status == 200 && strings.Contains(string(page.Body), "an earlier service proxy left rules in iptables-legacy")
	})
	if n, _ := p.Metric(t, "kubeproxy_condition", "condition", "leftovers-IPv4"); n != 1 {
		t.Errorf("the condition is %v as a metric, want 1", n)
	}
	return p
}

// linkLegacyCommands makes dir a folder of the commands of iptables-legacy, by their full
// names.
func linkLegacyCommands(t *testing.T, dir string) {
	t.Helper()
	for _, c := range []string{"iptables-legacy", "ip6tables-legacy"} {
		for _, suffix := range []string{"", "-save", "-restore"} {
			path, err := exec.LookPath(c + suffix)
			if err != nil {
				path = "/usr/sbin/" + c + suffix
			}
			if err := os.Symlink(path, dir+"/"+c+suffix); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestModeWithoutCommands checks that a mode that cannot work is an error with a reason
// if it was configured, and otherwise leads to the next mode.
func TestModeWithoutCommands(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	c.save(t, app{name: "web", number: 10}.on(c.webs()...))
	run := func(args ...string) *exec.Cmd {
		cmd := c.command(append([]string{"--manifests=" + c.dir}, args...)...)
		cmd.Env = append(os.Environ(), "PATH="+t.TempDir())
		return cmd
	}
	const sentence = "mode iptables cannot work here: IPv4 is the primary family by bindAddress 0.0.0.0 and cannot be programmed: iptables for IPv4: the command iptables is missing: install iptables"
	out, err := program.Run(t, c.Node, run("--proxy-mode=iptables"))
	if err == nil || err.Error() != "exit status 1" || !strings.Contains(out, sentence) {
		t.Errorf("ended with %v:\n%s\nwant exit status 1 and %q", err, out, sentence)
	}
	p := program.Start(t, c.Node, run(c.mode.flags...))
	p.AwaitLog(t, `"Starting"`, `mode="nftables"`, `modeFrom="the best that works here"`)
	c.awaitProgrammed(t)
	p.Stop(t)
}

// TestSwitchByReload checks that the process exits with success after a change of the
// mode in the file, and that the next process takes over. A file with the mode in force,
// written out or as the default, changes nothing.
func TestSwitchByReload(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	v, path := newVolume(t, "")
	web := app{name: "web", number: 10}.on(c.webs()...)
	c.save(t, web)
	c.mode.flags = append(c.mode.flags, "--config="+path)
	p := c.start(t)
	p.AwaitLog(t, `"Starting"`, `modeFrom="the best that works here"`)
	loads, lines := c.loads(t, web), c.converseTo(t, "tcp", web)
	v.mount(t, "..second", "mode: nftables\n")
	p.AwaitLog(t, "means the same")
	v.mount(t, "..third", "mode: iptables\niptables: {localhostNodePorts: false}\n")
	if err := p.Wait(t); err != nil {
		t.Fatalf("the proxy ended with %v, want exit status 0", err)
	}
	m := switchableModes()["iptables-nft"]
	m.flags = append(defaultMode().flags, "--config="+path)
	c.setMode(t, m)
	p = c.launch(t)
	p.AwaitLog(t, `"Starting"`, `mode="iptables"`, `modeFrom="`+path+`"`)
	p.AwaitLog(t, "Removed what an earlier service proxy left", "IPv4")
	p.AwaitLog(t, "Removed what an earlier service proxy left", "IPv6")
	c.awaitProgrammed(t)
	c.checkOnlyMode(t, "iptables-nft")
	lines.checkSameServer(t)
	lossless(t, loads)
}
