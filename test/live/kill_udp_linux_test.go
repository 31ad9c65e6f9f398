// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"testing"
	"time"

	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

// TestUDPEndsThoughKilled kills proxies shortly after they were told that a Service is
// deleted, in several modes. Whatever they had done until then, a client with an old flow
// is not answered any more, and other flows go on.
func TestUDPEndsThoughKilled(t *testing.T) {
	for name, m := range map[string]mode{"nftables": defaultMode(), "iptables": modeNamed("iptables-nft"), "userspace": inUserspace("nft")} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, m)
			gone := app{name: "gone", number: 10}.on(c.Host("web-1"))
			stays := app{name: "stays", number: 12}.on(c.webs()...)
			c.save(t, stays)
			var others conversations
			for try := range 6 {
				c.save(t, gone)
				p := c.start(t)
				leaving := c.converse(t, "udp", gone, 1)
				if try == 0 && name != "userspace" { // whose flows end with the process
					others = c.converse(t, "udp", stays, 2)
				}
				before := program.Generation(t, c.Node)
				c.remove(t, "gone.yaml")
				kit.Until(t, "the proxy writes", func() bool { return program.Generation(t, c.Node) != before })
				time.Sleep(time.Duration(try) * time.Millisecond)
				p.Kill()
				c.start(t).Kill()
				leaving.await(t, "ends", func(_ conversation, a netlab.Answer) bool { return a.Outcome != netlab.Answered })
			}
			others.checkSameServer(t)
		})
	}
}
