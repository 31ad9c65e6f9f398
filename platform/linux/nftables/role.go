// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import "kubeproxy/common/service"

// What a table holds follows from its role.

// sets are those that every table of the role has.
func (o Options) sets() []*set {
	if o.Role == BesideIPVS {
		return besideSets
	}
	return baseSets
}

// chains are those that every table of the role has.
func (o Options) chains(f service.Family, node *service.Node) []*chain {
	if o.Role == BesideIPVS {
		return besideChains(f, node, o)
	}
	return baseChains(f, node, o)
}

// classes are the size classes that are there from the start.
func (o Options) classes() classes {
	if o.Role == BesideIPVS {
		return classes{}
	}
	return baseClasses
}

// wanted returns everything that l puts into sets, sorted, but for the sets
// that several Ports share by address.
func (l layout) wanted(o Options) []element {
	if o.Role == BesideIPVS {
		return l.besideElements()
	}
	return l.elements()
}

// count counts p in (n is 1) or out (n is -1). p may be nil.
func (s shared) count(p *service.Port, n int32, o Options) {
	s.add(p, n)
	if p == nil || o.Role != BesideIPVS {
		return
	}
	for _, f := range p.Frontends {
		if f.Kind != service.NodePort {
			s.change(virtualIPs, f.Addr, n)
		}
	}
}
