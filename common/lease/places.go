// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"slices"
	"sync"
)

// maxUnproven bounds the connections that have not sent a proof and a request yet.
const maxUnproven = 128

// places are the connections that have not sent a proof and a request yet. The zero value
// is ready.
type places struct {
	mu  sync.Mutex
	all []*Conn // the oldest first
}

// enter gives c a place. If none is free, the process that has the most loses its oldest
// one: whoever connects gets in, and a proxy needs its place for some milliseconds only.
func (p *places) enter(c *Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.all) >= maxUnproven {
		count := map[int]int{}
		most := 0 // a PID; all of other PID namespaces count as one process
		for _, x := range p.all {
			if count[x.Peer.PID]++; count[x.Peer.PID] > count[most] {
				most = x.Peer.PID
			}
		}
		i := slices.IndexFunc(p.all, func(x *Conn) bool { return x.Peer.PID == most })
		_ = p.all[i].Close()
		p.all = slices.Delete(p.all, i, i+1)
	}
	p.all = append(p.all, c)
}

// leave frees the place of c, if it still has one.
func (p *places) leave(c *Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all = slices.DeleteFunc(p.all, func(x *Conn) bool { return x == c })
}
