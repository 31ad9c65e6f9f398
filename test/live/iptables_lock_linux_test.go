// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

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
		if err != nil || a.Outcome == netlab.Answered {
			t.Errorf("%s to %s (%s): %s by %q, %v", h.Name, to, proto, a.Outcome, a.Backend, err)
		}
	}
}

// hold takes the lock of iptables until release is called.
func hold(t *testing.T, lock string) (release func()) {
	t.Helper()
	f, err := os.OpenFile(lock, os.O_RDONLY, 0)
	if err != nil {
		t.Fatalf("the proxy does not use the lock: %v", err)
	}
	t.Cleanup(func() { f.Close() })
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}
