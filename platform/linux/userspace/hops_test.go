// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package userspace

import "testing"

// TestHops checks how many relays a packet can pass, for each initial hop limit.
func TestHops(t *testing.T) {
	for _, tt := range []struct{ in, passes int }{
		{0, 7}, {64, 7}, {128, 7}, {255, 7}, // defaults of systems
		{40, 4},         // a distant client
		{12, 1},         // enough for the cluster
		{11, 0}, {1, 0}, // too little
	} {
		passes := 0
		for hops, ok := nextHops(tt.in); ok; hops, ok = nextHops(hops) {
			passes++
		}
		if passes != tt.passes {
			t.Errorf("a hop limit of %d is good for %d passes, want %d", tt.in, passes, tt.passes)
		}
	}
}
