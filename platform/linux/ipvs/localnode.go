// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"slices"

	"kubeproxy/common/service"
)

// localNode is the node on which virtual servers are made.
type localNode struct {
	node *service.Node
	// reserved are the virtual servers on node addresses that are not for NodePorts,
	// because a Service has the address as an external one. NodePorts with the same port
	// number do not answer there.
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

// reservedBy returns the node addresses and ports that p, which may be nil, reserves.
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

// reservationsChange reports whether cs change the reservations of h, and with them the
// virtual servers of other Ports.
func (h *installed) reservationsChange(cs []service.Change) bool {
	return slices.ContainsFunc(cs, func(c service.Change) bool {
		return !slices.Equal(h.localNode.reservedBy(c.Old), h.localNode.reservedBy(c.New))
	})
}
