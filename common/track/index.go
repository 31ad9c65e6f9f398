// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package track

import "kubeproxy/common/service"

// origin is a slice with endpoints of a Port, and the number of the port there.
type origin struct {
	slice *slice
	port  uint16
}

// index finds the origins of a Service's Ports. A Service with few Ports gets no map; its
// slices are scanned for each Port.
type index struct {
	slices  []*slice
	origins map[originKey][]origin
	few     []origin // memory, reused
}

type originKey struct {
	family service.Family
	name   string
	proto  service.Protocol
}

// fewPorts is the number of Ports up to which a scan is faster than a map.
const fewPorts = 8

func indexOf(s *serviceState) index {
	x := index{slices: s.slices}
	if len(s.want) <= fewPorts {
		return x
	}
	x.origins = map[originKey][]origin{}
	for _, from := range s.slices {
		for _, t := range from.ports {
			k := originKey{from.family, t.name, t.proto}
			x.origins[k] = append(x.origins[k], origin{from, t.port})
		}
	}
	return x
}

// of returns the origins of p. The result is valid until the next call.
func (x *index) of(p *service.Port) []origin {
	if x.origins != nil {
		return x.origins[originKey{p.Family, p.Name.Port, p.Name.Protocol}]
	}
	x.few = x.few[:0]
	for _, s := range x.slices {
		if s.family != p.Family {
			continue
		}
		for _, t := range s.ports {
			if t.name == p.Name.Port && t.proto == p.Name.Protocol {
				x.few = append(x.few, origin{s, t.port})
			}
		}
	}
	return x.few
}
