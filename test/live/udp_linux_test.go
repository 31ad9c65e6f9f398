// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"slices"
	"strings"
	"testing"

	"kubeproxy/test/netlab"
)

// TestUDPMovesFromLostEndpoint checks a UDP client that keeps its port. Its conntrack
// entry fixes its endpoint, and when that endpoint is removed, the client must move.
func TestUDPMovesFromLostEndpoint(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	one, two, three := c.Host("web-1"), c.Host("web-2"), c.Host("web-3")
	dns := app{name: "dns", number: 10}
	local := app{name: "local", number: 11, external: "Local", internal: "Local"}
	c.save(t, dns.on(one, two, three), local.on(one, two))
	p := c.start(t)
	flows := c.converse(t, "udp", dns, 4)
	flows = append(flows, c.converse(t, "udp", local, 4)...)

	c.save(t, dns.on(two, three), local.on(two))
	flows.await(t, "leaves the endpoint that left", func(o conversation, a netlab.Answer) bool {
		if o.server != "web-1" && a.Outcome == netlab.Answered && a.Backend != o.server {
			t.Errorf("%s: %s answers, though %s did not leave", o.name, a.Backend, o.server)
		}
		return a.Outcome == netlab.Answered && a.Backend != "web-1"
	})
	p.AwaitLog(t, "Removed stale flows", "IPv4")
	p.AwaitLog(t, "Removed stale flows", "IPv6")
}

// TestUDPStopsWithoutEndpoints checks that a Service that is deleted or has lost its last
// endpoint answers no client, not even those with a flow.
func TestUDPStopsWithoutEndpoints(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	gone := app{name: "gone", number: 10}.on(c.Host("web-1"))
	empty := app{name: "empty", number: 11}.on(c.Host("web-1"))
	stays := app{name: "stays", number: 12}.on(c.webs()...)
	c.save(t, gone, empty, stays)
	c.start(t)
	leaving := c.converse(t, "udp", gone, 1)
	emptied := c.converse(t, "udp", empty, 1)
	others := c.converse(t, "udp", stays, 2)
	c.remove(t, "gone.yaml")
	c.save(t, empty.on())
	leaving.await(t, "ends", func(_ conversation, a netlab.Answer) bool { return a.Outcome != netlab.Answered })
	emptied.await(t, "is refused", func(_ conversation, a netlab.Answer) bool { return a.Outcome == netlab.Refused })
	others.checkSameServer(t)
}

// TestUDPFlowBeforeService checks that a client whose flow began before the Service
// existed is soon served, although its conntrack entry has no translation.
func TestUDPFlowBeforeService(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	late := app{name: "late", number: 10}
	refilled := app{name: "refilled", number: 11}
	c.save(t, refilled)
	c.start(t)
	flows := append(c.open(t, "udp", late, 1), c.open(t, "udp", refilled, 1)...)
	for _, f := range flows {
		if a, err := f.conn.AskFor(t.Context(), pollTimeout); err != nil || a.Outcome == netlab.Answered {
			t.Fatalf("%s is answered too early by %q, %v", f.name, a.Backend, err)
		}
	}
	c.save(t, late.on(c.Host("web-1")), refilled.on(c.Host("web-3")))
	flows.await(t, "is answered", func(_ conversation, a netlab.Answer) bool { return a.Outcome == netlab.Answered })
}

// TestUDPFollowsPolicy checks that clients outside leave the endpoints of other nodes when
// the external traffic policy turns Local, and that the node itself keeps its endpoints.
func TestUDPFollowsPolicy(t *testing.T) {
	for _, name := range []string{"nftables", "iptables-legacy", "userspace"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, modeNamed(name))
			dns := app{name: "dns", number: 10}.on(c.webs()...)
			c.save(t, dns)
			c.start(t)
			flows := c.converse(t, "udp", dns, 3)
			dns.external = "Local"
			c.save(t, dns)
			c.awaitProgrammed(t)
			flows.await(t, "follows the policy", func(o conversation, a netlab.Answer) bool {
				switch {
				case a.Outcome != netlab.Answered:
					return false
				case strings.HasPrefix(o.name, "customer") && !strings.Contains(o.name, "ClusterIP"):
					return slices.Contains(locals, a.Backend)
				case strings.HasPrefix(o.name, "node") && name != "userspace": // a relay draws for each datagram
					return a.Backend == o.server
				}
				return true
			})
		})
	}
}
