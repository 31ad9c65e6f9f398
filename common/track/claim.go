// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package track

import (
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

// claims knows who asks for which address. The Service that was created
// first has it, by name among those of the same second.
type claims struct {
	holder map[address]*svc
	queue  map[address][]*svc // the others who want it, next one first
}

func newClaims() claims {
	return claims{map[address]*svc{}, map[address][]*svc{}}
}

func before(a, b *svc) int {
	switch {
	case a.created < b.created:
		return -1
	case a.created > b.created:
		return 1
	case a.name.Namespace != b.name.Namespace:
		return strings.Compare(a.name.Namespace, b.name.Namespace)
	}
	return strings.Compare(a.name.Name, b.name.Name)
}

// add enters s as a claimant of a and returns the others, whose standing may
// have changed.
func (c *claims) add(a address, s *svc) []*svc {
	first := c.holder[a]
	if first == nil {
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
func (c *claims) remove(a address, s *svc) []*svc {
	q := c.queue[a]
	switch i := slices.Index(q, s); {
	case i >= 0:
		q = slices.Delete(q, i, i+1)
	case c.holder[a] != s:
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

func (c *claims) claimants(a address) []*svc {
	return append([]*svc{c.holder[a]}, c.queue[a]...)
}
