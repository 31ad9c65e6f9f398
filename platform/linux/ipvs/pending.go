// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"kubeproxy/common/service"
)

// pendingNodePorts are the addresses that answer NodePorts while those of the node are
// not known yet: the addresses that answered when the first snapshot arrived.
type pendingNodePorts struct {
	read     bool
	prefixes []netip.Prefix
}

// fillNodePorts sets the NodePort addresses of v, whose addresses are the real ones. It
// reads the kernel state once.
func (b *Backend) fillNodePorts(ctx context.Context, want *service.Snapshot, v *service.Node) error {
	if !v.NodePortsPending[b.family] {
		b.pending = pendingNodePorts{read: true}
		return nil
	}
	if !b.pending.read {
		s, err := b.driver.Read(ctx)
		if err != nil {
			return fmt.Errorf("list virtual servers: %w", err)
		}
		b.pending = pendingNodePorts{true, b.nodePortPrefixes(s, want, v.Addrs)}
	}
	v.NodePorts = append(slices.Clone(v.NodePorts), b.pending.prefixes...)
	v.NodePortsPending[b.family] = false
	return nil
}

// nodePortPrefixes returns those of addrs that have a virtual server in s for a NodePort
// of want.
func (b *Backend) nodePortPrefixes(s *state, want *service.Snapshot, addrs []netip.Addr) []netip.Prefix {
	var found []netip.Prefix
	ports, others := map[key]bool{}, map[key]bool{}
	for p := range want.Ports(b.family) {
		for _, f := range p.Frontends {
			k := key{f.Addr, f.Port, p.Name.Protocol}
			if f.Kind == service.NodePort {
				ports[k] = true
			} else {
				others[k] = true
			}
		}
	}
	for _, k := range sortedKeys(s.servers) {
		one := netip.PrefixFrom(k.addr, k.addr.BitLen())
		managed := s.servers[k].owned() || s.servers[k].upstream
		if managed && ports[key{netip.Addr{}, k.port, k.proto}] && !others[k] && slices.Contains(addrs, k.addr) && !slices.Contains(found, one) {
			found = append(found, one)
		}
	}
	return found
}
