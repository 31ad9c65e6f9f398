// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"slices"
	"strings"
	"testing"

	"kubeproxy/test/program"
)

// diff runs kube-proxy diff on the node, with the flags of the proxy, and returns its exit
// code and what it prints.
func (c *cluster) diff(t *testing.T, args ...string) (code int, out string) {
	t.Helper()
	cmd := c.command(append(append([]string{"--manifests=" + c.dir}, c.mode.flags...), args...)...)
	cmd.Args = slices.Insert(cmd.Args, 1, "diff")
	out, err := program.Run(t, c.Node, cmd)
	if err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out
}

func TestDiff(t *testing.T) {
	t.Parallel()
	diffsOf(t, defaultMode(), func(c *cluster) {
		nft(t, c.Node, "delete element ip kube-services services { 10.96.0.10 . tcp . 80 }\n")
	}, "+\t\t\t10.96.0.10 . tcp . 80")
}

func TestIPTablesDiff(t *testing.T) {
	eachVariant(t, func(t *testing.T, m mode) {
		diffsOf(t, m, func(c *cluster) {
			c.shell(t, `iptables -t nat -F $(iptables -t nat -S | grep shop/web:lines | grep -o 'KUBE-SVC-[A-Z0-9]*' | head -n 1)`)
		}, "+-A KUBE-SVC-")
	})
}

func TestUserspaceDiff(t *testing.T) {
	withUserspace(t, func(t *testing.T, m mode) {
		diffsOf(t, m, func(c *cluster) {
			c.shell(t, "iptables -t nat -F KUBE-PORTALS-CONTAINER")
		}, "+-A KUBE-PORTALS-CONTAINER")
	})
}

func TestIPVSDiff(t *testing.T) {
	withIPVS(t, func(t *testing.T, m mode) {
		diffsOf(t, m, func(c *cluster) { c.shell(t, "ipvsadm -D -t 10.96.0.10:80") }, "+-A -t 10.96.0.10:80")
	})
}

// diffsOf compares what a node has with what it should have: before the proxy ran, while
// it runs, after endpoints came and went, after somebody altered the rules of a proxy that
// was stopped, and with other manifests. want begins a line of the rules that alter removes.
func diffsOf(t *testing.T, m mode, alter func(*cluster), want string) {
	c := newCluster(t, m)
	web := app{name: "web", number: 10, plain: m.userspace}.on(c.webs()...)
	c.save(t, web, app{name: "sticky", number: 11, sticky: 600, plain: m.userspace}.on(c.webs()...), app{name: "local", number: 12, external: "Local", plain: m.userspace}.on(c.webs()...))
	c.expectDiff(t, "before the proxy", 1, "+")
	out, err := program.Run(t, c.Node, c.command(append([]string{"--manifests=" + c.dir, "--dry-run"}, m.flags...)...))
	if err != nil || !strings.Contains(out, "The node would make ") {
		t.Errorf("--dry-run: %v\n%s", err, out)
	}
	c.expectDiff(t, "after a rehearsal", 1, "+")
	p := c.start(t)
	c.expectDiff(t, "while the proxy runs", 0, "Nothing differs.")
	c.save(t, app{name: "web", number: 10, plain: m.userspace}.on(c.Host("web-4"), c.Host("web-2")))
	c.awaitProgrammed(t)
	c.save(t, web)
	c.awaitProgrammed(t)
	c.expectDiff(t, "after endpoints came and went", 0, "Nothing differs.")
	if code, out := c.diff(t, "-o=diff"); code != 0 || out != "" {
		t.Errorf("the rules differ: exit %d\n%s", code, out)
	}
	p.Stop(t)
	alter(c)
	c.expectDiff(t, "after somebody altered rules", 1, "changes of the node, IPv4:")
	// Virtual servers have no comments.
	if code, out := c.diff(t, "-o=json"); code != 1 || !strings.HasPrefix(want, "+-A -t ") && !strings.Contains(out, `"shop/web:lines"`) {
		t.Errorf("the Service port is not named: exit %d\n%s", code, out)
	}
	if code, out := c.diff(t, "-o=diff"); code != 1 || !strings.Contains(out, want) {
		t.Errorf("no line %q: exit %d\n%s", want, code, out)
	}
}

func (c *cluster) expectDiff(t *testing.T, when string, code int, want string) {
	t.Helper()
	if got, out := c.diff(t); got != code || !strings.Contains(out, want) {
		t.Errorf("%s: exit %d, want %d with %q:\n%s", when, got, code, want, out)
	}
}
