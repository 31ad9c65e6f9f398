// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"testing"
	"time"

	"kubeproxy/common/service"
)

// The kernel takes a list with branches, and holds what was planned while an endpoint
// comes and goes.
func TestKernelHoldsLists(t *testing.T) {
	eachKernel(t, func(t *testing.T, b *Backend) {
		if b.family == service.IPv6 {
			return // the same rules with other addresses
		}
		for i, n := range []int{300, 299, 300, 60, 300} {
			p := widePort(1, n)
			if i%2 == 1 {
				p.Affinity = time.Hour
			}
			want := wide(uint64(i+1), p)
			apply(t, b, want)
			b.Forget()
			if p := apply(t, b, want); !p.Empty() {
				t.Errorf("%d endpoints: read back, this is to do:\n%s", n, p.Changes())
			}
		}
	})
}
