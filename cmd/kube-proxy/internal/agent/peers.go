// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"net/netip"
	"sync"

	"golang.org/x/sync/errgroup"

	"kubeproxy/common/peers"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/direct"
)

// wantedPeers are looked for from the first one that is wanted on.
type wantedPeers struct {
	*peers.Set
	start func()
}

// Want implements mode.Peers.
func (w *wantedPeers) Want(names []string) {
	w.Set.Want(names)
	if len(names) > 0 {
		w.start()
	}
}

// nodeFinder is a source that can read Nodes.
type nodeFinder interface {
	Nodes(ctx context.Context, names []string, found func(name string, all []netip.Addr)) error
}

// newPeers returns the nodes at the other end of the tunnel for direct return. Rounds follow
// their changes.
func (p *proxy) newPeers(ctx context.Context, group *errgroup.Group, loops []*reconcile.Loop) *wantedPeers {
	set := peers.New(peers.Options{
		Node: p.node, Key: direct.Key, Port: direct.Probe,
		Find: func(ctx context.Context, names []string, found func(string, []netip.Addr)) error {
			if from, can := p.source.(nodeFinder); can {
				return from.Nodes(ctx, names, found)
			}
			return errors.ErrUnsupported
		},
		Open: func(own netip.Addr) (peers.Conn, error) {
			if p.lease != nil && p.lease.State().Standby {
				return nil, errors.New("another proxy programs the node")
			}
			for _, b := range p.selected.Backends {
				if b.Tunnel != nil && b.Family == service.FamilyOf(own) {
					return b.Tunnel(own)
				}
			}
			return nil, errors.New("this node has no rules of the family")
		},
		Changed: func() {
			for _, l := range loops {
				l.Kick()
			}
		},
	})
	return &wantedPeers{set, sync.OnceFunc(func() {
		group.Go(func() error {
			set.Run(ctx)
			return nil
		})
	})}
}
