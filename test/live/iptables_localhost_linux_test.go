// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

// routesLocalnet returns whether the node's kernel routes loopback addresses, see
// route_localnet in https://docs.kernel.org/networking/ip-sysctl.html
func (c *cluster) routesLocalnet(t *testing.T) bool {
	t.Helper()
	var text []byte
	err := c.Node.Do(func() (err error) {
		text, err = os.ReadFile("/proc/sys/net/ipv4/conf/all/route_localnet")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text)) == "1"
}

// awaitLocalhost waits until connections to NodePorts of a on 127.0.0.1 have the outcome
// want, and the sysctl and its guard rule match that.
func (c *cluster) awaitLocalhost(t *testing.T, a app, want netlab.Outcome) {
	t.Helper()
	c.askLocalhost(t, a, want)
	open := want == netlab.Answered
	kit.Until(t, "the kernel and the guard to fit", func() bool {
		return c.routesLocalnet(t) == open && strings.Contains(c.listing(t), "! -s 127.0.0.0/8 -d 127.0.0.0/8") == open
	})
}

// askLocalhost waits until a NodePort of a at 127.0.0.1 is as wanted.
func (c *cluster) askLocalhost(t *testing.T, a app, want netlab.Outcome) {
	t.Helper()
	for _, proto := range []string{"tcp", "udp"} {
		q := netlab.Query{Proto: proto, To: netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), a.nodePort())}
		kit.Until(t, proto+" on 127.0.0.1 to be "+want.String(), func() bool {
			got, err := c.Node.Ask(t.Context(), q)
			return err == nil && got.Outcome == want
		})
	}
}

// checkLocalhostClosed sends packets from outside to a NodePort of a at 127.0.0.1 of the
// node, and requires that none is answered.
func (c *cluster) checkLocalhostClosed(t *testing.T, a app) {
	t.Helper()
	outside := c.Host("customer")
	out, err := program.Run(t, outside, exec.Command("sh", "-ec", `
		sysctl -qw net.ipv4.conf.all.route_localnet=1
		ip route del table local local 127.0.0.0/8 dev lo
		ip route del table local local 127.0.0.1 dev lo
		ip route add 127.0.0.1 via 192.0.2.10`))
	if err != nil {
		t.Fatalf("routes of the customer: %v\n%s", err, out)
	}
	for _, proto := range []string{"tcp", "udp"} {
		q := netlab.Query{Proto: proto, To: netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), a.nodePort())}
		q.Timeout = time.Second
		if got, err := outside.Ask(t.Context(), q); err != nil || got.Outcome == netlab.Answered {
			t.Errorf("%s from outside to a NodePort of 127.0.0.1: %s by %s, %v; want no answer", proto, got.Outcome, got.Backend, err)
		}
	}
}

// TestIPTablesLocalhostByReload closes loopback addresses and opens them again by a
// changed file, with a running process and with restarts. All other traffic goes on.
func TestIPTablesLocalhostByReload(t *testing.T) {
	eachVariant(t, func(t *testing.T, m mode) {
		c := newCluster(t, m)
		const open, away, off = "mode: iptables\n", "mode: iptables\nnodePortAddresses: [192.0.2.0/24]\n", "mode: iptables\niptables: {localhostNodePorts: false}\n"
		v, path := newVolume(t, open)
		m.flags, m.localhost = append(defaultMode().flags, "--config="+path), true
		c.setMode(t, m)
		web := app{name: "web", number: 10}.on(c.webs()...)
		c.save(t, web)
		p := c.start(t)
		c.awaitLocalhost(t, web, netlab.Answered)
		lines, loads := c.converse(t, "tcp", web, 1), c.loads(t, web)
		v.mount(t, "..away", away)
		c.awaitLocalhost(t, web, netlab.Refused)
		v.mount(t, "..open", open)
		c.awaitLocalhost(t, web, netlab.Answered)
		v.mount(t, "..off", off)
		if err := p.Wait(t); err != nil || !p.Log.Has("only a new process can apply", "iptables.localhostNodePorts") {
			t.Errorf("ended with %v", err)
		}
		p = c.launch(t)
		c.awaitLocalhost(t, web, netlab.Refused)
		v.mount(t, "..on", open)
		if err := p.Wait(t); err != nil {
			t.Errorf("ended with %v", err)
		}
		c.launch(t)
		c.awaitLocalhost(t, web, netlab.Answered)
		lines.checkSameServer(t)
		lossless(t, loads)
		c.awaitProgrammed(t)
	})
}

// startReadOnly starts a proxy that may not write sysctls.
func (c *cluster) startReadOnly(t *testing.T, more ...string) *program.Proxy {
	t.Helper()
	flags := slices.Concat([]string{kubeProxy.Path, "--manifests=" + c.dir, "--proxy-mode=iptables", "--iptables-sync-period=1s"}, defaultMode().flags, more)
	const closed = "mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys && exec \"$@\""
	args := kubeProxy.Command().Args
	args = append([]string{"--mount", "sh", "-c", closed, "sh"}, append(flags, args[1:]...)...)
	return program.Start(t, c.Node, program.With(exec.Command("unshare", args...), c.commands))
}

// TestIPTablesLocalhostListens checks that such a process listens on 127.0.0.1 itself, if
// nodePortAddresses has it.
func TestIPTablesLocalhostListens(t *testing.T) {
	eachVariant(t, func(t *testing.T, m mode) {
		c := newCluster(t, m)
		web := app{name: "web", number: 10}.on(c.webs()...)
		c.save(t, web)
		p := c.startReadOnly(t, "--nodeport-addresses=primary,localhost")
		p.AwaitLog(t, `"Programmed"`, "iptables IPv4")
		c.askLocalhost(t, web, netlab.Answered)
		if page := p.Fetch(t, program.HealthAddr, "/healthz"); strings.Contains(string(page.Body), "lacking") {
			t.Errorf("a condition although listeners answer:\n%s", page.Body)
		}
	})
}

// TestIPTablesLocalhostWithoutSetting checks a process that may not write sysctls.
// NodePorts answer on all addresses except 127.0.0.1, and there as soon as another
// process has written the sysctl.
func TestIPTablesLocalhostWithoutSetting(t *testing.T) {
	eachVariant(t, func(t *testing.T, m mode) {
		c := newCluster(t, m)
		web := app{name: "web", number: 10}.on(c.webs()...)
		c.save(t, web)
		p := c.startReadOnly(t)
		p.AwaitLog(t, `"Programmed"`, "iptables IPv4")
		p.AwaitLog(t, "Warning: NodePorts do not answer on 127.0.0.1", "read-only file system")
		kit.Until(t, "health of both families, and the condition", func() bool {
			page := p.Fetch(t, program.HealthAddr, "/healthz")
			return page.Status == http.StatusOK && strings.Contains(string(page.Body), "lacking-IPv4")
		})
		c.awaitLocalhost(t, web, netlab.Refused)
		c.check(t, c.want(t), c.cells(c.clientHosts()[:1], web))
		if out, err := program.Run(t, c.Node, exec.Command("sysctl", "-qw", "net.ipv4.conf.all.route_localnet=1")); err != nil {
			t.Fatalf("sysctl: %v\n%s", err, out)
		}
		c.awaitLocalhost(t, web, netlab.Answered)
		kit.Until(t, "the condition to go", func() bool {
			return !strings.Contains(string(p.Fetch(t, program.HealthAddr, "/healthz").Body), "lacking")
		})
	})
}
