// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"context"
	"net/netip"
	"slices"

	"kubeproxy/common/service"
)

// Entry is a flow of one client.
type Entry struct {
	Flow
	// Stale means that a Reconciler deletes it.
	Stale bool
}

// Client is whose entries are looked up.
type Client struct {
	Protocol service.Protocol
	From     netip.Addr
	To       netip.AddrPort // before any translation
}

// Entries returns the flows of a client to one destination, sorted by the port of the
// client. now is the snapshot in force.
func Entries(ctx context.Context, d Driver, now *service.Snapshot, c Client) ([]Entry, error) {
	f := Filter{Family: service.FamilyOf(c.From), Protocol: c.Protocol, Port: c.To.Port()}
	if f.Family == service.IPv4 {
		f.Addr = c.To.Addr()
	}
	flows := map[netip.AddrPort]Flow{}
	err := d.Dump(ctx, f, func(x Flow) {
		if x.Protocol == c.Protocol && x.Src.Addr() == c.From && x.Dst == c.To {
			flows[x.Src] = x
		}
	})
	if err != nil || len(flows) == 0 {
		return nil, err
	}
	host := newHostLookup(d, now)
	m := host.matcher(ctx, All(now, f.Family))
	var all []Entry
	for _, x := range flows {
		all = append(all, Entry{x, m.stale(x)})
	}
	slices.SortFunc(all, func(a, b Entry) int { return a.Src.Compare(b.Src) })
	return all, host.err
}
