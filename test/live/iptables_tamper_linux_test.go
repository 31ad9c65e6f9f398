// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"bytes"
	"net/netip"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubeproxy/common/service"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

// iptables runs one of the commands of c's variant on the node, with text as its input,
// and returns its output.
func (c *cluster) iptables(t *testing.T, text, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(filepath.Join(c.commands, name), args...)
	cmd.Stdin = strings.NewReader(text)
	out, err := program.Run(t, c.Node, cmd)
	if err != nil {
		t.Fatalf("%s %s: %v\n%s\nwas given:\n%s", name, args, err, out, text)
	}
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
		c.save(t, web, sticky)
		p := c.start(t)
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
		if diff := cmp.Diff(rules, c.listing(t)); diff != "" {
			t.Errorf("the rules are not as they were (-before +after):\n%s", diff)
		}
		c.check(t, want, c.cells(c.clientHosts()[:1], web, sticky))
		p.Stop(t)
		if out, err := program.Run(t, c.Node, c.command("--cleanup")); err != nil {
			t.Errorf("cleanup: %v\n%s", err, out)
		}
		// An empty table may also be missing.
		if diff := cmp.Diff(theirs, c.listing(t)); diff != "" {
			t.Errorf("after a cleanup (-rules of others +all rules):\n%s", diff)
		}
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
		c.save(t, web)
		p := c.start(t)
		want := c.awaitProgrammed(t)
		all := "*nat\n-F\n-X\nCOMMIT\n*filter\n-F\n-X\nCOMMIT\n"
		c.tamperAndAwaitRepair(t, p, want, all)
		c.check(t, want, c.cells(c.clientHosts()[:1], web))
	})
}

func TestIPTablesRestart(t *testing.T) {
	eachVariant(t, func(t *testing.T, m mode) {
		restarts(t, m, func(c *cluster) string { return c.listing(t) })
	})
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
		if out, err := program.Run(t, c.Node, cmd); err != nil {
			t.Fatalf("render: %v\n%s", err, out)
		}
		four, six, found := strings.Cut(text.String(), "# for ip6tables-restore\n")
		if !found {
			t.Fatalf("no part for IPv6:\n%s", four)
		}
		for name, part := range map[string]string{"iptables-restore": four, "ip6tables-restore": six} {
			c.iptables(t, part, name, "--test", program.AwaitLock)
			c.iptables(t, part, name, program.AwaitLock)
		}
		p := c.launch(t)
		for _, f := range service.Families {
			p.AwaitLog(t, `"Programmed"`, "iptables "+f.String(), "changed=false")
		}
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
		c.save(t, web, local)
		c.start(t)
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
