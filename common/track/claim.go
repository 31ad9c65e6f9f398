// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package track

import (
	"cmp"
	"slices"
	"strings"

	"kubeproxy/common/service"
)

// address is what a Frontend occupies: no two Services can have the same.
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

// claims knows who asks for which address. It is whose ClusterIP it is that has
// it, for the API server gave that to one Service alone; then whose load
// balancer has it, which is a controller's to say. An external IP anybody may
// write, and so take what is another's and read its traffic. Among equals the
// Service that was created first has the address, by name among those of the
// same second.
type claims struct {
	holder map[address]claim
	queue  map[address][]claim // the others who want it, next one first
	// guests are the Services with external addresses, by what may keep them
	// from one: the whole of a ClusterIP, and a port of the node.
	guests map[address]map[*svc]int
}

// claim is one Service's wish for an address, as what.
type claim struct {
	*svc
	kind service.Kind
}

func newClaims() claims {
	return claims{map[address]claim{}, map[address][]claim{}, map[address]map[*svc]int{}}
}

// rank is the standing of a claim, the lower the better. For NodePorts only
// NodePorts compete.
func (c claim) rank() int {
	switch c.kind {
	case service.LoadBalancerIP:
		return 1
	case service.ExternalIP:
		return 2
	}
	return 0
}

// before orders claims to one address, the best one first.
func before(a, b claim) int {
	return cmp.Or(
		cmp.Compare(a.rank(), b.rank()), cmp.Compare(a.created, b.created),
		strings.Compare(a.name.Namespace, b.name.Namespace), strings.Compare(a.name.Name, b.name.Name),
	)
}

// why says why c has the address and another one has not.
func (c claim) why(other service.Kind) string {
	if c.rank() == (claim{kind: other}).rank() {
		return "which was there first"
	}
	return "whose " + c.kind.String() + " it is"
}

// add enters s as a claimant of a and returns the others, whose standing may
// have changed.
func (c *claims) add(a address, s claim) []claim {
	first, taken := c.holder[a]
	if !taken {
		c.holder[a] = s
		return nil
	}
	if before(s, first) < 0 {
		c.holder[a] = s
		s = first
	}
	q := c.queue[a]
	i, _ := slices.BinarySearchFunc(q, s, before)
	c.queue[a] = slices.Insert(q, i, s)
	return c.claimants(a)
}

// remove takes s out and returns the others.
func (c *claims) remove(a address, s *svc) []claim {
	q := c.queue[a]
	switch i := slices.IndexFunc(q, func(x claim) bool { return x.svc == s }); {
	case i >= 0:
		q = slices.Delete(q, i, i+1)
	case c.holder[a].svc != s:
		return nil
	case len(q) == 0:
		delete(c.holder, a)
		return nil
	default:
		c.holder[a] = q[0]
		q = slices.Delete(q, 0, 1)
	}
	if c.queue[a] = q; len(q) == 0 {
		delete(c.queue, a)
	}
	return c.claimants(a)
}

func (c *claims) claimants(a address) []claim {
	return append([]claim{c.holder[a]}, c.queue[a]...)
}
