// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"cmp"
	"maps"
	"slices"

	"kubeproxy/common/service"
)

// shared counts how many users each shared element has: ClusterIPs, and the endpoints
// that may reach themselves through a Service.
type shared map[sharedKey]int32

type sharedKey struct {
	in   *set
	addr string // the bytes of the address
}

func newShared() shared { return shared{} }

// add adds p if n is 1, and removes it if n is -1.
func (s shared) add(p *service.Port, n int32) {
	if p == nil {
		return
	}
	s.addFrontends(p, n)
	s.addEndpoints(p.Cluster, n)
	s.addEndpoints(p.Local, n)
}

// replace removes from and adds to. Either may be nil.
func (s shared) replace(from, to *service.Port) {
	if from == nil || to == nil {
		s.add(from, -1)
		s.add(to, 1)
		return
	}
	s.addFrontends(from, -1)
	s.addFrontends(to, 1)
	for _, w := range []endpointList{clusterList, localList} {
		removed, added := service.TrimCommon(endpointsOf(from, w), endpointsOf(to, w))
		s.addEndpoints(removed, -1)
		s.addEndpoints(added, 1)
	}
}

func (s shared) addFrontends(p *service.Port, n int32) {
	for _, f := range p.Frontends {
		if f.Kind == service.ClusterIP {
			s.count(clusterIPs, f.Addr.AsSlice(), n)
		}
	}
}

func (s shared) addEndpoints(list []service.Endpoint, n int32) {
	for _, e := range list {
		if !e.Remote {
			s.count(hairpin, e.Addr.Addr().AsSlice(), n)
		}
	}
}

func (s shared) count(in *set, addr []byte, n int32) {
	k := sharedKey{in, string(addr)}
	if s[k] += n; s[k] == 0 {
		delete(s, k)
	}
}

func (k sharedKey) element() element {
	key := []byte(k.addr)
	if k.in == hairpin {
		key = append(key, key...)
	}
	return element{in: k.in, key: key}
}

// compare orders keys as their elements.
func (k sharedKey) compare(l sharedKey) int {
	return cmp.Or(cmp.Compare(k.in.name, l.in.name), cmp.Compare(k.addr, l.addr))
}

// elements returns the elements with at least one user, sorted.
func (s shared) elements() []element {
	var out []element
	for _, k := range slices.SortedFunc(maps.Keys(s), sharedKey.compare) {
		out = append(out, k.element())
	}
	return out
}

// sharedChange adds or deletes a shared element. It takes a sixth of the memory of its op.
type sharedChange struct {
	sharedKey
	verb verb
}

// sharedUnit bounds the changes in one unit.
const sharedUnit = 1024

// appendShared appends units that make changes, in order.
func appendShared(units []unit, changes []sharedChange) []unit {
	slices.SortFunc(changes, func(x, y sharedChange) int { return x.compare(y.sharedKey) })
	for part := range slices.Chunk(changes, sharedUnit) {
		units = append(units, unit{shared: part})
	}
	return units
}

// sharedOps returns the ops that make changes.
func sharedOps(changes []sharedChange) []op {
	ops := make([]op, 0, len(changes))
	for _, c := range changes {
		ops = append(ops, c.op())
	}
	return ops
}

func (c sharedChange) op() op { return op{verb: c.verb, element: c.element()} }

// compareShared compares the elements that Ports share with the table.
func (c *comparison) compareShared() {
	var different []op
	var missing []sharedChange
	for k := range c.next.shared {
		if observed := c.table.sets[k.in.name]; observed != nil {
			e := k.element()
			if _, found := observed.elements[elementKey(e)]; found {
				different = c.compareElements(different, e)
				continue
			}
		}
		missing = append(missing, sharedChange{k, addElement})
	}
	if len(different) > 0 {
		slices.SortStableFunc(different, func(x, y op) int { return x.element.compare(y.element) })
		c.units = append(c.units, unit{ops: different})
	}
	c.units = appendShared(c.units, missing)
}
