// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package orphans

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"kubeproxy/platform/linux/conntrack"
)

// crowd has the clients of web at its two endpoints, who come back when they are reset.
type crowd struct {
	*node
	endpoints []string // where clients come back, in turn
	next      uint16
	ends      []time.Time
}

const age = 10 * time.Second

// withCrowd runs a test with clients that are old enough, unless the kernel knows since when.
func withCrowd(t *testing.T, clients int, test func(*testing.T, *crowd)) {
	withNode(t, func(t *testing.T, n *node) {
		c := &crowd{node: n, endpoints: members["web"]}
		n.flows = nil
		c.connectAll(clients)
		n.flows = append(n.flows, flowTo("db", "10.244.0.1", 3), flowTo("db", "10.244.0.1", 4))
		n.reset = c.reset
		n.rebalance = age.String()
		n.service("web")
		test(t, c)
	})
}

func (c *crowd) connect() {
	c.next++
	c.flows = append(c.flows, flowTo("web", c.endpoints[int(c.next)%len(c.endpoints)], 1000+c.next))
}

func (c *crowd) reset(f conntrack.Flow) {
	c.ends = append(c.ends, time.Now())
	c.flows = slices.DeleteFunc(c.flows, func(x conntrack.Flow) bool { return x.Src == f.Src })
	c.connect()
}

// scale sets the endpoints of web and db.
func (c *crowd) scale(terminating string, endpoints ...string) {
	c.endpoints = endpoints
	c.slice("web", terminating, endpoints...)
	c.slice("db", terminating, endpoints...)
}

// counts returns how many connections endpoints of web have.
func (c *crowd) counts() map[string]int {
	all := map[string]int{}
	for _, f := range c.flows {
		if f.Dst.String() == frontends["web"] {
			all[f.ReplySrc.Addr().String()]++
		}
	}
	return all
}

var four = append(slices.Clip(members["web"]), "10.244.0.4", "10.244.0.5")

// TestRebalance checks that connections spread after a scale-up, no more than 5 % a second.
func TestRebalance(t *testing.T) {
	for _, clients := range []int{3, 8, 59, 80, 400} {
		t.Run(fmt.Sprint(clients), func(t *testing.T) {
			withCrowd(t, clients, func(t *testing.T, c *crowd) {
				c.after(2 * age)
				c.scale("", four...)
				c.after(time.Minute)
				share := (clients + 3) / 4
				for e, n := range c.counts() {
					if n > share+share*15/100 {
						t.Errorf("%s has %d connections, its share is %d", e, n, share)
					}
				}
				for i, end := range c.ends {
					most := max(1, clients/20)
					if i >= most && end.Sub(c.ends[i-most]) < time.Second {
						t.Errorf("of %d connections, more than %d end within %s", clients, most, end.Sub(c.ends[i-most]))
					}
				}
				ended := len(c.ends)
				named := 0
				for _, e := range c.begun {
					if e.Port.Name == "web" && slices.Contains(members["web"], e.Endpoint.Addr.String()) && e.Why == "it has more than its share" {
						named += e.Count
					}
				}
				if c.after(time.Hour); len(c.ends) != ended || c.rebalanced != ended || named != ended || ended > again*clients || len(c.orphans.balance.runs) > 0 {
					t.Errorf("%d ended in a minute, %d in an hour, %d counted, %d named; %d runs go on", ended, len(c.ends), c.rebalanced, named, len(c.orphans.balance.runs))
				}
			})
		})
	}
}

// TestRebalances checks what leads to the end of connections, within 5 s.
func TestRebalances(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*crowd)
		want   bool
	}{
		"scaled up":                  {func(c *crowd) { c.after(age + pace); c.scale("", four...) }, true},
		"connections are young":      {func(c *crowd) { c.after(age / 4); c.scale("", four...) }, false},
		"young ones become old":      {func(c *crowd) { c.after(age / 2); c.scale("", four...); c.after(age) }, true},
		"the kernel knows their age": {func(c *crowd) { c.began(time.Now().Add(-age)); c.scale("", four...) }, true},
		"the Service does not ask":   {func(c *crowd) { c.rebalance = ""; c.service("web"); c.after(age); c.scale("", four...) }, false},
		"an endpoint left":           {func(c *crowd) { c.after(age); c.scale("", "10.244.0.1") }, false},
		"a pod is replaced": {func(c *crowd) {
			c.after(age)
			c.scale("10.244.0.1", members["web"][0], members["web"][1], "10.244.0.4", "10.244.0.5")
		}, true},
		"an endpoint is not ready":     {func(c *crowd) { c.after(age); c.scale("!10.244.0.4", append(members["web"], "10.244.0.4")...) }, false},
		"each has its share":           {func(c *crowd) { c.flows = nil; c.endpoints = four; c.connectAll(8); c.after(age); c.scale("", four...) }, false},
		"another process has the node": {func(c *crowd) { c.standby = true; c.after(age); c.scale("", four...) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			withCrowd(t, 40, func(t *testing.T, c *crowd) {
				tt.change(c)
				c.after(5 * time.Second)
				if (len(c.ends) > 0) != tt.want {
					t.Errorf("%d connections ended, want some: %v", len(c.ends), tt.want)
				}
				if len(c.counts()) == 0 || c.ended > 0 {
					t.Errorf("connections %v; %d orphans ended", c.counts(), c.ended)
				}
			})
		})
	}
}

func (c *crowd) connectAll(n int) {
	for range n {
		c.connect()
	}
}

// began has the kernel say since when there are connections.
func (c *crowd) began(at time.Time) {
	for i := range c.flows {
		c.flows[i].Since = at
	}
}
