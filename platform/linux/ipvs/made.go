// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import "maps"

// Somebody may change a virtual server of ours so that it does not look like
// one, and somebody else's may be there first where a Service needs one. Only
// what was seen to be ours, or was made, is ever taken for ours again.

// note notes which virtual servers in s are ours. What was ours and looks
// otherwise still is.
func (b *Backend) note(s *state) {
	if b.made == nil {
		b.made = map[key]bool{}
	}
	maps.DeleteFunc(b.made, func(k key, _ bool) bool { return s.servers[k] == nil })
	for k, l := range s.servers {
		if l.ours() {
			b.made[k] = b.made[k]
		}
	}
}

// noteDone notes that o was done.
func (b *Backend) noteDone(o op) {
	switch o.verb {
	case addServer, setServer:
		b.made[o.key] = true
	case delServer:
		delete(b.made, o.key)
	}
}
