// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package track

import (
	"fmt"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"

	"kubeproxy/common/service"
)

// listedSlice has endpoints 1 to 5: ready, not ready, terminating, ready on this node,
// and terminating on this node.
func listedSlice() *discoveryv1.EndpointSlice {
	s := plainSlice(1, 5)
	yes, no, here, there := true, false, "a", "b"
	for i, c := range []discoveryv1.EndpointConditions{
		{Ready: &yes}, {Ready: &no, Serving: &no}, {Ready: &no, Serving: &yes, Terminating: &yes}, {Ready: &yes}, {Ready: &no, Serving: &yes, Terminating: &yes},
	} {
		s.Endpoints[i].Conditions, s.Endpoints[i].NodeName = c, &there
		if i > 2 {
			s.Endpoints[i].NodeName = &here
		}
	}
	return s
}

// With Options.Listed the snapshot contains addresses of other nodes that get no traffic,
// and nothing else changes. Without it, the snapshot lacks them.
func TestListed(t *testing.T) {
	for _, wanted := range []bool{true, false} {
		t.Run(fmt.Sprint(wanted), func(t *testing.T) {
			tracker := New(Options{NodeName: "a", Listed: wanted})
			tracker.SetService(plainService(1))
			tracker.SetSlice(listedSlice())
			tracker.Synced()
			port := func() *service.Port {
				for p := range tracker.Latest().Ports(service.IPv4) {
					return p
				}
				t.Fatal("no port")
				return nil
			}
			first := port()
			addr := func(i int) string { return listedSlice().Endpoints[i].Addresses[0] }
			want := "[]"
			if wanted {
				want = fmt.Sprintf("[%s %s]", addr(1), addr(2))
			}
			if got := fmt.Sprint(first.Listed); got != want || len(first.Cluster) != 2 {
				t.Errorf("listed %s beside %v, want %s", got, first.Cluster, want)
			}
			gone := listedSlice()
			gone.Endpoints = append(gone.Endpoints[:2:2], gone.Endpoints[3:]...)
			tracker.SetSlice(gone)
			if now := port(); (now == first) == wanted {
				t.Errorf("a terminating endpoint is listed no more: the port is another one: %t", now != first)
			}
			label := gone.DeepCopy()
			label.Labels["x"] = "y"
			before := port()
			tracker.SetSlice(label)
			if port() != before {
				t.Error("nothing changed, and the port is another one")
			}
		})
	}
}
