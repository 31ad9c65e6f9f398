// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"os"
	"slices"
	"strings"
	"testing"

	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

// neededRights are the capabilities of each mode, as in docs/modes.md.
func neededRights() map[string]struct {
	mode   mode
	rights []string
} {
	all := map[string]struct {
		mode   mode
		rights []string
	}{}
	for name, m := range switchableModes() {
		rights := []string{"net_admin"}
		if m.ipvs || m.iptables == "legacy" {
			rights = append(rights, "net_raw")
		}
		all[name] = struct {
			mode   mode
			rights []string
		}{m, rights}
	}
	for _, v := range program.IPTablesVariants {
		with := all["iptables-"+v]
		with.mode = inUserspace(v)
		all["userspace-"+v] = with
	}
	return all
}

// TestRights runs each mode as the chart does: with these capabilities and no others,
// behind a filter of system calls, with a read-only root. Without one of them, it does
// not work.
func TestRights(t *testing.T) {
	for name, tc := range neededRights() {
		if !tc.mode.ipvs {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				worksWithRights(t, tc.mode, tc.rights)
			})
		}
	}
}

// TestIPVSRights is TestRights for the mode that not every kernel has.
func TestIPVSRights(t *testing.T) {
	needIPVS(t)
	t.Parallel()
	needed := neededRights()["ipvs"]
	worksWithRights(t, needed.mode, needed.rights)
}

// worksWithRights checks that a mode needs each of some capabilities, and no others.
func worksWithRights(t *testing.T, m mode, rights []string) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := newCluster(t, m)
	c.withoutBPF(t)
	web := app{name: "web", number: 10, plain: true}.on(c.webs()...)
	c.save(t, web)
	c.prepare(t)
	for _, right := range rights {
		rest := slices.DeleteFunc(slices.Clone(rights), func(r string) bool { return r == right })
		c.failsBehind(t, right, contained(self, rest)...)
	}
	p := c.startBehind(t, contained(self, rights)...)
	c.check(t, c.want(t), c.cells([]*netlab.Host{c.Host("customer")}, web))
	p.Stop(t)
}

// contained are the words that start a program as in a container of the chart with these
// rights.
func contained(self string, rights []string) []string {
	set := "-all"
	for _, r := range rights {
		set += ",+" + r
	}
	return []string{"unshare", "--mount", "sh", "-c", readOnlyRoot, "sh", "env", confine + "=1", self,
		"/usr/bin/setpriv", "--inh-caps=" + set, "--bounding-set=" + set, "--no-new-privs"}
}

// failsBehind starts the proxy by another program, and wants it to end with an error that
// names the missing right.
func (c *cluster) failsBehind(t *testing.T, missing string, prefix ...string) {
	t.Helper()
	p := c.launchBehind(t, prefix...)
	ended := kit.Soon(func() bool { return p.Ended() || p.Log.Has("CAP_"+strings.ToUpper(missing)) })
	if !ended || !p.Log.Has("CAP_"+strings.ToUpper(missing)) {
		t.Errorf("without %s the proxy says\n%s", missing, p.Log)
	}
	p.Kill()
}
