// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"kubeproxy/common/service"
)

// gradual is an HNS that lists object by object, as the real one does, and lets others
// call between two of them.
type gradual struct {
	*fake
	mu sync.Mutex
	// between is called before each object, without the lock.
	between func(object int)
	listed  int
	// strict fails a listing if a load balancer goes away meanwhile, as hcsshim does.
	strict bool
}

func (g *gradual) List(ctx context.Context, w ObjectKinds) (Listing, error) {
	g.mu.Lock()
	l, err := g.fake.List(ctx, Networks)
	endpoints, balancers := slices.Sorted(maps.Keys(g.endpoints)), slices.Sorted(maps.Keys(g.balancers))
	if w&LoadBalancers != 0 {
		g.listed++
	}
	g.mu.Unlock()
	if err != nil {
		return l, err
	}
	object := 0
	next := func() {
		if g.between != nil && w == All {
			g.between(object)
		}
		object++
	}
	for _, id := range endpoints {
		next()
		g.mu.Lock()
		if e, ok := g.endpoints[id]; ok && w&Endpoints != 0 {
			l.Endpoints = append(l.Endpoints, e)
		}
		g.mu.Unlock()
	}
	for _, id := range balancers {
		next()
		g.mu.Lock()
		lb, ok := g.balancers[id]
		if ok && w&LoadBalancers != 0 {
			l.LoadBalancers = append(l.LoadBalancers, lb)
		}
		g.mu.Unlock()
		if !ok && g.strict {
			return l, codeError("list load balancers", 0x490)
		}
	}
	next()
	return l, nil
}

func (g *gradual) CreateEndpoint(ctx context.Context, e Endpoint) (Endpoint, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.fake.CreateEndpoint(ctx, e)
}

func (g *gradual) DeleteEndpoint(ctx context.Context, id string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.fake.DeleteEndpoint(ctx, id)
}

func (g *gradual) CreateLoadBalancer(ctx context.Context, lb LoadBalancer) (string, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.fake.CreateLoadBalancer(ctx, lb)
}

func (g *gradual) UpdateLoadBalancer(ctx context.Context, lb LoadBalancer) (LoadBalancer, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.fake.UpdateLoadBalancer(ctx, lb)
}

func (g *gradual) DeleteLoadBalancer(ctx context.Context, lb LoadBalancer) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.fake.DeleteLoadBalancer(ctx, lb)
}

// apps are n Services, of which each has a ClusterIP and two endpoints elsewhere.
// Those in moved lead to another one.
func apps(generation uint64, n int, moved map[int]string) *service.Snapshot {
	var ports []*service.Port
	for i := range n {
		second := fmt.Sprintf("10.244.2.%d:80@b", 101+i%100)
		if to, ok := moved[i]; ok {
			second = to
		}
		if second == "" {
			continue
		}
		ports = append(ports, clusterIP(fmt.Sprintf("app-%03d", i), fmt.Sprintf("10.96.%d.%d", 1+i/200, 1+i%200), "10.244.2.1:80@b", second))
	}
	return snapshot(generation, ports...)
}

// listBench is a bench whose HNS lists beside rounds.
type listBench struct {
	*testNode
	*gradual
	passed atomic.Int64 // on the clock
}

func newLookBench(t *testing.T, v Version, pods ...string) *listBench {
	b := &listBench{testNode: newTestNode(t, v, bridgeN)}
	b.pods(pods...)
	b.gradual = &gradual{fake: b.hns}
	b.restartOn(b.gradual)
	begin := b.now
	b.backend.host.now = func() time.Time { return begin.Add(time.Duration(b.passed.Load())) }
	b.backend.host.patience = time.Millisecond
	return b
}

// apply does a round that must work, and returns what it did.
func (b *listBench) apply(want *service.Snapshot) string {
	b.t.Helper()
	b.passed.Add(int64(time.Second))
	p := b.plan(want)
	text := p.String()
	if p.Empty() {
		return text
	}
	if err := p.Apply(context.Background()); err != nil {
		b.t.Fatalf("Apply: %v\n%s", err, text)
	}
	if n := b.hns.warnings; len(n) > 0 {
		b.t.Fatalf("HNS warns: %v", n)
	}
	return text
}

// resync starts a listing that stops before each object, hands each stop to
// meanwhile, and returns what the round did that used the listing.
func (b *listBench) resync(meanwhile func(object int) *service.Snapshot) string {
	b.t.Helper()
	stops, goOn := make(chan int), make(chan struct{})
	b.between = func(object int) { stops <- object; <-goOn }
	want := b.backend.state.snapshot
	b.passed.Add(int64(time.Minute))
	b.apply(want)
	l := b.backend.host.pendingNow()
	for {
		select {
		case object := <-stops:
			if to := meanwhile(object); to != nil {
				want = to
				b.apply(want)
			}
			goOn <- struct{}{}
		case <-l.done:
			b.between = nil
			return b.apply(want)
		}
	}
}

// Changes are programmed while HNS is listed, whatever the listing has seen by then,
// and what it says of them does not count.
func TestChangesPassAListing(t *testing.T) {
	for _, v := range []Version{v13, v15} {
		const n = 6
		// Objects are endpoints, and load balancers after them.
		for _, at := range []int{0, 3, 8, 11, 13} {
			t.Run(fmt.Sprintf("HNS %s, at object %d", v, at), func(t *testing.T) {
				b := newLookBench(t, v)
				b.apply(apps(1, n, nil))
				changed, object := apps(2, n+1, map[int]string{0: "10.244.2.50:80@b", 1: "", 2: "10.244.2.51:80@b", 5: "10.244.2.52:80@b"}), ""
				late := b.resync(func(i int) *service.Snapshot {
					if i != at {
						return nil
					}
					object = "reached"
					return changed
				})
				if object == "" || late != "" || b.listed != 2 {
					t.Errorf("changed at an object: %q; %d listings, want 2; after it, still to do:\n%s", object, b.listed, late)
				}
				if b.backend.state == nil || b.backend.listingAge() > 3*time.Second {
					t.Error("the listing was not used")
				}
				b.backend.host.patience = 0
				b.passed.Add(int64(time.Minute))
				if p := b.plan(changed); !p.Empty() || len(p.Drift()) > 0 {
					t.Errorf("a full look finds\n%s%v", p, p.Drift())
				}
			})
		}
	}
}

// What others did before the listing shows in it, beside changes.
func TestDriftIsFoundBesideChanges(t *testing.T) {
	b := newLookBench(t, v15)
	b.apply(apps(1, 6, nil))
	for id, lb := range b.hns.balancers {
		if lb.Key.VIP == addr("10.96.1.4") {
			delete(b.hns.balancers, id)
		}
	}
	repair := b.resync(func(i int) *service.Snapshot {
		if i != 2 {
			return nil
		}
		return apps(2, 6, map[int]string{0: "10.244.2.50:80@b"})
	})
	if len(b.hns.balancers) != 6 || repair == "" {
		t.Errorf("%d load balancers, want 6; the round after the listing did\n%s", len(b.hns.balancers), repair)
	}
}

// A pod of this node that came while HNS was listed, after its endpoints were, stays
// in its Service.
func TestNewPodPassesAListing(t *testing.T) {
	b := newLookBench(t, v13, "10.244.1.11")
	b.apply(snapshot(1, clusterIP("web", "10.96.0.10", "10.244.1.11:80")))
	want := snapshot(2, clusterIP("web", "10.96.0.10", "10.244.1.11:80", "10.244.1.12:80"))
	late := b.resync(func(i int) *service.Snapshot {
		if i != 1 {
			return nil
		}
		b.pods("10.244.1.12")
		return want
	})
	if late != "" {
		t.Errorf("the listing had it taken out again:\n%s", late)
	}
}

// A listing that fails because a change deleted what it was about to read is begun
// again, and changes do not wait for it, but for one after several such.
func TestChangesSpoilListings(t *testing.T) {
	b := newLookBench(t, v13)
	b.strict = true
	b.apply(apps(1, 6, nil))
	moved := 50
	spoil := func(i int) *service.Snapshot {
		if i != 8 {
			return nil
		}
		moved++
		return apps(uint64(moved), 6, map[int]string{5: fmt.Sprintf("10.244.2.%d:80@b", moved)})
	}
	for n := range maxInvalidated {
		b.resync(spoil)
		if b.listed != 2+n || b.backend.listingAge() < time.Minute {
			t.Fatalf("spoilt %d times: listed %d times, the last one used is %s old", n+1, b.listed, b.backend.listingAge())
		}
	}
	b.resync(spoil)
	if b.backend.listingAge() > 2*time.Second {
		t.Errorf("after %d spoilt listings the last one used is %s old, want one that changes wait for", maxInvalidated, b.backend.listingAge())
	}
	b.resync(func(int) *service.Snapshot { return nil })
	if b.backend.listingAge() > 2*time.Second {
		t.Errorf("the last listing used is %s old, want that of now", b.backend.listingAge())
	}
}

// Nobody's change waits for a resync, and the resync is done all the same.
func TestChangesDoNotWaitForResyncs(t *testing.T) {
	const n, each, longest = 300, 5 * time.Millisecond, time.Second
	b := newLookBench(t, v15)
	b.apply(apps(1, n, nil))
	b.backend.host.patience = listPatience
	b.between = func(int) { time.Sleep(each) }
	ended := make(chan struct{}, 1)
	b.backend.host.onListed(service.IPv4, func() { ended <- struct{}{} })
	b.passed.Add(int64(time.Minute))
	want := b.backend.state.snapshot
	b.apply(want) // begins to list
	for i := range 20 {
		want = apps(uint64(2+i), n, map[int]string{i: fmt.Sprintf("10.244.2.%d:80@b", 201+i)})
		begin := time.Now()
		b.apply(want)
		if took := time.Since(begin); took > longest {
			t.Errorf("change %d took %s, want at most %s", i, took, longest)
		}
		time.Sleep(20 * time.Millisecond)
	}
	if len(ended) > 0 {
		t.Fatal("the listing ended before the changes did")
	}
	<-ended
	if late := b.apply(want); late != "" || b.backend.listingAge() > 2*time.Second {
		t.Errorf("the listing is %s old; it had this done:\n%s", b.backend.listingAge(), late)
	}
}
