// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"context"
	"net/netip"
	"testing"

	"kubeproxy/common/service"
)

// Both families list at about the same time. One listing serves both, until one of them
// changes something.
func TestSharedListing(t *testing.T) {
	lists := 0
	k := newFake(Version{15, 5})
	k.balancers["1"] = LoadBalancer{ID: "1"}
	h := NewHost(&countingDriver{k, &lists}, &memoryStore{}, "node", nil)
	list := func(f service.Family, want int) {
		t.Helper()
		if _, err := h.list(t.Context(), f); err != nil || lists != want {
			t.Fatalf("%s: listed %d times, want %d, %v", f, lists, want, err)
		}
	}
	list(service.IPv6, 1)
	list(service.IPv4, 1)
	list(service.IPv6, 2)
	h.recordBalancer(&LoadBalancer{ID: "1"}, "shop/web")
	list(service.IPv4, 3) // the listing of IPv6 does not contain it
	list(service.IPv6, 3)
	list(service.IPv6, 4)
	h.release("1")
	list(service.IPv4, 5)
	h.markWritten()
	list(service.IPv6, 6) // a listing shows changes in place
	h.recordEndpoint(&Endpoint{ID: "2", Addrs: []netip.Addr{nodeA}})
	list(service.IPv4, 7)
	h.release("2")
	list(service.IPv6, 8)
	if h.owns("1") || h.owns("2") {
		t.Error("what was deleted is ours")
	}
}

type countingDriver struct {
	*fake
	lists *int
}

func (c *countingDriver) List(ctx context.Context, what ObjectKinds) (Listing, error) {
	*c.lists++
	return c.fake.List(ctx, what)
}
