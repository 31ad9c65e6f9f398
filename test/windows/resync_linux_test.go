// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"slices"
	"strings"
	"testing"
	"time"

	"kubeproxy/test/hns"
	"kubeproxy/test/kit"
)

// TestChangesPassResyncs has an HNS that takes 5 ms for each call, 150 load balancers,
// and changes while all of them are listed: none waits for the listing.
func TestChangesPassResyncs(t *testing.T) {
	for _, v := range []hns.Version{{Major: 13, Minor: 3}, {Major: 15, Minor: 5}} {
		t.Run("HNS "+v.String(), func(t *testing.T) { changesPassResyncs(t, v) })
	}
}

func changesPassResyncs(t *testing.T, v hns.Version) {
	const services, each, changes, longest = 150, 5 * time.Millisecond, 20, 200 * time.Millisecond
	n := newNode(t, hns.Options{Version: v})
	network := bridge("cbr0", "L2Bridge")
	n.install(t, networkCase{networks: []hns.NetworkConfig{network}})
	all, _ := manyApps(services)
	for i := range all {
		all[i].pods = []string{remoteIP(i % 20), remoteIP(20 + i%20)}
	}
	n.write(t, "all.yaml", manyAppsManifest(t, all[1:]))
	n.write(t, "first.yaml", manyAppsManifest(t, all[:1]))
	n.start(t, "--iptables-sync-period=25s")
	n.awaitLoadBalancers(t, services)
	n.hns.Delay("Hcn*", each)
	alone := n.hurry(t, all[0], changes/4)
	// Calls take turns, so those of a change take twice as long beside a listing.
	most := 2*slices.Max(alone) + longest
	for try := range 3 { // on a machine that has much else to do
		lists := n.hns.Calls().Lists(hns.Endpoint)
		kit.Until(t, "another listing", func() bool { return n.hns.Calls().Lists(hns.Endpoint) > lists })
		whileListed := n.hurry(t, all[0], changes)
		t.Logf("try %d: a change takes %v, and while HNS is listed %v", try, alone, whileListed)
		if slices.Max(whileListed) <= most {
			return
		}
	}
	t.Errorf("a change took longer than %s while HNS was listed, each time", most)
}

// hurry has a lead to other pods, so many times, and returns how long each took.
func (n *node) hurry(t *testing.T, a app, times int) (took []time.Duration) {
	t.Helper()
	for i := range times {
		pods := a.pods[i%2 : i%2+1]
		begin := time.Now()
		n.write(t, "first.yaml", manyAppsManifest(t, []app{a.on(pods...)}))
		for !strings.HasSuffix(n.programmed()["6 10.96.0.1:80"], " on "+pods[0]) {
			if time.Since(begin) > kit.Limit {
				t.Fatalf("change %d is not programmed: %v", i, n.programmed()["6 10.96.0.1:80"])
			}
			time.Sleep(5 * time.Millisecond)
		}
		took = append(took, time.Since(begin).Round(time.Millisecond))
	}
	return took
}
