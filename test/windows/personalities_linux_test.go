// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"testing"

	"kubeproxy/test/hns"
)

// TestPersonalities runs the program on the personalities of HNS that differ most: a start, a pod that is made again, and a
// new process, which writes nothing. Each change takes effect, and then resyncs write nothing. Objects that were made again
// in vain are reported. All personalities live longer in platform/windows/hns.
func TestPersonalities(t *testing.T) {
	for _, tt := range []struct{ name, reported string }{
		{"drops flags", ""},
		{"leaves out source VIPs later", "with SourceVIP none, not 10.244.1.254"},
		{"other order and notation", ""},
		{"MACs of its own later", "with MacAddress 00-15-5D-99-00-01, not 02-11-0a-f4-02-0"},
		{"load balancers go with endpoints", ""},
		{"fails twice in a row, 15.5", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, err := hns.FindPersonality(tt.name)
			if err != nil {
				t.Fatal(err)
			}
			n := newNode(t, hns.Options{Personality: p})
			web, cart, dns := shop()
			n.save(t, web, cart, dns)
			n.start(t)
			n.awaitProgrammed(t, web, cart, dns)
			n.awaitIdle(t)
			const again = "made again 2 times"
			n.await(t, tt.reported, func() bool {
				page := n.fetch(t, "/services")
				return has(page, tt.reported) && has(page, again) == (tt.reported != "")
			})
			n.remakePod(t, dns.pods[0])
			n.awaitProgrammed(t, web, cart, dns)
			n.awaitIdle(t)
			n.stop(t)
			before := n.hns.Calls()
			n.start(t)
			n.awaitIdle(t)
			if calls := n.hns.Calls().Sub(before); calls.Writes("") != 0 {
				t.Errorf("a new process: %s, want no call that changes something", calls)
			}
			n.awaitProgrammed(t, web, cart, dns)
			n.stop(t)
		})
	}
}
