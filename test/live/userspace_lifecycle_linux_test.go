// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/iptables"
	"kubeproxy/platform/linux/nftables"
	"kubeproxy/platform/linux/userspace"
	"kubeproxy/test/judge"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

// TestUserspaceRollout checks that connections go on while endpoints change, that UDP
// clients move, and that no new client is refused.
func TestUserspaceRollout(t *testing.T) {
	withUserspace(t, func(t *testing.T, m mode) {
		m.flags = append(m.flags, "--udp-timeout=1m")
		c := newCluster(t, m)
		one, two, three := c.Host("web-1"), c.Host("web-2"), c.Host("web-3")
		web := app{name: "web", number: 10}
		sticky := app{name: "sticky", number: 11, sticky: 600}.on(c.webs()...)
		c.start(t, web.on(one), sticky)
		lines, packets := c.converse(t, "tcp", web, 1), c.converse(t, "udp", web, 1)
		packets.checkSameServer(t)
		load := c.Host("customer").Load(t.Context(), netlab.LoadConfig{
			Query: netlab.Query{Proto: "tcp", To: web.at(service.ClusterIP, service.IPv4)}, Workers: 2, Pause: time.Millisecond,
		})
		answers := func(h *netlab.Host) {
			kit.Until(t, h.Name+" to answer", func() bool { return load.Report().Backends[h.Name] != nil })
		}
		answers(one)
		for _, hosts := range [][]*netlab.Host{{two}, {two, three}, {three}} {
			c.awaitProgrammed(t, web.on(hosts...))
			answers(hosts[0])
		}
		lines.checkSameServer(t)
		packets.await(t, "leaves the endpoint that left", func(_ conversation, a netlab.Answer) bool { return a.Backend == "web-3" })
		r := load.Stop()
		kit.Check(t, r.Lost() <= 0 && len(r.Backends) == 3, "load: %s", r)
		newAffinityClients(t, c, sticky).checkFrontendKinds(t)
		c.remove(t, "web.yaml")
		c.awaitProgrammed(t)
		lines.checkSameServer(t)
	})
}

// listenerOf returns the listener of a's ClusterIP over TCP and IPv4.
func (c *cluster) listenerOf(t *testing.T, a app) netip.AddrPort {
	t.Helper()
	text := c.iptables(t, "", "iptables-save", "-t", "nat")
	chain := regexp.MustCompile(regexp.QuoteMeta(a.address(service.ClusterIP, service.IPv4).String()) + `/32 -p tcp .*-j (\S+)`).FindStringSubmatch(text)
	kit.Need(t, chain != nil, "no rule for %s:\n%s", a.name, text)
	to := regexp.MustCompile(`-A ` + chain[1] + ` -p tcp -j DNAT --to-destination (\S+)`).FindStringSubmatch(text)
	if to == nil {
		t.Fatalf("%s leads nowhere:\n%s", chain[1], text)
	}
	return netip.MustParseAddrPort(to[1])
}

// TestUserspaceListenersAreHidden checks that a listener is reachable only through its
// Service.
func TestUserspaceListenersAreHidden(t *testing.T) {
	withUserspace(t, func(t *testing.T, m mode) {
		c := newCluster(t, m)
		web := app{name: "web", number: 10}.on(c.webs()...)
		c.start(t, web)
		at := c.listenerOf(t, web)
		for _, h := range c.clientHosts() {
			for _, proto := range []string{"tcp", "udp"} {
				a, err := h.Ask(t.Context(), netlab.Query{Proto: proto, To: at, Timeout: netlab.SilenceTimeout})
				kit.Check(t, err == nil && a.Outcome != netlab.Answered && a.Outcome != netlab.Broken,
					"%s to %s %s: %s, %v", h.Name, at, proto, a.Outcome, err)
				if a, err = h.Ask(t.Context(), netlab.Query{Proto: proto, To: netip.AddrPortFrom(c.Node.IPv4, at.Port())}); err != nil || a.Outcome != netlab.Refused {
					t.Errorf("%s to port %d of the node, %s: %s, %v", h.Name, at.Port(), proto, a.Outcome, err)
				}
			}
		}
	})
}

// TestUserspaceRestart checks that no client is refused during a restart: the kernel
// forwards clients to endpoints meanwhile. Open connections go on for a while.
func TestUserspaceRestart(t *testing.T) {
	withUserspace(t, func(t *testing.T, m mode) {
		c := newCluster(t, inUserspace(m.iptables))
		web := app{name: "web", number: 10}.on(c.webs()...)
		local := app{name: "local", number: 11, external: "Local"}.on(c.Host("web-1"), c.Host("web-3"))
		sticky := app{name: "sticky", number: 12, sticky: 600}.on(c.webs()...)
		p := c.start(t, web, local, sticky)
		want := c.awaitProgrammed(t)
		loads, lines, packets := c.loads(t, web, local), c.converse(t, "tcp", web, 1), c.converse(t, "udp", web, 1)
		kit.Must(t, syscall.Kill(p.Pid(), syscall.SIGTERM))
		p.AwaitLogs(t, "New connections go straight to endpoints", "FAMILY")
		lines.checkSameServer(t)
		kit.Must(t, p.Wait(t))
		p.AwaitLog(t, `"Stopped; new connections to Services go to endpoints without a process"`, fmt.Sprintf("brokenOff=%d", len(lines)))
		c.check(t, want, c.cells(c.clientHosts(), web, local, sticky))
		packets.checkAnswered(t)
		home := newAffinityClients(t, c, sticky)
		home.checkFrontendKinds(t)
		straight := c.converse(t, "tcp", local, 1)
		p = c.launch(t)
		c.awaitProgrammed(t)
		c.check(t, want, c.cells(c.clientHosts(), web, local))
		straight.checkSameServer(t)
		packets.checkAnswered(t)
		t.Logf("%d connections made meanwhile", connectionsOf(loads))
		lossless(t, loads)
		p.Stop(t)
	})
}

// TestUserspaceCrash checks that a process that starts after a crash listens on the same
// ports. The rules stay, and new connections are refused only until it listens.
func TestUserspaceCrash(t *testing.T) {
	withUserspace(t, func(t *testing.T, m mode) {
		c := newCluster(t, m)
		web := app{name: "web", number: 10, external: "Local"}.on(c.webs()...)
		p := c.start(t, web)
		want, before := c.awaitProgrammed(t), c.listing(t)
		p.Kill()
		ended := time.Now()
		p = c.launch(t)
		q := netlab.Query{Proto: "tcp", To: web.at(service.ClusterIP, service.IPv4)}
		awaitOutcome(t, "an answer", c.Host("customer"), q, netlab.Answered)
		t.Logf("answers again %s after the end", time.Since(ended).Round(time.Millisecond))
		p.AwaitLogs(t, `"Programmed"`, "userspace FAMILY")
		c.check(t, want, c.cells(c.clientHosts(), web))
		kit.Same(t, "the rules (-before +now)", before, c.listing(t))
	})
}

// TestUserspaceKilledUnderLoad kills the process under load. Connections through it end
// at once, no client is left waiting, and the next process finds everything it needs.
func TestUserspaceKilledUnderLoad(t *testing.T) {
	withUserspace(t, func(t *testing.T, m mode) {
		c := newCluster(t, m)
		web := app{name: "web", number: 10}.on(c.webs()...)
		p := c.start(t, web)
		c.awaitProgrammed(t)
		before := c.listing(t)
		load := c.Host("customer").Load(t.Context(), netlab.LoadConfig{
			Query:   netlab.Query{Proto: "tcp", To: web.at(service.ClusterIP, service.IPv4), Timeout: 2 * time.Second},
			Workers: 4, Pause: time.Millisecond,
		})
		for range 3 {
			lines := c.converse(t, "tcp", web, 1)
			answered := load.Report().Outcomes[netlab.Answered]
			kit.Until(t, "load", func() bool { return load.Report().Outcomes[netlab.Answered] > answered+100 })
			p.Kill()
			for _, x := range lines {
				if a, err := x.conn.Ask(t.Context()); err != nil || a.Outcome != netlab.Broken {
					t.Errorf("a client of the process that was killed: %s, %v; want it broken off", a.Outcome, err)
				}
			}
			kit.Same(t, "the rules (-before +now)", before, c.listing(t))
			p = c.launch(t)
			p.AwaitLogs(t, `"Programmed"`, "userspace FAMILY")
			c.awaitProgrammed(t)
		}
		r := load.Stop()
		t.Logf("%s", r)
		n := r.Outcomes[netlab.Answered] + r.Outcomes[netlab.Refused] + r.Outcomes[netlab.Broken]
		kit.Check(t, n >= r.Connections, "%d connections were left waiting", r.Connections-n)
		kit.Same(t, "the rules (-before +now)", before, c.listing(t))
	})
}

// TestUserspaceRepairAndCleanup checks that deleted rules come back, and that --cleanup
// removes everything of the proxy.
func TestUserspaceRepairAndCleanup(t *testing.T) {
	withUserspace(t, func(t *testing.T, m mode) {
		c := newCluster(t, m)
		web := app{name: "web", number: 10}.on(c.webs()...)
		c.save(t, web)
		before := c.listing(t)
		p := c.start(t)
		want := c.awaitProgrammed(t)
		addr := userspace.Addrs[service.IPv4].String()
		for _, args := range [][]string{
			{"ip", "addr", "del", addr + "/32", "dev", "lo"}, {c.commands + "/iptables", program.AwaitLock, "-t", "nat", "-F", "KUBE-PORTALS-CONTAINER"},
		} {
			out, err := program.Run(t, c.Node, exec.Command(args[0], args[1:]...))
			kit.Need(t, err == nil, "%s: %v\n%s", args, err, out)
			awaitOutcome(t, "answers after "+strings.Join(args, " "), c.Host("customer"), netlab.Query{Proto: "tcp", To: web.at(service.ClusterIP, service.IPv4), Timeout: netlab.SilenceTimeout}, netlab.Answered)
		}
		p.AwaitLog(t, "missing: address "+addr)
		c.check(t, want, c.cells(c.clientHosts()[:1], web))
		p.Stop(t)
		out, err := program.Run(t, c.Node, c.command("--cleanup"))
		kit.Need(t, err == nil, "cleanup: %v\n%s", err, out)
		now := withoutEmptyTables(c.listing(t))
		kit.Check(t, now == withoutEmptyTables(before), "after the cleanup there is\n%s\nand was\n%s", now, before)
		if out, err := program.Run(t, c.Node, exec.Command("ip", "addr", "show", "dev", "lo")); err != nil || strings.Contains(out, addr) || strings.Contains(out, "fd6b:") {
			t.Errorf("after the cleanup: %v\n%s", err, out)
		}
	})
}

// TestUserspaceDoesNotReachItself checks that a Service whose endpoint is its own
// NodePort on this node, or its own ClusterIP, makes no loop.
func TestUserspaceDoesNotReachItself(t *testing.T) {
	withUserspace(t, func(t *testing.T, m mode) {
		c := newCluster(t, m)
		apps := []app{app{name: "web", number: 10}.on(c.Host("web-1")), app{name: "again", number: 11}.on(c.Host("web-1"))}
		c.write(t, "web.yaml", manifestTo(t, apps[0], c.Node.IPv4, apps[0].nodePort()))
		c.write(t, "again.yaml", manifestTo(t, apps[1], apps[1].address(service.ClusterIP, service.IPv4), 80))
		p := c.launchAll(t) // an endpoint that is a ClusterIP is reported, and served
		before := metric(t, p, "process_open_fds")
		for _, a := range apps {
			got, err := c.Host("customer").Ask(t.Context(), netlab.Query{Proto: "tcp", To: a.at(service.ClusterIP, service.IPv4)})
			kit.Check(t, err == nil && got.Outcome == netlab.Broken,
				"%s: %s, %v; want the connection to break off", a.name, got.Outcome, err)
		}
		now := metric(t, p, "process_open_fds")
		kit.Check(t, now <= before+20, "%v files are open, and were %v", now, before)
	})
}

// withoutEmptyTables leaves out the tables that a listing itself creates.
func withoutEmptyTables(listing string) string {
	return regexp.MustCompile(`(?m)^(\*|:\S+ ACCEPT|COMMIT).*\n`).ReplaceAllString(listing, "")
}

// TestUserspaceLocalhost checks that NodePorts answer on 127.0.0.1 unless that is
// disabled.
func TestUserspaceLocalhost(t *testing.T) {
	withUserspace(t, func(t *testing.T, m mode) {
		web := app{name: "web", number: 10}
		for _, want := range []netlab.Outcome{netlab.Refused, netlab.Answered} {
			if want == netlab.Answered {
				m.flags, m.localhost = append(m.flags, "--iptables-localhost-nodeports=true"), true
			}
			c := newCluster(t, m)
			c.start(t, web.on(c.webs()...))
			for _, proto := range []string{"tcp", "udp"} {
				q := netlab.Query{Proto: proto, To: netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), web.nodePort())}
				a, err := c.Node.Ask(t.Context(), q)
				kit.Check(t, err == nil && a.Outcome == want, "%s: %s, %v; want %s", proto, a.Outcome, err, want)
			}
			c.checkLocalhostClosed(t, web)
		}
	})
}

// TestUserspaceWithoutIPv6 checks that a node with IPv6 disabled, as many have, is served
// over IPv4, and that the missing family is reported once.
func TestUserspaceWithoutIPv6(t *testing.T) {
	withUserspace(t, func(t *testing.T, m mode) {
		c := newCluster(t, switchableModes()["iptables-"+m.iptables])
		web := app{name: "web", number: 10}.on(c.webs()...)
		c.start(t, web).Stop(t)
		c.run(t, "sysctl", "-qw", "net.ipv6.conf.lo.disable_ipv6=1")
		c.setMode(t, m)
		p := c.launch(t)
		p.AwaitLog(t, `"Programmed"`, "userspace IPv4")
		p.AwaitLog(t, "Services are not programmed for a family", "IPv6", "net.ipv6.conf.lo.disable_ipv6 is 1")
		kit.Until(t, "health of the family that is left, and the conditions of the other", func() bool {
			page := p.Fetch(t, program.HealthAddr, "/healthz")
			return page.Status == http.StatusOK && strings.Contains(string(page.Body), `"family-IPv6"`) && strings.Contains(string(page.Body), `"leftovers-IPv6"`)
		})
		p.AwaitLog(t, "Found what an earlier service proxy left; it stays", "ip6tables-"+m.iptables)
		var calls []judge.Call
		for _, k := range kinds {
			calls = append(calls, c.dials(c.clientHosts(), web, k, service.IPv4)...)
		}
		c.check(t, c.want(t), calls)
		p.Stop(t)
	})
}

// TestUserspaceSwitch switches from other modes to userspace, from userspace to itself,
// and back to others. Only connections through the process that ended may be lost.
func TestUserspaceSwitch(t *testing.T) {
	t.Parallel()
	switchThroughUserspace(t, []string{"nftables", "userspace-legacy", "nftables", "userspace-nft", "userspace-nft", "iptables-nft", "userspace-nft", "iptables-legacy", "userspace-legacy"}, 5*time.Millisecond)
}

// switchThroughUserspace passes through modes, while clients make connections and pause.
// The apps have no port that mode userspace cannot forward, as old rules would stay a
// minute for it.
func switchThroughUserspace(t *testing.T, tour []string, pause time.Duration) {
	t.Helper()
	all := switchableModes()
	for _, v := range []string{"legacy", "nft"} {
		all["userspace-"+v] = inUserspace(v)
	}
	c := newCluster(t, all[tour[0]])
	web := app{name: "web", number: 10, plain: true}.on(c.webs()...)
	local := app{name: "local", number: 11, plain: true, external: "Local"}.on(c.Host("web-1"), c.Host("web-3"))
	p := c.start(t, web, local)
	c.awaitProgrammed(t)
	for _, name := range tour[1:] {
		loads, into := c.loadsAt(t, pause, web, local), all[name].userspace
		var lines conversations
		if !c.mode.userspace { // open connections need no process
			lines = append(c.converse(t, "tcp", web, 1), c.converse(t, "udp", web, 1)...)
		}
		p.Stop(t)
		c.setMode(t, all[name])
		p = c.launch(t)
		want := c.awaitProgrammed(t)
		for _, f := range service.Families {
			p.AwaitLog(t, "Found what an earlier service proxy left", f.String())
			kit.Until(t, "the listeners' address, if it is needed, and nothing of other modes", func() bool {
				return (c.finds(t, userspace.Leftovers{Family: f}) != "") == into && c.finds(t, nftablesOf(f)) != "" == (name == "nftables")
			})
			if c.mode.ipvs {
				p.AwaitLog(t, "Removed what an earlier service proxy left", f.String(), "chains of this proxy")
				continue
			}
			for _, v := range program.IPTablesVariants { // while old chains exist, they forward clients, too
				kit.Until(t, "no chains but those of the mode", func() bool {
					left := c.finds(t, iptables.Leftovers{Variant: iptables.Variant(v), Family: f})
					return (left != "") == strings.HasSuffix(name, "-"+v)
				})
			}
		}
		lines.checkSameServer(t)
		t.Logf("%s: %d connections made meanwhile", name, connectionsOf(loads))
		lossless(t, loads)
		c.check(t, want, c.cells(c.clientHosts(), web, local))
	}
}

// TestUserspaceSwitchByReload checks that no client is refused when a changed
// configuration file selects another mode, from userspace and back.
func TestUserspaceSwitchByReload(t *testing.T) {
	t.Parallel()
	c := newCluster(t, inUserspace("legacy"))
	const userspaceMode = "mode: userspace\nudpIdleTimeout: 10s\niptables: {localhostNodePorts: false}\n"
	v, path := newVolume(t, userspaceMode)
	web := app{name: "web", number: 10, plain: true}.on(c.webs()...)
	c.save(t, web)
	from := func(m mode) mode {
		m.flags = append(defaultMode().flags, "--config="+path)
		return m
	}
	c.setMode(t, from(c.mode))
	p := c.start(t)
	loads := c.loads(t, web)
	for i, next := range []struct {
		text string
		mode mode
	}{{"mode: nftables\n", switchableModes()["nftables"]}, {userspaceMode, inUserspace("legacy")}} {
		v.mount(t, fmt.Sprintf("..version-%d", i), next.text)
		err := p.Wait(t)
		kit.Need(t, err == nil, "the proxy ended with %v, want exit status 0", err)
		c.setMode(t, from(next.mode))
		p = c.launch(t)
		c.awaitProgrammed(t)
		p.AwaitLogs(t, "Removed what an earlier service proxy left", "FAMILY")
	}
	t.Logf("%d connections made meanwhile", connectionsOf(loads))
	lossless(t, loads)
	p.Stop(t)
}

// TestUserspaceStopWithoutLock checks a stop while another process keeps the iptables
// lock. It stays within its time and logs the consequences. The rules stay, and the next
// process starts as after a crash.
func TestUserspaceStopWithoutLock(t *testing.T) {
	t.Parallel()
	c := newCluster(t, inUserspace("legacy"))
	web := app{name: "web", number: 10}.on(c.webs()...)
	c.save(t, web)
	lock := filepath.Join(t.TempDir(), "lock") // of this node alone
	cmd := c.command(append([]string{"--manifests=" + c.dir}, c.mode.flags...)...)
	cmd.Env = append(cmd.Env, "XTABLES_LOCKFILE="+lock)
	p := program.Start(t, c.Node, cmd)
	c.awaitProgrammed(t)
	before := c.listing(t)
	release := hold(t, lock)
	p.Stop(t)
	p.AwaitLogs(t, "Connections cannot be led past this process", "FAMILY", fmt.Sprintf("held by process %d", os.Getpid()))
	p.AwaitLog(t, `"Stopped; until the next start, new connections to Services are refused`)
	kit.Same(t, "the rules (-before +now)", before, c.listing(t))
	release()
	c.launch(t)
	c.check(t, c.awaitProgrammed(t), c.cells(c.clientHosts()[:1], web))
}

func nftablesOf(f service.Family) finder {
	return nftables.Leftovers{Family: f, Table: nftables.TableName}
}
