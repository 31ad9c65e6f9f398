// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"net/netip"
	"testing"
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
