// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"context"
	"maps"
	"time"
)

// Another process may change a virtual server of ours so that its flags no longer
// identify it. A foreign one may already exist where a Service needs one. Only a server
// that we made, or that was seen with our flags, counts as ours later.

// completeOwned adds our virtual servers that are missing in s, and returns how long
// that took. The kernel sends a dump in several parts and continues at an index that
// counts the servers of both families (kernel: net/netfilter/ipvs/ip_vs_ctl.c,
// ip_vs_genl_dump_services). So if one family deletes servers meanwhile, the dump skips
// some of the other family.
func (b *Backend) completeOwned(ctx context.Context, s *state) (time.Duration, error) {
	start := time.Now()
	for k := range b.owned {
		if s.servers[k] != nil {
			continue
		}
		l, err := b.driver.Server(ctx, k)
		if err != nil {
			return 0, err
		}
		if l != nil {
			s.servers[k] = l
		}
	}
	return time.Since(start), nil
}

// updateOwned records which virtual servers in s are ours. A server that was ours stays
// ours, even if it was changed.
func (b *Backend) updateOwned(s *state) {
	if b.owned == nil {
		b.owned = map[key]bool{}
	}
	maps.DeleteFunc(b.owned, func(k key, _ bool) bool { return s.servers[k] == nil })
	b.recordOwned(s)
}

// recordOwned records which virtual servers in s are ours, and removes none.
func (b *Backend) recordOwned(s *state) {
	for k, l := range s.servers {
		if _, known := b.owned[k]; !known && l.owned() {
			b.owned[k] = false
		}
	}
}

// recordOp records that o succeeded.
func (b *Backend) recordOp(o op) {
	switch o.verb {
	case addServer, setServer:
		b.owned[o.key] = true
	case delServer:
		delete(b.owned, o.key)
	}
}
