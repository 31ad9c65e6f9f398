// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"net/netip"
	"slices"
	"testing"

	"kubeproxy/common/service"
	"kubeproxy/common/track"
	"kubeproxy/test/netlab"
)

// way is how a client reaches a Service through an ingress node.
type way struct {
	kind   service.Kind
	family service.Family
	proto  string
}

func ways() (all []way) {
	for _, k := range []service.Kind{service.LoadBalancerIP, service.NodePort} {
		for _, f := range service.Families {
			all = append(all, way{k, f, "tcp"}, way{k, f, "udp"})
		}
	}
	return all
}

// selected returns the endpoints that client ports get, by way and port.
func (c *cluster) selected(t *testing.T, web app, ports int) map[way][]string {
	t.Helper()
	all := map[way][]string{}
	for _, w := range ways() {
		for i := range ports {
			from := netip.AddrPortFrom(netip.Addr{}, uint16(40000+1000*int(w.kind)+i))
			a, err := c.Host("customer").Ask(t.Context(), netlab.Query{Proto: w.proto, To: web.at(w.kind, w.family), From: from})
			if err != nil || a.Outcome != netlab.Answered {
				t.Fatalf("%v from port %d: %s, %v", w, from.Port(), a.Outcome, err)
			}
			all[w] = append(all[w], a.Backend)
		}
	}
	return all
}

// TestConsistentSelection has two nodes learn of the same endpoints in different orders. They
// select the same ones for the same client ports, and few others when one leaves.
func TestConsistentSelection(t *testing.T) {
	t.Parallel()
	const ports = 200
	m := defaultMode()
	m.plain = true
	nodes := [2]*cluster{newCluster(t, m), newCluster(t, m)}
	web := app{name: "web", number: 10, selection: track.SelectConsistent}
	var before [2]map[way][]string
	for i, c := range nodes {
		all := c.webs()
		first := web.on(all...)
		if i == 1 { // another past, and other slots in tables that depend on it
			first = web.on(all[3], all[1])
		}
		c.start(t, first)
		if i == 1 {
			c.awaitProgrammed(t, web.on(all[1]))
			c.awaitProgrammed(t, web.on(all[3], all[2], all[1], all[0]))
		}
		before[i] = c.selected(t, web, ports)
	}
	for w, one := range before[0] {
		if !slices.Equal(one, before[1][w]) {
			t.Errorf("%v: the nodes select\n%v\n%v", w, one, before[1][w])
		}
		if k := slices.Compact(slices.Sorted(slices.Values(one))); len(k) != len(web.on(nodes[0].webs()...).pods) {
			t.Errorf("%v: only %v are selected", w, k)
		}
	}
	c := nodes[0]
	c.awaitProgrammed(t, web.on(c.webs()[:3]...))
	for w, after := range c.selected(t, web, ports) {
		moved := 0
		for i, was := range before[0][w] {
			if was != after[i] && was != "web-4" {
				moved++
			}
		}
		if t.Logf("%v: %d of %d connections moved from endpoints that stay", w, moved, ports); moved > ports*2/100 {
			t.Errorf("%v: %d of %d connections moved from endpoints that stay", w, moved, ports)
		}
	}
}
