// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/nftables"
	"kubeproxy/test/program"
)

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
		if !strings.Contains(said, `"Cleaned up" place="`+word+`" removed=`) {
			t.Errorf("no word of what was removed from %s:\n%s", word, said)
		}
	}
	if diff := cmp.Diff(theirs, c.listAllRules(t)); diff != "" {
		t.Errorf("after a cleanup (-rules of others +all rules):\n%s", diff)
	}
	c.checkOnlyMode(t, "no mode")
	if lists := c.recentLists(t); len(lists) > 0 {
		t.Errorf("lists of clients are left: %q", lists)
	}
	if again := c.cleanUp(t, "", 0); strings.Contains(again, "Cleaned up") {
		t.Errorf("a second cleanup found something:\n%s", again)
	}
}

// TestCleanupWithoutCommands checks that a cleanup without the iptables commands removes
// what it can, and names the rest, which may or may not exist.
func TestCleanupWithoutCommands(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	none := t.TempDir()
	c.save(t, app{name: "web", number: 10}.on(c.webs()...))
	c.start(t).Stop(t)
	c.cleanUp(t, none, 0)
	c.installLeftovers(t)
	said := c.cleanUp(t, none, 1)
	for _, word := range []string{"iptables-legacy", "ip6tables-legacy", "iptables-nft", "ip6tables-nft"} {
		if !strings.Contains(said, "clean up "+word+": the command "+word+"-restore is missing: install it to have the chains removed") {
			t.Errorf("no word of what was not removed from %s:\n%s", word, said)
		}
	}
	if !strings.Contains(said, `"Cleaned up" place="nftables table ip6 kube-services"`) {
		t.Errorf("it did not go on:\n%s", said)
	}
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
	if err == nil || err.Error() != "exit status 1" || !strings.Contains(out, "CAP_NET_ADMIN") {
		t.Errorf("ended with %v, want exit status 1 and the right that is missing:\n%s", err, out)
	}
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
		if err != nil {
			t.Fatalf("render: %v\n%s", err, text)
		}
		_, four, _ := strings.Cut(text, "# for iptables-restore\n")
		four, six, found := strings.Cut(four, "# for ip6tables-restore\n")
		if !found {
			t.Fatalf("no part for IPv6:\n%s", text)
		}
		c.restore(t, service.IPv4, m.iptables, four)
		c.restore(t, service.IPv6, m.iptables, six)
	}
	if lists := c.recentLists(t); len(lists) == 0 {
		t.Fatal("there are no lists of clients")
	}
}

// installNFTables installs our tables without the program, which would remove the rules
// of other modes.
func (c *cluster) installNFTables(t *testing.T) {
	t.Helper()
	want := c.want(t)
	for _, f := range service.Families {
		err := c.Node.Do(func() error {
			b, err := nftables.New(f, nftables.Options{MasqueradeBit: 14})
			if err != nil {
				return err
			}
			p, err := b.Plan(t.Context(), want)
			if err == nil {
				err = p.Apply(t.Context()).Err
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// recentLists returns the names of the kernel's lists of the recent match, see
// iptables-extensions(8).
func (c *cluster) recentLists(t *testing.T) []string {
	t.Helper()
	var all []string
	err := c.Node.Do(func() (err error) {
		all, err = filepath.Glob("/proc/thread-self/net/xt_recent/*")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
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
	if got := cmd.ProcessState.ExitCode(); got != exit {
		t.Errorf("cleanup: %v, want exit status %d\n%s", err, exit, out)
	}
	return out
}
