// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"slices"

	"kubeproxy/common/service"
)

// site is where virtual servers are made.
type site struct {
	node *service.Node
	// taken are the virtual servers on addresses of the node that are not for
	// NodePorts: a Service has such an address as an external one. NodePorts of
	// the same number are not answered there.
	taken map[key]bool
}

func newSite(s *service.Snapshot, f service.Family) site {
	at := site{s.Node, map[key]bool{}}
	for p := range s.Ports(f) {
		for _, k := range at.takes(p) {
			at.taken[k] = true
		}
	}
	return at
}

// takes returns what p, which may be nil, takes of the node's own addresses.
func (at site) takes(p *service.Port) []key {
	if p == nil {
		return nil
	}
	var all []key
	for _, f := range p.Frontends {
		if f.Kind != service.NodePort && slices.Contains(at.node.Addrs, f.Addr) {
			all = append(all, key{f.Addr, f.Port, p.Name.Protocol})
		}
	}
	return all
}

// moves reports that cs change what is taken at h, and with it what other
// Ports want.
func (h *installed) moves(cs []service.Change) bool {
	return slices.ContainsFunc(cs, func(c service.Change) bool {
		return !slices.Equal(h.at.takes(c.Old), h.at.takes(c.New))
	})
}
