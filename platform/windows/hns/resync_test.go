// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"context"
	"testing"
	"time"
)

// slowLister calls takes before each listing.
type slowLister struct {
	*fake
	takes func()
}

func (s *slowLister) List(ctx context.Context, w ObjectKinds) (Listing, error) {
	s.takes()
	return s.fake.List(ctx, w)
}

// Slow listings leave time for other work, and changes need not wait for them.
func TestSlowListingsAreRare(t *testing.T) {
	b := newTestNode(t, v13, bridgeN)
	b.pods("10.244.1.11")
	b.restartOn(&slowLister{b.hns, func() { b.now = b.now.Add(time.Minute) }})
	want := snapshot(1, clusterIP("web", "10.96.0.10", "10.244.1.11:80"))
	listed := 0
	round := func(rounds int) {
		for range rounds {
			if _, err := b.round(want); err != nil {
				t.Fatal(err)
			}
			listed += b.hns.calls["list load balancers"]
			b.now = b.now.Add(29 * time.Second) // each sync adds one
		}
	}
	round(1)
	listed = 0
	round(9)
	want = snapshot(2, clusterIP("web", "10.96.0.10", "10.244.1.11:80"), clusterIP("cart", "10.96.0.11", "10.244.1.11:80"))
	round(9)
	if listed != 0 || len(b.hns.balancers) != 2 {
		t.Errorf("listed %d times in 9 minutes, want not yet; %d load balancers, want 2", listed, len(b.hns.balancers))
	}
	round(4)
	if listed != 1 {
		t.Errorf("listed %d times in 11 minutes, want once", listed)
	}
	b.backend.SetResync(3 * time.Minute)
	listed = 0
	round(9)
	if listed != 9 {
		t.Errorf("listed %d times in 9 resyncs of which a listing takes a third, want in each", listed)
	}
}

// The sync period of a reloaded configuration applies.
func TestSetResync(t *testing.T) {
	b := newTestNode(t, v13, bridgeN)
	b.pods("10.244.1.11")
	b.converge(snapshot(1, clusterIP("web", "10.96.0.10", "10.244.1.11:80")))
	b.backend.SetResync(5 * time.Second)
	b.now = b.now.Add(10 * time.Second)
	clear(b.hns.calls)
	b.plan(snapshot(2))
	if n := b.hns.calls["list load balancers"]; n != 1 {
		t.Errorf("a change after two sync periods: listed %d times, want once", n)
	}
}
