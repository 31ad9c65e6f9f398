// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"slices"

	"kubeproxy/common/service"
)

// localNode is where virtual servers are made.
type localNode struct {
	node *service.Node
	// reserved are the virtual servers on addresses of the node that are not for
	// NodePorts: a Service has such an address as an external one. NodePorts of
	// the same number are not answered there.
	reserved map[key]bool
}

func newLocalNode(s *service.Snapshot, f service.Family) localNode {
	at := localNode{s.Node, map[key]bool{}}
	for p := range s.Ports(f) {
		for _, k := range at.reservedBy(p) {
			at.reserved[k] = true
		}
	}
	return at
}

// reservedBy returns what p, which may be nil, takes of the node's own addresses.
func (at localNode) reservedBy(p *service.Port) []key {
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

// reservationsChange reports that cs change what is taken at h, and with it what other
// Ports want.
func (h *installed) reservationsChange(cs []service.Change) bool {
	return slices.ContainsFunc(cs, func(c service.Change) bool {
		return !slices.Equal(h.localNode.reservedBy(c.Old), h.localNode.reservedBy(c.New))
	})
}
