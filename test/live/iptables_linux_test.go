// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/iptables"
	"kubeproxy/platform/linux/ipvs"
	"kubeproxy/test/judge"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

// variants are those of the commands of iptables that a test runs with: both, with -short one of
// them, which differs among tests, and with KUBEPROXY_VARIANTS=other the other one.
func variants(t *testing.T) []string {
	n := len(t.Name()) % len(program.IPTablesVariants)
	switch {
	case os.Getenv("KUBEPROXY_VARIANTS") == "other":
		n = 1 - n
	case !testing.Short():
		return program.IPTablesVariants
	}
	return program.IPTablesVariants[n : n+1]
}

// eachVariant runs test in mode iptables with each of the variants.
func eachVariant(t *testing.T, test func(*testing.T, mode)) {
	t.Parallel()
	for _, v := range variants(t) {
		t.Run(v, func(t *testing.T) {
			t.Parallel()
			m := defaultMode()
			m.flags = append(m.flags, "--proxy-mode=iptables", "--iptables-localhost-nodeports=false")
			m.iptables = v
			test(t, m)
		})
	}
}

// proxyMode is the mode of the proxy, as its log names it.
func (m mode) proxyMode() string {
	switch {
	case m.userspace:
		return "userspace"
	case m.iptables != "":
		return "iptables"
	case m.ipvs:
		return "ipvs"
	}
	return "nftables"
}

// withoutPodDetection is m without the flags that identify pods.
func (m mode) withoutPodDetection() mode {
	switch {
	case m.ipvs:
		return mode{ipvs: true, flags: []string{"--proxy-mode=ipvs"}}
	case m.iptables == "":
		return mode{}
	}
	flags := []string{"--proxy-mode=" + m.proxyMode(), "--iptables-localhost-nodeports=false"}
	if m.userspace {
		flags = append(flags, slowUDP)
	}
	return mode{iptables: m.iptables, userspace: m.userspace, flags: flags}
}

// audit returns a Kernel for c's mode.
func (c *cluster) audit(t *testing.T) *program.Kernel {
	t.Helper()
	m := c.mode
	if m.ipvs {
		return program.NewIPVSKernel(t, c.Node, ipvs.Options{MasqueradeBit: cmp.Or(m.bit, 14), Scheduler: m.scheduler, SyncPeriod: time.Minute})
	}
	if m.iptables == "" {
		return program.NewKernel(t, c.Node, m.bit)
	}
	if c.commands == "" {
		c.commands = program.IPTables(t, m.iptables)
	}
	o := iptables.Options{MasqueradeBit: cmp.Or(m.bit, 14), LocalhostNodePorts: m.localhost, DropInvalid: true, Dir: c.commands}
	if m.userspace {
		b := m.bound
		b.Rules = o
		return program.NewUserspaceKernel(t, c.Node, b)
	}
	return program.NewIPTablesKernel(t, c.Node, o)
}

// command prepares a run of the proxy in c's mode.
func (c *cluster) command(args ...string) *exec.Cmd {
	if c.Cgroup != "" { // it is on even where it cannot work
		args = append([]string{"--socket-acceleration"}, args...)
	}
	return program.With(kubeProxy.Command(args...), c.commands)
}

func TestIPTablesEveryCell(t *testing.T)  { eachVariant(t, everyCell) }
func TestIPTablesSecondDraw(t *testing.T) { eachVariant(t, secondDraw) }
func TestIPTablesSCTP(t *testing.T)       { eachVariant(t, everySCTPCell) }
func TestIPTablesModes(t *testing.T)      { eachVariant(t, everyMode) }

func TestIPTablesBridge(t *testing.T) {
	eachVariant(t, func(t *testing.T, m mode) { onBridge(t, m.withoutPodDetection()) })
}

// TestIPTablesLockIsKept checks that a process that keeps the lock of iptables-legacy is
// named in log and status. The rules stay in force, and pending changes follow once the
// lock is free.
func TestIPTablesLockIsKept(t *testing.T) {
	t.Parallel()
	m := defaultMode()
	m.flags = append(m.flags, "--proxy-mode=iptables", "--iptables-localhost-nodeports=false")
	m.iptables = "legacy"
	c := newCluster(t, m)
	lock := filepath.Join(t.TempDir(), "lock") // of this node alone
	web := app{name: "web", number: 10}.on(c.Host("web-1"))
	c.save(t, web)
	cmd := c.command(append([]string{"--manifests=" + c.dir, "--iptables-min-sync-period=10ms"}, m.flags...)...)
	cmd.Env = append(cmd.Env, "XTABLES_LOCKFILE="+lock)
	p := program.Start(t, c.Node, cmd)
	before := c.awaitProgrammed(t)

	release := hold(t, lock)
	c.save(t, web.on(c.Host("web-2")))
	held := fmt.Sprintf("the lock %s is held by process %d (", lock, os.Getpid())
	p.AwaitLog(t, held)
	kit.Until(t, "status to name who has the lock", func() bool {
		out, err := program.Run(t, c.Node, exec.Command(kubeProxy.Path, "status", "-o=wide"))
		return err != nil && strings.Contains(out, "is held by process")
	})
	// Rules serve this client alone. Socket acceleration needs no lock.
	c.check(t, before, c.cells([]*netlab.Host{c.Host("customer")}, web))
	release()
	c.check(t, c.awaitProgrammed(t), c.cells(c.clientHosts()[:1], web))
}

// TestUserspaceLocalWhileLocked checks that clients of policy Local reach no endpoint of
// another node after the last one of their node has left, while rules still lead to its
// listener.
func TestUserspaceLocalWhileLocked(t *testing.T) {
	t.Parallel()
	c := newCluster(t, inUserspace("legacy"))
	lock := filepath.Join(t.TempDir(), "lock") // of this node alone
	web := app{name: "web", number: 10, plain: true, internal: "Local", external: "Local"}.on(c.Host("web-1"), c.Host("web-3"))
	c.save(t, web)
	cmd := c.command(append([]string{"--manifests=" + c.dir, "--iptables-min-sync-period=10ms"}, c.mode.flags...)...)
	cmd.Env = append(cmd.Env, "XTABLES_LOCKFILE="+lock)
	p := program.Start(t, c.Node, cmd)
	c.awaitProgrammed(t)
	release := hold(t, lock)
	c.save(t, web.on(c.Host("web-3")))
	p.AwaitLog(t, "is held by process")
	for _, x := range []struct {
		from string
		kind service.Kind
	}{{"shopper", service.ClusterIP}, {"customer", service.NodePort}, {"customer", service.LoadBalancerIP}, {"customer", service.ExternalIP}} {
		c.checkUnserved(t, c.Host(x.from), web.at(x.kind, service.IPv4))
	}
	release()
	c.check(t, c.awaitProgrammed(t), c.cells(c.clientHosts(), web))
}

// checkUnserved checks that nobody answers h at an address.
func (c *cluster) checkUnserved(t *testing.T, h *netlab.Host, to netip.AddrPort) {
	t.Helper()
	for _, proto := range slices.Repeat([]string{"tcp", "udp"}, 4) {
		a, err := h.Ask(t.Context(), netlab.Query{Proto: proto, To: to, Timeout: netlab.SilenceTimeout})
		kit.Check(t, err == nil && a.Outcome != netlab.Answered,
			"%s to %s (%s): %s by %q, %v", h.Name, to, proto, a.Outcome, a.Backend, err)
	}
}

// hold takes the lock of iptables until release is called.
func hold(t *testing.T, lock string) (release func()) {
	t.Helper()
	f, err := os.OpenFile(lock, os.O_RDONLY, 0)
	kit.Need(t, err == nil, "the proxy does not use the lock: %v", err)
	t.Cleanup(func() { f.Close() })
	kit.Must(t, unix.Flock(int(f.Fd()), unix.LOCK_EX))
	return func() {
		err := f.Close()
		kit.Check(t, err == nil, "%v", err)
	}
}

// tableTamperings are changes of others to whole tables of iptables-nft, which disable
// all rules in them.
var tableTamperings = []string{
	"nft add table ip nat '{ flags dormant; }'",
	"nft add table ip filter '{ flags dormant; }'",
}

// TestIPTablesDormant checks that a dormant table is activated again, by a running proxy
// and by a starting one, long before the sync period is over. See dormant in nft(8).
func TestIPTablesDormant(t *testing.T) {
	t.Parallel()
	alone := defaultMode()
	alone.flags, alone.iptables = append(alone.flags, "--proxy-mode=iptables", "--iptables-localhost-nodeports=false"), "nft"
	for _, m := range []mode{alone, inUserspace("nft")} {
		t.Run(m.proxyMode(), func(t *testing.T) {
			t.Parallel()
			m = m.withoutPeriodicSync()
			c := newCluster(t, m)
			web := app{name: "web", number: 10}.on(c.webs()...)
			none := app{name: "none", number: 11}
			p := c.start(t, web, none)
			want := c.awaitProgrammed(t)
			cells := c.cells([]*netlab.Host{c.Node, c.Host("shopper"), c.Host("customer")}, web, none)
			for _, deed := range tableTamperings {
				c.tamperIPVSAndAwaitRepair(t, p, deed)
				c.check(t, want, cells)
			}
			p.Stop(t)
			for _, deed := range tableTamperings {
				c.sh(t, deed+"\n")
			}
			c.start(t)
			c.check(t, want, cells)
		})
	}
}

// rulesAheadTamperings put rules ahead of ours, or ours behind others. Each is one change:
// of two, the first one may be repaired before the second one is made.
var rulesAheadTamperings = []string{
	"iptables --wait=60 -t nat -I PREROUTING 1 -j ACCEPT",
	"iptables --wait=60 -t nat -I OUTPUT 1 -p tcp -j RETURN",
	"iptables --wait=60 -t filter -I INPUT 1 -m comment --comment all -j ACCEPT",
	"iptables --wait=60 -t filter -I FORWARD 1 -j ACCEPT",
	"rule=$(iptables --wait=60 -t nat -S PREROUTING | grep -o -e '-j KUBE-.*')\n" +
		"iptables --wait=60 -t nat -D PREROUTING $rule\niptables --wait=60 -t nat -A PREROUTING $rule",
}

// TestIPTablesRulesAhead checks a foreign rule that accepts all packets ahead of our
// rules. Our rules move ahead of it, and the log contains its text. Rules that match less
// keep their place.
func TestIPTablesRulesAhead(t *testing.T) {
	t.Parallel()
	alone := defaultMode()
	alone.flags = append(alone.flags, "--proxy-mode=iptables", "--iptables-localhost-nodeports=false")
	for _, variant := range variants(t) {
		alone.iptables = variant
		for _, m := range []mode{alone, inUserspace(variant)} {
			t.Run(m.proxyMode()+"/"+variant, func(t *testing.T) {
				t.Parallel()
				c := newCluster(t, m.withoutPeriodicSync())
				web := app{name: "web", number: 10}.on(c.webs()...)
				none := app{name: "none", number: 11}
				p := c.start(t, web, none)
				want := c.awaitProgrammed(t)
				cells := c.cells([]*netlab.Host{c.Node, c.Host("shopper"), c.Host("customer")}, web, none)
				c.sh(t, "iptables --wait=60 -t nat -I PREROUTING 1 -p icmp -j ACCEPT\n")
				for _, deed := range rulesAheadTamperings {
					c.tamperIPVSAndAwaitRepair(t, p, deed)
					c.check(t, want, cells)
				}
				p.AwaitLog(t, "hidden: rule", "-m comment --comment all -j ACCEPT")
				if listing := c.listing(t); !strings.Contains(listing, "-A PREROUTING -j ACCEPT\n-A PREROUTING -p icmp -j ACCEPT") {
					t.Errorf("rules of others were moved:\n%s", listing)
				}
			})
		}
	}
}

// iptables runs one of the commands of c's variant on the node, with text as its input,
// and returns its output.
func (c *cluster) iptables(t *testing.T, text, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(filepath.Join(c.commands, name), args...)
	cmd.Stdin = strings.NewReader(text)
	out, err := program.Run(t, c.Node, cmd)
	kit.Need(t, err == nil, "%s %s: %v\n%s\nwas given:\n%s", name, args, err, out, text)
	return out
}

// savedCounters matches what differs between two listings of the same rules.
const savedCounters = `(?m)^#.*\n|\[\d+:\d+\]$`

// listing returns the rules of both families, ours and all others.
func (c *cluster) listing(t *testing.T) string {
	t.Helper()
	var all string
	for _, name := range []string{"iptables-save", "ip6tables-save"} {
		kit.Until(t, "a listing that nobody disturbed", func() bool {
			text := c.iptables(t, "", name)
			if listedTwice(text) {
				return false
			}
			all += text
			return true
		})
	}
	return regexp.MustCompile(savedCounters).ReplaceAllString(all, "")
}

// listedTwice returns whether a listing contains a chain twice. That happens if
// iptables-nft-save had to start again after a concurrent change.
func listedTwice(text string) bool {
	seen := map[string]bool{}
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "*") {
			clear(seen)
		}
		if strings.HasPrefix(line, ":") && seen[line] {
			return true
		}
		seen[line] = true
	}
	return false
}

// foreignIPTables are rules of other programs, some of them with names like ours.
const foreignIPTables = `*nat
:MINE - [0:0]
:KUBE-MARK-DROP - [0:0]
-A KUBE-MARK-DROP -j MARK --set-xmark 0x8000/0x8000
-A MINE -p tcp -m tcp --dport 9999 -j RETURN
-A PREROUTING -j MINE
COMMIT
*filter
:KUBE-FIREWALL - [0:0]
-A KUBE-FIREWALL -m mark --mark 0x8000/0x8000 -j DROP
-A OUTPUT -j KUBE-FIREWALL
COMMIT
*mangle
:KUBE-KUBELET-CANARY - [0:0]
COMMIT
`

// restoreBothFamilies runs a command for both families.
func (c *cluster) restoreBothFamilies(t *testing.T, text string) {
	t.Helper()
	c.iptables(t, text, "iptables-restore", "--noflush", program.AwaitLock)
	c.iptables(t, text, "ip6tables-restore", "--noflush", program.AwaitLock)
}

// TestIPTablesRepairsTampering checks that changes to our rules are found, repaired and
// reported, and that foreign rules stay unchanged.
func TestIPTablesRepairsTampering(t *testing.T) {
	eachVariant(t, func(t *testing.T, m mode) {
		c := newCluster(t, m.withoutPeriodicSync())
		c.restoreBothFamilies(t, foreignIPTables)
		theirs := c.listing(t)
		web := app{name: "web", number: 10}.on(c.webs()...)
		sticky := app{name: "sticky", number: 11, sticky: 600, external: "Local"}.on(c.webs()...)
		p := c.start(t, web, sticky)
		want := c.awaitProgrammed(t)
		rules := c.listing(t)
		for _, deed := range []struct{ name, text string }{
			{"flushes a chain", "*nat\n-F KUBE-SERVICES\nCOMMIT\n"},
			{"unhooks a chain", "*filter\n-D OUTPUT -m conntrack --ctstate NEW -j KUBE-SERVICES\nCOMMIT\n"},
			{"inserts a rule", "*nat\n-I KUBE-SERVICES 1 -p tcp -j RETURN\nCOMMIT\n"},
			{"adds a second way in", "*filter\n-I INPUT 1 -m comment --comment \"mine\" -j KUBE-NODEPORTS\n-A FORWARD -j KUBE-FORWARD\nCOMMIT\n"},
			{"removes all that marks", "*nat\n-F KUBE-MARK-MASQ\nCOMMIT\n"},
		} {
			t.Run(deed.name, func(t *testing.T) { c.tamperAndAwaitRepair(t, p, want, deed.text) })
		}
		kit.Same(t, "the rules are not as they were (-before +after)", rules, c.listing(t))
		c.check(t, want, c.cells(c.clientHosts()[:1], web, sticky))
		p.Stop(t)
		out, err := program.Run(t, c.Node, c.command("--cleanup"))
		kit.Check(t, err == nil, "cleanup: %v\n%s", err, out)
		// An empty table may also be missing.
		kit.Same(t, "after a cleanup (-rules of others +all rules)", theirs, c.listing(t))
	})
}

// withoutPeriodicSync is m with a sync period of an hour, so that repairs must come from
// notifications.
func (m mode) withoutPeriodicSync() mode {
	m.flags = append(slices.Clip(m.flags), "--iptables-sync-period=1h")
	return m
}

// tamperAndAwaitRepair changes the rules of IPv4 and waits for the repair.
func (c *cluster) tamperAndAwaitRepair(t *testing.T, p *program.Proxy, want *service.Snapshot, deed string) {
	t.Helper()
	reported := p.Log.Count("Others had altered our rules")
	found, _ := p.Metric(t, "kubeproxy_drift_repaired_total")
	c.iptables(t, deed, "iptables-restore", "--noflush", program.AwaitLock)
	c.awaitSnapshot(t, want)
	kit.Until(t, "a word of it in the log", func() bool { return p.Log.Count("Others had altered our rules") > reported })
	for _, name := range []string{"kubeproxy_drift_found_total", "kubeproxy_drift_repaired_total"} {
		kit.Until(t, name, func() bool { n, _ := p.Metric(t, name); return n > found })
	}
}

// TestIPTablesFlushed checks that the reload of a firewall, which removes all rules, is
// repaired soon.
func TestIPTablesFlushed(t *testing.T) {
	eachVariant(t, func(t *testing.T, m mode) {
		c := newCluster(t, m.withoutPeriodicSync())
		web := app{name: "web", number: 10}.on(c.webs()...)
		p := c.start(t, web)
		want := c.awaitProgrammed(t)
		all := "*nat\n-F\n-X\nCOMMIT\n*filter\n-F\n-X\nCOMMIT\n"
		c.tamperAndAwaitRepair(t, p, want, all)
		c.check(t, want, c.cells(c.clientHosts()[:1], web))
	})
}

func TestIPTablesRestart(t *testing.T) {
	eachVariant(t, func(t *testing.T, m mode) { restarts(t, m, func(c *cluster) string { return c.listing(t) }) })
}

// TestIPTablesRendered checks that render prints what the proxy installs:
// iptables-restore accepts it, and a proxy that starts then has nothing to write.
func TestIPTablesRendered(t *testing.T) {
	eachVariant(t, func(t *testing.T, m mode) {
		c := newCluster(t, m)
		apps := c.matrix()
		c.save(t, apps...)
		cmd := c.command(append([]string{"render", "--manifests=" + c.dir}, m.flags...)...)
		var text bytes.Buffer
		cmd.Stdout = &text
		out, err := program.Run(t, c.Node, cmd)
		kit.Need(t, err == nil, "render: %v\n%s", err, out)
		four, six, found := strings.Cut(text.String(), "# for ip6tables-restore\n")
		kit.Need(t, found, "no part for IPv6:\n%s", four)
		for name, part := range map[string]string{"iptables-restore": four, "ip6tables-restore": six} {
			c.iptables(t, part, name, "--test", program.AwaitLock)
			c.iptables(t, part, name, program.AwaitLock)
		}
		p := c.launch(t)
		p.AwaitLogs(t, `"Programmed"`, "iptables FAMILY", "changed=false")
	})
}

// TestIPTablesLocalhostNodePorts checks that NodePorts answer the node's own processes on
// 127.0.0.1, and no other client.
func TestIPTablesLocalhostNodePorts(t *testing.T) {
	eachVariant(t, func(t *testing.T, m mode) {
		m.flags, m.localhost = append(m.flags, "--iptables-localhost-nodeports=true"), true
		c := newCluster(t, m)
		web := app{name: "web", number: 10}.on(c.webs()...)
		local := app{name: "local", number: 11, external: "Local"}.on(c.Host("web-1"))
		c.start(t, web, local)
		for _, a := range []app{web, local} {
			for _, proto := range []string{"tcp", "udp"} {
				q := netlab.Query{Proto: proto, To: netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), a.nodePort())}
				if got, err := c.Node.Ask(t.Context(), q); err != nil || got.Outcome != netlab.Answered {
					t.Errorf("%s %s of %s: %v %v, want an answer", q.To, proto, a.name, got.Outcome, err)
				}
			}
		}
		if s := c.listing(t); !strings.Contains(s, "! -s 127.0.0.0/8 -d 127.0.0.0/8") {
			t.Errorf("others may reach loopback addresses:\n%s", s)
		}
		c.checkLocalhostClosed(t, web)
	})
}

// hostileDuration is how long the tampering goes on. make test uses the default; for a
// minute of it, run go test ./test/live -run Hostile -hostile 1m.
var hostileDuration = flag.Duration("hostile", 6*time.Second, "how long TestIPTablesHostileEdits alters rules")

// tamperer changes rules of its own and of others at random.
type tamperer struct {
	cluster   *cluster
	rand      *rand.Rand
	lastRules string // its own rules after its last change, in both families
	failed    int    // changes that did not apply to the present state
	done      int
}

// conntrackRule is a rule of the tamperer that needs connection tracking. The kernel
// tracks connections only while a rule needs it (kernel:
// net/netfilter/nf_conntrack_proto.c, nf_ct_netns_do_put). So flushing the last such rule interrupts every
// translated connection until there is one again.
const conntrackRule = "*mangle\n-A FORWARD -m conntrack --ctstate INVALID -j RETURN\nCOMMIT\n"

// similarChains are chains whose names resemble ours but that belong to others.
const similarChains = `KUBE-(MARK-DROP|FIREWALL|KUBELET-CANARY)`

// proxyRuleLine matches the lines of a listing that are ours.
var proxyRuleLine = regexp.MustCompile(`^(:|-A )KUBE-|-[jg] KUBE-`)

// foreignRules returns the lines of a listing that are not ours.
func foreignRules(listing string) string {
	var b strings.Builder
	keep := regexp.MustCompile(similarChains)
	for line := range strings.Lines(listing) {
		if (!proxyRuleLine.MatchString(line) || keep.MatchString(line)) && !strings.HasPrefix(line, "*") && line != "COMMIT\n" && !strings.Contains(line, " ACCEPT\n") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// ruleTamperings are changes to our rules by a restore of both families: flush, insert,
// delete, replace, unhook, add a chain, or load a whole table as firewalls do on a
// reload.
var ruleTamperings = []string{
	"*nat\n-F KUBE-SERVICES\nCOMMIT\n",
	"*nat\n-F KUBE-POSTROUTING\nCOMMIT\n",
	"*nat\n-D KUBE-SERVICES 1\nCOMMIT\n",
	"*nat\n-I KUBE-SERVICES 1 -p tcp -j RETURN\nCOMMIT\n",
	"*nat\n-A KUBE-MARK-MASQ -j MARK --set-xmark 0x10/0x10\nCOMMIT\n",
	"*nat\n-R KUBE-MARK-MASQ 1 -j MARK --set-xmark 0x20/0x20\nCOMMIT\n",
	"*nat\n-D PREROUTING -j KUBE-SERVICES\nCOMMIT\n",
	"*nat\n-D POSTROUTING -j KUBE-POSTROUTING\n-F KUBE-POSTROUTING\n-X KUBE-POSTROUTING\nCOMMIT\n",
	"*nat\n:KUBE-SVC-STRAY - [0:0]\n-A KUBE-SVC-STRAY -j RETURN\nCOMMIT\n",
	"*filter\n-F KUBE-FORWARD\n-F KUBE-REFUSE\nCOMMIT\n",
	"*filter\n-D FORWARD -j KUBE-FORWARD\nCOMMIT\n",
	"*filter\n-F\nCOMMIT\n",
	"*nat\n-F\n-X\nCOMMIT\n*filter\n-F\n-X\nCOMMIT\n" + foreignIPTables,
}

// ownRuleEdits are the tamperer's changes to its own rules.
var ownRuleEdits = []string{
	"*nat\n-A MINE -p udp -m udp --dport 5353 -j RETURN\nCOMMIT\n",
	"*nat\n-D MINE 1\nCOMMIT\n",
	"*nat\n-I PREROUTING 1 -j MINE\nCOMMIT\n",
	"*nat\n-A POSTROUTING -j MINE\nCOMMIT\n",
	"*filter\n-I FORWARD 1 -m comment --comment \"not KUBE\" -j ACCEPT\nCOMMIT\n",
	"*filter\n-A INPUT -p icmp -j ACCEPT\nCOMMIT\n",
}

// tamper makes a random change, if the tables accept it, and describes it. It requires
// that its own rules are as it left them.
func (h *tamperer) tamper(t *testing.T) string {
	t.Helper()
	now := foreignRules(h.cluster.listing(t))
	kit.Same(t, "rules of others changed (-as they were left +now)", h.lastRules, now)
	list := ruleTamperings
	switch {
	case h.done == 0:
		list = ruleTamperings[:1] // so that one changes our rules and is detected
	case h.rand.IntN(3) == 0:
		list = ownRuleEdits
	}
	deed := list[h.rand.IntN(len(list))]
	h.restore(t, deed, "iptables-restore")
	if !strings.Contains(deed, "icmp") {
		h.restore(t, deed, "ip6tables-restore")
	}
	h.lastRules = foreignRules(h.cluster.listing(t))
	return deed
}

func (h *tamperer) restore(t *testing.T, deed, name string) {
	t.Helper()
	cmd := exec.Command(filepath.Join(h.cluster.commands, name), "--noflush", program.AwaitLock)
	cmd.Stdin = bytes.NewBufferString(deed)
	h.done++
	if _, err := program.Run(t, h.cluster.Node, cmd); err != nil {
		h.failed++
	}
}

// TestIPTablesHostileEdits inserts, deletes and flushes own and foreign rules while
// traffic runs and an endpoint is silent now and then. Connections go on, the tamperer's rules stay unchanged, and when it ends,
// all is as desired.
func TestIPTablesHostileEdits(t *testing.T) {
	eachVariant(t, func(t *testing.T, m mode) {
		c := newCluster(t, m)
		c.restoreBothFamilies(t, foreignIPTables+conntrackRule)
		web := app{name: "web", number: 10}.on(c.webs()...)
		cart := app{name: "cart", number: 11, external: "Local"}.on(c.webs()...)
		p := c.start(t, web, cart)
		c.awaitProgrammed(t)
		lines := c.converse(t, "tcp", web, 1)
		packets, _ := c.converse(t, "udp", web, 1).split("web-4") // which have to leave an endpoint that is silent
		load := c.Host("shopper").Load(t.Context(), netlab.LoadConfig{
			Query: netlab.Query{Proto: "tcp", To: web.at(service.ClusterIP, service.IPv4)}, Workers: 2, Pause: 20 * time.Millisecond,
		})
		seed := rand.Uint64()
		h := &tamperer{cluster: c, rand: rand.New(rand.NewPCG(seed, seed)), lastRules: foreignRules(c.listing(t))}
		const fewest = 20 // changes
		for end := time.Now().Add(*hostileDuration); (time.Now().Before(end) || h.done < fewest) && !t.Failed(); {
			deed := h.tamper(t)
			packets.await(t, "goes on", func(o conversation, a netlab.Answer) bool { return a.Backend == o.server })
			if lines.checkSameServer(t); t.Failed() {
				t.Logf("after %s, with:\n%s", deed, c.listing(t))
			}
			switch h.rand.IntN(8) {
			case 0, 1: // a Service changes as well
				c.save(t, cart.on(c.webs()[h.rand.IntN(3):]...))
			case 2, 3: // an endpoint falls silent, or answers
				c.deafen(t, h.rand.IntN(2) == 0, c.Host("web-4"))
			}
		}
		c.settle(t, p, web, c.Host("web-4"))
		want := c.awaitProgrammed(t)
		kit.Same(t, "rules of others changed (-as they were left +now)", h.lastRules, foreignRules(c.listing(t)))
		lines.checkSameServer(t)
		packets.checkSameServer(t)
		c.check(t, want, c.cells(c.clientHosts()[:2], web, cart))
		report := load.Stop()
		kit.Check(t, report.Outcomes[netlab.Answered] != 0, "no connection was made all along")
		reported := p.Log.Count("Others had altered our rules")
		kit.Check(t, reported != 0, "the log does not say that anybody altered rules")
		t.Logf("seed %d: %d deeds of which %d found nothing to do, reported %d times; new connections: %s", seed, h.done, h.failed, reported, report)
	})
}

// refuseMatches makes the iptables commands of c refuse rules with one of matches, as
// they do if the kernel lacks the match. Without arguments, it restores them.
func (c *cluster) refuseMatches(t *testing.T, matches ...string) {
	t.Helper()
	said := map[string]string{
		"legacy": "echo iptables-restore: line $(grep -n -m 1 COMMIT $f | cut -d: -f1) failed >&2; exit 1",
		"nft":    "echo \"line $(grep -n -m 1 -e \"$m\" $f | cut -d: -f1): RULE_APPEND failed (No such file or directory): rule in chain KUBE\" >&2; exit 4",
	}
	for _, name := range []string{"iptables", "ip6tables"} {
		// The proxy expects its own child process to change the tables, hence exec; it
		// also uses the variable XTABLES_LOCKFILE.
		text := fmt.Sprintf("#!/bin/sh\nf=$(mktemp)\ncat > $f\nexec 3< $f\nfor m in %s; do\n\tif grep -q -e \"$m\" $f; then %s; fi\ndone\nrm $f\nexec /usr/sbin/%s-%s-restore \"$@\" <&3 # XTABLES_LOCKFILE\n",
			"'"+strings.Join(matches, "' '")+"'", said[c.mode.iptables], name, c.mode.iptables)
		if len(matches) == 0 {
			text = strings.Replace(text, "for m in ''", "for m in", 1)
		}
		next := filepath.Join(c.commands, "next")
		kit.Must(t, os.WriteFile(next, []byte(text), 0o755))
		kit.Must(t, os.Rename(next, filepath.Join(c.commands, name+"-restore")))
	}
}

// checkAnswered requires an answer of any server to each of calls.
func checkAnswered(t *testing.T, calls []judge.Call) {
	t.Helper()
	for _, x := range calls {
		a, err := x.From.Ask(t.Context(), x.Query())
		kit.Check(t, err == nil && a.Outcome == netlab.Answered, "%s: %s, %v", x, a.Outcome, err)
	}
}

// TestUserspaceStopWithoutMatches checks that a kernel without the matches for endpoint
// selection or affinity still forwards connections past the process, as well as it can.
func TestUserspaceStopWithoutMatches(t *testing.T) {
	withUserspace(t, func(t *testing.T, m mode) {
		c := newCluster(t, inUserspace(m.iptables))
		c.refuseMatches(t, "-m recent")
		web := app{name: "web", number: 10}.on(c.webs()...)
		sticky := app{name: "sticky", number: 11, sticky: 600, external: "Local"}.on(c.webs()...)
		c.save(t, web, sticky)
		for _, tc := range []struct {
			lacks []string
			loss  string
		}{
			{[]string{"-m recent"}, "without session affinity, for which the kernel lacks the match recent"},
			{[]string{"-m recent", "-m statistic"}, "without session affinity and all endpoints but one of each Service"},
		} {
			c.refuseMatches(t, tc.lacks...)
			p := c.start(t)
			want := c.awaitProgrammed(t)
			c.check(t, want, c.cells(c.clientHosts()[:1], web))
			loads := c.loads(t, web, sticky)
			p.Stop(t)
			p.AwaitLogs(t, tc.loss, "FAMILY")
			checkAnswered(t, c.cells(c.clientHosts(), web, sticky))
			t.Logf("%d connections made meanwhile", connectionsOf(loads))
			lossless(t, loads)
		}
	})
}

// TestIPTablesWithoutMatches checks that without the match for affinity, Services that
// use it are refused and named, and all others work. With the match they work, too.
// Without the match for endpoint selection, the mode is not available. See statistic and
// recent in iptables-extensions(8).
func TestIPTablesWithoutMatches(t *testing.T) {
	eachVariant(t, func(t *testing.T, m mode) {
		c := newCluster(t, m)
		c.refuseMatches(t, "-m recent")
		web := app{name: "web", number: 10}.on(c.webs()...)
		sticky := app{name: "sticky", number: 11, sticky: 600}.on(c.webs()...)
		c.save(t, web, sticky)
		p := c.launch(t)
		for _, f := range service.Families {
			p.AwaitLog(t, "service port shop/sticky:lines (tcp, "+f.String()+"): ")
			p.AwaitLog(t, "service port shop/sticky:packets (udp, "+f.String()+"): ")
		}
		c.check(t, c.want(t), c.cells(c.clientHosts(), web))
		out, err := program.Run(t, c.Node, exec.Command(kubeProxy.Path, "status", "--failing"))
		if err == nil || err.Error() != "exit status 1" || !strings.Contains(out, "shop/sticky") || strings.Contains(out, "shop/web") {
			t.Errorf("status: %v\n%s", err, out)
		}
		c.refuseMatches(t)
		c.check(t, c.awaitProgrammed(t), c.cells(c.clientHosts()[:1], web, sticky))
		p.Stop(t)
		c.refuseMatches(t, "-m statistic")
		out, err = program.Run(t, c.Node, c.command("--manifests="+c.dir, "--proxy-mode=iptables"))
		if err == nil || err.Error() != "exit status 1" || !strings.Contains(out, "there is no match statistic (kernel module xt_statistic): ") {
			t.Errorf("without the match statistic: %v\n%s", err, out)
		}
	})
}
