// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"kubeproxy/common/service"
	"kubeproxy/test/judge"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

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
		if err := os.WriteFile(next, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(next, filepath.Join(c.commands, name+"-restore")); err != nil {
			t.Fatal(err)
		}
	}
}

// checkAnswered requires an answer of any server to each of calls.
func checkAnswered(t *testing.T, calls []judge.Call) {
	t.Helper()
	for _, x := range calls {
		if a, err := x.From.Ask(t.Context(), x.Query()); err != nil || a.Outcome != netlab.Answered {
			t.Errorf("%s: %s, %v", x, a.Outcome, err)
		}
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
			p.AwaitLog(t, tc.loss, "IPv4")
			p.AwaitLog(t, tc.loss, "IPv6")
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
