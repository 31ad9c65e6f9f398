// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"strings"
	"testing"

	"kubeproxy/test/hns"
	"kubeproxy/test/kit"
)

// TestRefusedCreates makes HNS refuse new load balancers while the endpoints of a Service
// change, on a version that cannot modify load balancers. The Service keeps all of its
// load balancers but one.
func TestRefusedCreates(t *testing.T) {
	n := newNode(t, hns.Options{Version: hns.Version{Major: 13, Minor: 3}})
	web, cart, _ := shop()
	n.save(t, web, cart)
	n.start(t)
	n.awaitProgrammed(t, web, cart)
	if err := n.hns.Inject(hns.Fault{Function: "HcnCreateLoadBalancer", Code: hns.InvalidParameter}); err != nil {
		t.Fatal(err)
	}
	less := web.on(web.pods[0])
	before := n.hns.Calls()
	n.save(t, less)
	kit.Until(t, "four refused load balancers", func() bool {
		if have := len(n.programmed()); have < 3 {
			t.Fatalf("%d of 4 load balancers left: %v", have, n.programmed())
		}
		return n.hns.Calls().Sub(before)["HcnCreateLoadBalancer"] >= 4
	})
	n.await(t, "the reason", func() bool {
		body := n.fetch(t, "/services")
		return strings.Contains(body, "what was there before is refused as well") || strings.Contains(body, "as before, and is tried again in a while")
	})
	n.hns.ClearFaults()
	n.awaitProgrammed(t, less, cart)
	n.stop(t)
}
