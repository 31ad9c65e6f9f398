// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"net"
	"net/netip"
	"testing"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/ipvs"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

// needIPVS skips t if the kernel lacks IPVS.
func needIPVS(t *testing.T) {
	t.Helper()
	if !ipvs.Installed() {
		t.Skip("the kernel has no IPVS; make vm runs this on one that has")
	}
}

// withIPVS runs test in mode ipvs.
func withIPVS(t *testing.T, test func(*testing.T, mode)) {
	t.Helper()
	needIPVS(t)
	t.Parallel()
	m := defaultMode()
	m.flags = append(m.flags, "--proxy-mode=ipvs")
	m.ipvs = true
	test(t, m)
}

// withoutIPVS runs test in each mode but ipvs.
func withoutIPVS(t *testing.T, test func(*testing.T, mode)) {
	t.Helper()
	t.Parallel()
	for name, m := range switchableModes() {
		if m.ipvs {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, m)
		})
	}
}

// eachIPVSVariant runs test in mode ipvs with each variant of iptables, one at a time:
// the longer a check of the kernel takes, the more rarely the proxy makes one.
func eachIPVSVariant(t *testing.T, test func(t *testing.T, m mode, variant string)) {
	t.Helper()
	needIPVS(t)
	for _, v := range program.IPTablesVariants {
		t.Run(v, func(t *testing.T) { test(t, switchableModes()["ipvs"], v) })
	}
}

// useVariant makes a variant of iptables the node's, like a kubelet that uses it.
func (c *cluster) useVariant(t *testing.T, variant string) {
	t.Helper()
	c.restore(t, service.IPv4, variant, "*mangle\n:KUBE-IPTABLES-HINT - [0:0]\nCOMMIT\n")
	c.setMode(t, c.mode)
	c.commands = program.IPTables(t, variant)
}

func TestIPVSEveryCell(t *testing.T) { withIPVS(t, everyCell) }

func TestIPVSModes(t *testing.T) { withIPVS(t, everyMode) }

func TestIPVSBridge(t *testing.T) {
	withIPVS(t, func(t *testing.T, m mode) { onBridge(t, m.withoutPodDetection()) })
}

// TestIPVSLongConnections checks that long connections outlive restarts of the proxy, an
// endpoint that leaves and comes back, and a restart in between.
func TestIPVSLongConnections(t *testing.T) {
	withIPVS(t, func(t *testing.T, m mode) {
		c := newCluster(t, m)
		all := app{name: "web", number: 10}.on(c.webs()...)
		less := app{name: "web", number: 10}.on(c.webs()[1:]...)
		c.save(t, all)
		p := c.start(t)
		lines := c.converse(t, "tcp", all, 2)
		calls := c.cells([]*netlab.Host{c.Host("shopper"), c.Host("customer")}, all)
		for _, end := range []func(){func() { p.Stop(t) }, func() { p.Kill() }} {
			end()
			lines.checkSameServer(t)
			p = c.launch(t)
			for _, f := range service.Families {
				p.AwaitLog(t, `"Programmed"`, f.String(), "changed=false")
			}
			lines.checkSameServer(t)
		}
		c.save(t, less)
		c.check(t, c.awaitProgrammed(t), calls)
		lines.checkSameServer(t)
		p.Stop(t)
		p = c.launch(t)
		for _, f := range service.Families {
			p.AwaitLog(t, `"Programmed"`, f.String())
		}
		c.check(t, c.awaitProgrammed(t), calls)
		lines.checkSameServer(t)
		c.save(t, all)
		c.check(t, c.awaitProgrammed(t), calls)
		lines.checkSameServer(t)
	})
}

// TestIPVSHostPorts checks that a program of the node that listens on all addresses is
// not reachable through those of Services.
func TestIPVSHostPorts(t *testing.T) {
	withIPVS(t, func(t *testing.T, m mode) {
		c := newCluster(t, m)
		const port = 9999
		var listener net.Listener
		err := c.Node.Do(func() (err error) {
			listener, err = net.Listen("tcp", ":9999")
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { listener.Close() })
		web := app{name: "web", number: 10}.on(c.Host("web-1"))
		c.save(t, web)
		c.start(t)
		for _, x := range c.cells([]*netlab.Host{c.Host("shopper"), c.Host("customer"), c.Node}, web) {
			if x.ToNode || x.Proto != service.TCP {
				continue
			}
			x.To = netip.AddrPortFrom(x.To.Addr(), port)
			if a, err := x.From.Ask(t.Context(), x.Query()); err != nil || a.Outcome != netlab.Refused {
				t.Errorf("%s: %s %s, %v; want refused", x, a.Outcome, a.Backend, err)
			}
		}
	})
}
