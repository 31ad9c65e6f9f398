// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"io"
	"net"
	"net/netip"
	"slices"

	"kubeproxy/common/explain"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/platform/mode"
)

// tracer is a backend that can follow a connection through its dataplane.
type tracer interface {
	Trace(ctx context.Context, want *service.Snapshot, c route.Conn, local func(netip.Addr) bool) (*explain.Walk, error)
}

// trace follows c through the dataplane. It asks a backend of its own, because the one
// that programs belongs to its loop.
func (p *proxy) trace(ctx context.Context, want *service.Snapshot, c route.Conn) (*explain.Walk, error) {
	i := slices.IndexFunc(p.selected.Backends, func(b *mode.Backend) bool { return b.Family == service.FamilyOf(c.To.Addr()) })
	if i < 0 || p.selected.Backends[i].Audit == nil {
		return nil, nil
	}
	b, err := p.selected.Backends[i].Audit()
	if err != nil {
		return nil, err
	}
	if closer, ok := b.(io.Closer); ok {
		defer closer.Close()
	}
	t, ok := b.(tracer)
	if !ok {
		return nil, nil
	}
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
