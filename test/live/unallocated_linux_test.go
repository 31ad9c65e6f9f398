// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"kubeproxy/common/service"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

// TestUnallocatedAddresses checks that packets to an unused address in a ClusterIP range
// are dropped while the ranges are known, and only then. Ports of Services are still
// served or refused.
func TestUnallocatedAddresses(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	web := app{name: "web", number: 10}.on(c.Host("web-1"))
	c.save(t, web)
	c.start(t)
	cells := c.cells(c.clientHosts()[:3], web)
	for _, x := range c.cells(c.clientHosts()[:3], web) {
		if x.ToNode || x.Name != "ClusterIP of web" {
			continue
		}
		other, nobody := x, x
		other.Name, other.To = "no port of web", netip.AddrPortFrom(x.To.Addr(), 81)
		nobody.Name, nobody.To = "nobody", netip.AddrPortFrom(x.To.Addr().Next(), 80)
		cells = append(cells, other, nobody)
	}
	c.write(t, "ranges.yaml", []byte(`apiVersion: networking.k8s.io/v1
kind: ServiceCIDR
metadata: {name: kubernetes}
spec: {cidrs: [10.96.0.0/12, "fd00:10:96::/112"]}
`))
	c.check(t, c.awaitProgrammed(t), cells)
}

// TestUnallocatedStayOnNode checks that packets to an unallocated ClusterIP do not leave
// the node though node-local DNS has bound another ClusterIP, and though an author of
// EndpointSlices lists addresses of the range. Only the listed ones may leave.
func TestUnallocatedStayOnNode(t *testing.T) { t.Parallel(); checkUnallocated(t, defaultMode()) }

// TestIPVSUnallocatedStayOnNode does the same in mode ipvs.
func TestIPVSUnallocatedStayOnNode(t *testing.T) { withIPVS(t, checkUnallocated) }

func checkUnallocated(t *testing.T, m mode) {
	c := newCluster(t, m)
	dns := app{name: "dns", number: 10, plain: true}.on(c.Host("web-1"))
	c.run(t, "ip", "link", "add", "nodelocaldns", "type", "bridge")
	var unused, listed [2]netip.Addr
	for _, f := range service.Families {
		a := dns.address(service.ClusterIP, f)
		c.run(t, "ip", "addr", "add", netip.PrefixFrom(a, a.BitLen()).String(), "dev", "nodelocaldns")
		unused[f] = a.Next()
		listed[f] = unused[f].Next()
	}
	const left, dropped = netlab.Unreachable, netlab.TimedOut // the gateway says so, at the second packet if need be
	await := func(all [2]netip.Addr, want netlab.Outcome) {
		t.Helper()
		var asked sync.WaitGroup
		for _, h := range []*netlab.Host{c.Node, c.Host("shopper")} {
			for _, a := range all {
				asked.Go(func() {
					q := netlab.Query{Proto: "tcp", To: netip.AddrPortFrom(a, target), Timeout: 4 * time.Second}
					if !kit.Soon(func() bool { got, err := h.Ask(t.Context(), q); return err == nil && got.Outcome == want }) {
						t.Errorf("what %s sends to %s is not %s", h.Name, a, want)
					}
				})
			}
		}
		asked.Wait()
	}
	c.save(t, dns)
	p := c.start(t)
	await(unused, left)
	c.write(t, "ranges.yaml", []byte(`apiVersion: networking.k8s.io/v1
kind: ServiceCIDR
metadata: {name: kubernetes}
spec: {cidrs: [10.96.0.0/12, "fd00:10:96::/112"]}
`))
	await(unused, dropped)
	await(listed, dropped)
	for f, a := range listed {
		c.write(t, fmt.Sprintf("tenant-%d.yaml", f), fmt.Appendf(nil, `apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: tenant, name: mine-%d, labels: {kubernetes.io/service-name: mine}}
addressType: IPv%d
endpoints: [{addresses: ["%s"]}]
`, f, 4+2*f, a))
	}
	await(listed, left)
	await(unused, dropped)
	p.AwaitLog(t, `of service tenant/mine`, "packets to them are not dropped")
	kit.Until(t, "the status to name the range", func() bool {
		_, out := c.ask(t, "status")
		return strings.Contains(out, "service-cidrs") && strings.Contains(out, "tenant/mine")
	})
}

func (c *cluster) run(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := program.Run(t, c.Node, exec.Command(name, args...)); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}
