// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"testing"

	"kubeproxy/common/service"
	"kubeproxy/test/netlab"
)

// TestNodeWithoutServiceRoute takes the routes to ClusterIPs from a node. Its processes
// cannot connect then, pods can, and explain and doctor know both.
func TestNodeWithoutServiceRoute(t *testing.T) {
	for _, name := range []string{"nftables", "iptables-nft", "userspace"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, modeNamed(name))
			web, dns := app{name: "web", number: 10}.on(c.webs()...), app{name: "dns", number: 14}.on(c.webs()...)
			c.save(t, web, dns)
			c.start(t)
			answers := func(h *netlab.Host, want bool) {
				t.Helper()
				for _, f := range service.Families {
					a, err := h.Ask(t.Context(), netlab.Query{Proto: "tcp", To: web.at(service.ClusterIP, f)})
					if answered := err == nil && a.Outcome == netlab.Answered; answered != want {
						t.Errorf("%s to %s: %s, %v; want an answer: %t", h.Name, web.at(service.ClusterIP, f), a.Outcome, err, want)
					}
				}
			}
			c4, c6 := web.at(service.ClusterIP, service.IPv4), web.at(service.ClusterIP, service.IPv6)
			c.mends(t, "service-route", func() {
				c.shell(t, "ip route add blackhole 10.96.0.0/16 && ip route add unreachable "+c6.Addr().String()+"/112")
				answers(c.Node, false)
				answers(c.Host("shopper"), true)
				c.explain(t, asked{"node", c4.String(), 1, []string{"the node has no route to " + c4.Addr().String() + ": blackhole", "The node does not do what it should"}})
				c.explain(t, asked{"node", c6.String(), 1, []string{"the node has no route to " + c6.Addr().String() + ": unreachable"}})
				c.explain(t, asked{c.Host("shopper").IPv4.String(), c4.String(), 0, []string{"The node does what it should"}})
				c.shell(t, "ip route del unreachable "+c6.Addr().String()+"/112") // one finding after the other
			})
			answers(c.Node, true)
		})
	}
}
