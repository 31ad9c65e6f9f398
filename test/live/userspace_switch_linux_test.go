// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/iptables"
	"kubeproxy/platform/linux/nftables"
	"kubeproxy/platform/linux/userspace"
	"kubeproxy/test/kit"
	"kubeproxy/test/program"
)

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
	c.save(t, web, local)
	p := c.start(t)
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
		if err := p.Wait(t); err != nil {
			t.Fatalf("the proxy ended with %v, want exit status 0", err)
		}
		c.setMode(t, from(next.mode))
		p = c.launch(t)
		c.awaitProgrammed(t)
		for _, f := range service.Families {
			p.AwaitLog(t, "Removed what an earlier service proxy left", f.String())
		}
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
	for _, f := range service.Families {
		p.AwaitLog(t, "Connections cannot be led past this process", f.String(), fmt.Sprintf("held by process %d", os.Getpid()))
	}
	p.AwaitLog(t, `"Stopped; until the next start, new connections to Services are refused`)
	if now := c.listing(t); now != before {
		t.Errorf("the rules are now\n%s\nand were\n%s", now, before)
	}
	release()
	c.launch(t)
	c.check(t, c.awaitProgrammed(t), c.cells(c.clientHosts()[:1], web))
}

func nftablesOf(f service.Family) finder {
	return nftables.Leftovers{Family: f, Table: nftables.TableName}
}
