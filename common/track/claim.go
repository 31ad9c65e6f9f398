// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package track

import (
	"cmp"
	"net/netip"
	"strings"

	"kubeproxy/common/service"
)

// address is what a Frontend occupies. Two Services cannot have the same one.
type address struct {
	ip     [16]byte // zero for a NodePort
	port   uint16
	proto  service.Protocol
	family service.Family
}

func addressOf(p *service.Port, f service.Frontend) address {
	a := address{port: f.Port, proto: p.Name.Protocol, family: p.Family}
	if f.Addr.IsValid() {
		a.ip = f.Addr.As16()
	}
	return a
}

// addr is the inverse of clusterIPKey.
func (a address) addr() netip.Addr {
	if a.family == service.IPv4 {
		return netip.AddrFrom16(a.ip).Unmap()
	}
	return netip.AddrFrom16(a.ip)
}

// claims records which Service holds an address and which others claim it. The
// ClusterIP's owner comes first, because the API server assigned it to one Service alone.
// Then comes the owner of the load balancer's address, which a controller assigned.
// External IPs come last, because every user can set them, and could divert and read the
// traffic of others: kubernetes/kubernetes#97076 (CVE-2020-8554). Among equals the
// Service that was created first holds the address, and by name among those of the same
// second.
type claims struct {
	holder map[address]claim
	queue  map[address]*queue // the others that claim it
	// external are the Services with external addresses, by what may take precedence: a
	// ClusterIP with all its ports, or a port of the node.
	external dependents
	// endpoints are the Services whose endpoints have addresses near ClusterIPs.
	endpoints dependents
	// was has the former holder of each address whose holder has changed since the last
	// update.
	was   map[address]claim
	touch func(*serviceState) // queues a Service for the next update
}

// claim is one Service's claim to an address, with the kind of the address.
type claim struct {
	*serviceState
	kind service.Kind
}

func newClaims(touch func(*serviceState)) claims {
	return claims{map[address]claim{}, map[address]*queue{}, dependents{}, dependents{}, map[address]claim{}, touch}
}

// rank is the precedence of a claim, lower is better. NodePorts compete with NodePorts
// only.
func (c claim) rank() int {
	switch c.kind {
	case service.LoadBalancerIP:
		return 1
	case service.ExternalIP:
		return 2
	}
	return 0
}

// compareClaims orders claims to one address, best first.
func compareClaims(a, b claim) int {
	return cmp.Or(
		cmp.Compare(a.rank(), b.rank()), cmp.Compare(a.created, b.created),
		strings.Compare(a.name.Namespace, b.name.Namespace), strings.Compare(a.name.Name, b.name.Name),
	)
}

// reason returns why c holds the address and another claim does not.
func (c claim) reason(other service.Kind) string {
	if c.rank() == (claim{kind: other}).rank() {
		return "which was there first"
	}
	return "which has it as its " + c.kind.String()
}

// add adds a claim to a.
func (c *claims) add(a address, s claim) {
	first, taken := c.holder[a]
	if !taken || compareClaims(s, first) < 0 {
		c.hold(a, first, s)
		first, s = s, first
	}
	if !taken {
		return
	}
	q := c.queue[a]
	if q == nil {
		q = &queue{}
		c.queue[a] = q
	}
	q.push(s)
}

// remove removes a claim to a.
func (c *claims) remove(a address, s claim) {
	q := c.queue[a]
	switch {
	case q != nil && q.drop(s):
	case c.holder[a] != s:
		return
	case q == nil:
		c.hold(a, s, claim{})
	default:
		c.hold(a, s, q.pop())
	}
	if q != nil && len(q.list) == 0 {
		delete(c.queue, a)
	}
}

// hold makes now the holder of a instead of old. Either may be none. Both are queued.
// Other claimants of the address, and external addresses that it refuses, are affected
// only if the holder at the next update is another one. So until then the change is only
// recorded, because an update may change the holder as often as there are claims. A later
// claimant is queued anyway.
func (c *claims) hold(a address, old, now claim) {
	if now.serviceState == nil {
		delete(c.holder, a)
	} else {
		c.holder[a] = now
	}
	for _, x := range []claim{old, now} {
		if x.serviceState != nil {
			c.touch(x.serviceState)
		}
	}
	if _, noted := c.was[a]; !noted && (c.queue[a] != nil || c.external[a] != nil || c.endpoints[a] != nil) {
		c.was[a] = old
	}
}

// resolve queues all Services that are affected by changes since it last ran.
func (c *claims) resolve() {
	if len(c.was) == 0 {
		return
	}
	for a, old := range c.was {
		if c.holder[a] == old {
			continue
		}
		if q := c.queue[a]; q != nil {
			for _, x := range q.list {
				c.touch(x.serviceState)
			}
		}
		for s := range c.external[a] {
			c.touch(s)
		}
		for s := range c.endpoints[a] {
			c.touch(s)
		}
	}
	c.was = map[address]claim{} // clearing it would cost as much as its largest size
}
