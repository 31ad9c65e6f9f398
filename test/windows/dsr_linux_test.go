// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"testing"

	"kubeproxy/test/hns"
)

// TestNoDirectReturn configures direct server return on an HNS without it: the proxy
// reports that, and Services work without.
func TestNoDirectReturn(t *testing.T) {
	n := newNode(t, hns.Options{Version: hns.Version{Major: 10, Minor: 1}})
	web := app{"web", 10, []string{"10.244.1.11", "10.244.2.11"}}
	n.save(t, web)
	n.start(t, "--enable-dsr")
	n.awaitProgrammed(t, web)
	n.await(t, "a word about it", func() bool {
		return has(n.process.Log(), "--enable-dsr", "HNS 10.1 has no direct server return", "want Windows Server 2019")
	})
	for _, lb := range n.hns.Objects(hns.LoadBalancer) {
		if lb.Flags() != 0 {
			t.Errorf("flags %d of %v, want none", lb.Flags(), lb.VIPs())
		}
	}
	n.stop(t)
}
