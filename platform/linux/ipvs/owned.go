// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"context"
	"maps"
	"time"
)

// Somebody may change a virtual server of ours so that it does not look like
// one, and somebody else's may be there first where a Service needs one. Only
// what was seen to be ours, or was made, is ever taken for ours again.

// completeOwned adds to s what is ours and missing there, and says how long that took.
// The kernel tells virtual servers in parts, and counts those of both families to
// know how far it has come, so what one family removes meanwhile has some of the
// other's left out.
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

// updateOwned notes which virtual servers in s are ours. What was ours and looks
// otherwise still is.
func (b *Backend) updateOwned(s *state) {
	if b.owned == nil {
		b.owned = map[key]bool{}
	}
	maps.DeleteFunc(b.owned, func(k key, _ bool) bool { return s.servers[k] == nil })
	b.recordOwned(s)
}

// recordOwned notes which virtual servers in s are ours, and forgets none.
func (b *Backend) recordOwned(s *state) {
	for k, l := range s.servers {
		if _, known := b.owned[k]; !known && l.owned() {
			b.owned[k] = false
		}
	}
}

// recordOp notes that o was done.
func (b *Backend) recordOp(o op) {
	switch o.verb {
	case addServer, setServer:
		b.owned[o.key] = true
	case delServer:
		delete(b.owned, o.key)
	}
}
