// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"bytes"
	"context"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
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

// TestSwitchUnderLoad switches a node from mode to mode, each time with an endpoint that is left out as
// it is silent, and that answers when the next process begins. No open connection ends, and no new one is refused or lost.
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
	p := c.start(t, web, local, empty)
	c.awaitProgrammed(t)
	loads := c.loadsAt(t, pause, web, local)
	lines := c.converse(t, "tcp", web, 1)
	packets, _ := c.converse(t, "udp", web, 1).split("web-4") // which may have to leave an endpoint that is silent
	for i, name := range tour[1:] {
		made := connectionsOf(loads)
		if tour[i] != "ipvs" { // whose connections cannot leave it
			c.silence(t, c.Host("web-4"))
		}
		if p.Stop(t); i%2 == 0 { // else it crashes
			p.Kill()
		}
		c.deafen(t, false, c.Host("web-4")) // so the next process has no evidence against it
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
		r := l.Stop()
		kit.Check(t, r.Lost() <= 0 || slices.Contains(less, l.call.Proto), "%s: %s", l.call, r)
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
			kit.Check(t, (what != "") == (other == name), "mode is %s, and for %s %s has left %q", name, f, other, what)
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
	kit.Must(t, c.Node.Do(func() (err error) {
		what, err = f.Find(t.Context())
		return err
	}))
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
			c.start(t, web).Stop(t)
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
	n, _ := p.Metric(t, "kubeproxy_condition", "condition", "leftovers-IPv4")
	kit.Check(t, n == 1, "the condition is %v as a metric, want 1", n)
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
			kit.Must(t, os.Symlink(path, dir+"/"+c+suffix))
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
	kit.Check(t, err != nil && err.Error() == "exit status 1" && strings.Contains(out, sentence),
		"ended with %v:\n%s\nwant exit status 1 and %q", err, out, sentence)
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
	err := p.Wait(t)
	kit.Need(t, err == nil, "the proxy ended with %v, want exit status 0", err)
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

// TestCleanup checks that a cleanup removes the rules of every mode, reports what it
// removed, and leaves foreign rules unchanged, however often it runs.
func TestCleanup(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	c.installForeignRules(t)
	theirs := c.listAllRules(t)
	c.installLeftovers(t)
	said := c.cleanUp(t, "", 0)
	for _, word := range []string{"iptables-legacy", "ip6tables-legacy", "iptables-nft", "ip6tables-nft", "nftables table ip kube-services", "nftables table ip6 kube-services"} {
		kit.Check(t, strings.Contains(said, `"Cleaned up" place="`+word+`" removed=`),
			"no word of what was removed from %s:\n%s", word, said)
	}
	kit.Same(t, "after a cleanup (-rules of others +all rules)", theirs, c.listAllRules(t))
	c.checkOnlyMode(t, "no mode")
	lists := c.recentLists(t)
	kit.Check(t, len(lists) == 0, "lists of clients are left: %q", lists)
	again := c.cleanUp(t, "", 0)
	kit.Check(t, !strings.Contains(again, "Cleaned up"), "a second cleanup found something:\n%s", again)
}

// TestCleanupWithoutCommands checks that a cleanup without the iptables commands removes
// what it can, and names the rest, which may or may not exist.
func TestCleanupWithoutCommands(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	none := t.TempDir()
	c.start(t, app{name: "web", number: 10}.on(c.webs()...)).Stop(t)
	c.cleanUp(t, none, 0)
	c.installLeftovers(t)
	said := c.cleanUp(t, none, 1)
	for _, word := range []string{"iptables-legacy", "ip6tables-legacy", "iptables-nft", "ip6tables-nft"} {
		if !strings.Contains(said, "clean up "+word+": the command "+word+"-restore is missing: install it to have the chains removed") {
			t.Errorf("no word of what was not removed from %s:\n%s", word, said)
		}
	}
	kit.Check(t, strings.Contains(said, `"Cleaned up" place="nftables table ip6 kube-services"`),
		"it did not go on:\n%s", said)
	c.cleanUp(t, "", 0)
	c.checkOnlyMode(t, "no mode")
}

// TestCleanupWithoutRights checks that a cleanup without privileges reports that, and
// claims no success.
func TestCleanupWithoutRights(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	cmd := exec.Command("setpriv", "--bounding-set=-all", "--inh-caps=-all", kubeProxy.Path, "--cleanup")
	out, err := program.Run(t, c.Node, cmd)
	kit.Check(t, err != nil && err.Error() == "exit status 1" && strings.Contains(out, "CAP_NET_ADMIN"),
		"ended with %v, want exit status 1 and the right that is missing:\n%s", err, out)
}

// installLeftovers installs the rules of every mode at the same time, without any
// takeover.
func (c *cluster) installLeftovers(t *testing.T) {
	t.Helper()
	web := app{name: "web", number: 10}.on(c.webs()...)
	sticky := app{name: "sticky", number: 11, sticky: 600}.on(c.webs()...)
	c.save(t, web, sticky)
	if m, found := switchableModes()["ipvs"]; found {
		c.setMode(t, m)
		c.start(t).Stop(t)
	}
	for _, m := range switchableModes() {
		if m.ipvs {
			continue
		}
		if m.iptables == "" {
			c.installNFTables(t)
			continue
		}
		cmd := c.command(append([]string{"render", "--manifests=" + c.dir}, m.flags...)...)
		text, err := program.Run(t, c.Node, cmd)
		kit.Need(t, err == nil, "render: %v\n%s", err, text)
		_, four, _ := strings.Cut(text, "# for iptables-restore\n")
		four, six, found := strings.Cut(four, "# for ip6tables-restore\n")
		kit.Need(t, found, "no part for IPv6:\n%s", text)
		c.restore(t, service.IPv4, m.iptables, four)
		c.restore(t, service.IPv6, m.iptables, six)
	}
	lists := c.recentLists(t)
	kit.Need(t, len(lists) != 0, "there are no lists of clients")
}

// installNFTables installs our tables without the program, which would remove the rules
// of other modes.
func (c *cluster) installNFTables(t *testing.T) {
	t.Helper()
	want := c.want(t)
	for _, f := range service.Families {
		kit.Must(t, c.Node.Do(func() error {
			b, err := nftables.New(f, nftables.Options{MasqueradeBit: 14})
			if err != nil {
				return err
			}
			p, err := b.Plan(t.Context(), want)
			if err == nil {
				err = p.Apply(t.Context()).Err
			}
			return err
		}))
	}
}

// recentLists returns the names of the kernel's lists of the recent match, see
// iptables-extensions(8).
func (c *cluster) recentLists(t *testing.T) []string {
	t.Helper()
	var all []string
	kit.Must(t, c.Node.Do(func() (err error) {
		all, err = filepath.Glob("/proc/thread-self/net/xt_recent/*")
		return err
	}))
	return all
}

// cleanUp runs a cleanup and returns its output. If path is not empty, only the commands
// in it are available.
func (c *cluster) cleanUp(t *testing.T, path string, exit int) string {
	t.Helper()
	cmd := kubeProxy.Command("--cleanup")
	if path != "" {
		cmd.Env = append(os.Environ(), "PATH="+path)
	}
	out, err := program.Run(t, c.Node, cmd)
	got := cmd.ProcessState.ExitCode()
	kit.Check(t, got == exit, "cleanup: %v, want exit status %d\n%s", err, exit, out)
	return out
}

// change is a version of a Service, possibly with other Services, saved in one file.
type change struct {
	name string
	app  app
	// rename gives its ports other names.
	rename bool
}

// changes are versions in which every client has an endpoint. Each differs from the one
// before.
func (c *cluster) changes() []change {
	one, two, three := c.Host("web-1"), c.Host("web-2"), c.Host("web-3")
	web := app{name: "web", number: 10}.on(one, two, three)
	moved, local, inside, outside, sticky, open := web, web, web, web, web, web
	moved.name = "other"
	local.internal, local.external = "Local", "Local"
	inside.internal, outside.external = "Local", "Local"
	sticky.sticky = 60
	open.ranges = []string{"192.0.2.0/24", "2001:db8:2::/64"}
	leaving := app{name: "web", number: 10}.with(one, terminating).with(three, terminating)
	return []change{
		{name: "ports get other names", app: web, rename: true},
		{name: "and back", app: web},
		{name: "another Service gets the addresses", app: moved},
		{name: "and back", app: web},
		{name: "internal policy Local", app: inside},
		{name: "internal policy Cluster", app: web},
		{name: "both policies Local", app: local},
		{name: "external policy Local alone", app: outside},
		{name: "both policies Cluster", app: web},
		{name: "session affinity", app: sticky},
		{name: "none", app: web},
		{name: "source ranges", app: open},
		{name: "other endpoints", app: web.on(one)},
		{name: "all are leaving", app: leaving},
		{name: "they are back", app: web},
	}
}

func (x change) text(t *testing.T) []byte {
	text := x.app.yaml(t)
	if x.rename {
		for _, name := range []string{"lines", "packets", "messages"} {
			text = bytes.ReplaceAll(text, []byte(`"`+name+`"`), []byte(`"`+name+`-too"`))
			text = bytes.ReplaceAll(text, []byte(": "+name+"\n"), []byte(": "+name+"-too\n"))
		}
	}
	return text
}

// TestChangesUnderLoad changes a Service in every way. As long as it has an endpoint, no
// connection may be refused or lost. A UDP datagram may be lost if its endpoint is
// removed before it answers, so UDP has tests of its own.
func TestChangesUnderLoad(t *testing.T)          { withoutIPVS(t, changesUnderLoad) }
func TestIPVSChangesUnderLoad(t *testing.T)      { withIPVS(t, changesUnderLoad) }
func TestUserspaceChangesUnderLoad(t *testing.T) { withUserspace(t, changesUnderLoad) }

func changesUnderLoad(t *testing.T, m mode) {
	c := newCluster(t, m)
	web := app{name: "web", number: 10}.on(c.webs()[:3]...)
	c.start(t, web)
	loads := slices.DeleteFunc(c.loadsAt(t, 10*time.Millisecond, web), func(l load) bool {
		if l.call.Proto == service.UDP {
			l.Stop()
		}
		return l.call.Proto == service.UDP
	})
	lost := map[int]int{}
	for _, x := range c.changes() {
		c.write(t, "web.yaml", x.text(t))
		c.awaitProgrammed(t)
		made := make([]int, len(loads))
		for i, l := range loads {
			made[i] = l.Report().Connections
		}
		kit.Until(t, "clients connect once more", func() bool {
			for i, l := range loads {
				if l.Report().Connections < made[i]+2 {
					return false
				}
			}
			return true
		})
		for i, l := range loads {
			if r := l.Report(); r.Lost() > lost[i] {
				t.Errorf("%s: %s: %s", x.name, l.call, r)
				lost[i] = r.Lost()
			}
		}
	}
	for _, l := range loads {
		l.Stop()
	}
}

// TestStatusOfBlockedTraffic checks that status fails while no traffic can flow, although
// the rules are in force: the kernel does not forward, or a health check of a load
// balancer cannot be answered. Health pages keep their status, as a restart would not
// help.
func TestStatusOfBlockedTraffic(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	switches := []string{"/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv6/conf/all/forwarding"}
	set := func(file, value string) {
		kit.Must(t, c.Node.Do(func() error { return os.WriteFile(file, []byte(value), 0) }))
	}
	for _, file := range switches {
		set(file, "0")
	}
	p := c.start(t, app{name: "web", number: 10}.on(c.webs()...))
	// says waits until status exits with code and has all words.
	var asked []string
	says := func(code int, words ...string) {
		t.Helper()
		kit.Until(t, "status to say "+strings.Join(words, ", "), func() bool {
			cmd := exec.Command(kubeProxy.Path, append([]string{"status"}, asked...)...)
			out, err := program.Run(t, c.Node, cmd)
			kit.Need(t, err == nil || cmd.ProcessState != nil, "%v", err)
			out = strings.Join(strings.Fields(out), " ") // without the breaks of lines
			for _, w := range words {
				if !strings.Contains(out, w) {
					return false
				}
			}
			return cmd.ProcessState.ExitCode() == code
		})
	}
	says(1, ": not healthy", "net.ipv4.ip_forward is 0 and should be 1", "net.ipv6.conf.all.forwarding is 0 and should be 1")
	for path, code := range map[string]int{"/healthz": 503, "/healthz?family=IPv6": 503, "/livez": 200} {
		if page := p.Fetch(t, program.HealthAddr, path); page.Status != code || !strings.Contains(string(page.Body), `"blocked":["setting-net.ipv4.ip_forward",`) {
			t.Errorf("%s: %d %s; want %d and what blocks", path, page.Status, page.Body, code)
		}
	}
	blocked := func() float64 {
		n, _ := p.Metric(t, "kubeproxy_blocked", "reason", "setting-net.ipv4.ip_forward")
		return n
	}
	if n := blocked(); n != 1 {
		t.Errorf("kubeproxy_blocked is %v, want 1", n)
	}
	asked = []string{"shop/web"}
	says(1, "is not healthy, as traffic is blocked by setting-net.ipv4.ip_forward", "shop/web: programmed")
	asked = nil
	set(switches[0], "1")
	says(1, ": not healthy", "blocked by setting-net.ipv6.conf.all.forwarding")
	if code, n := p.Status(t, program.HealthAddr, "/healthz?family=IPv4"), blocked(); code != 200 || n != 0 {
		t.Errorf("with IPv4 forwarding: /healthz of it %d, kubeproxy_blocked %v; want 200, 0", code, n)
	}
	set(switches[0], "0")
	says(1, "blocked by setting-net.ipv4.ip_forward,")
	set("/proc/sys/net/ipv4/conf/eth0/forwarding", "1")
	says(1, "blocked by setting-net.ipv6.conf.all.forwarding Generation", "only packets that come in by eth0 are forwarded")
	set(switches[0], "1")
	set(switches[1], "1")
	says(0, ": healthy")

	taken := netip.MustParseAddrPort("192.0.2.10:30100")
	l, err := c.Node.Listen(t.Context(), "tcp4", taken.String())
	kit.Must(t, err)
	c.write(t, "checked.yaml", []byte(strings.NewReplacer("NUMBER", "1", "PORT", "30100").Replace(checkedApp)))
	says(1, "blocked by health-checks", "shop/checked-1", "1 with a health check that is not answered")
	kit.Must(t, l.Close())
	says(0, ": healthy")
}
