// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"net"
	"net/netip"
	"slices"

	"kubeproxy/common/explain"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/platform/mode"
)

// trace follows c through the dataplane. It returns nil where the mode cannot do that.
func (p *proxy) trace(ctx context.Context, want *service.Snapshot, c route.Conn) (*explain.Walk, error) {
	i := slices.IndexFunc(p.selected.Backends, func(b *mode.Backend) bool { return b.Family == service.FamilyOf(c.To.Addr()) })
	if i < 0 || p.selected.Backends[i].Tracer == nil {
		return nil, nil
	}
	t, err := p.selected.Backends[i].Tracer()
	if err != nil {
		return nil, err
	}
	defer t.Close()
	return t.Trace(ctx, want, c, func(a netip.Addr) bool { return slices.Contains(want.Node.Addrs, a) || isLocal(a) })
}

// isLocal reports whether an interface of the node has the address a, or a is a loopback
// address.
func isLocal(a netip.Addr) bool {
	if a.IsLoopback() {
		return true
	}
	all, err := net.InterfaceAddrs()
	if err != nil {
		return false
	}
	return slices.ContainsFunc(all, func(x net.Addr) bool {
		p, err := netip.ParsePrefix(x.String())
		return err == nil && p.Addr().Unmap() == a
	})
}
