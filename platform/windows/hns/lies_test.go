// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"kubeproxy/common/service"
)

// between stands between the backend and HNS. Each writing call is told to it,
// and what it returns decides whether HNS hears of it.
type between struct {
	*fake
	pass func(op string, do func()) (done bool)
}

func (x *between) CreateEndpoint(ctx context.Context, e Endpoint) (made Endpoint, err error) {
	if !x.pass("create endpoint", func() { made, err = x.fake.CreateEndpoint(ctx, e) }) {
		made = e
		made.ID = x.id("never")
	}
	return made, err
}

func (x *between) DeleteEndpoint(ctx context.Context, id string) (err error) {
	x.pass("delete endpoint", func() { err = x.fake.DeleteEndpoint(ctx, id) })
	return err
}

func (x *between) CreateLoadBalancer(ctx context.Context, lb LoadBalancer) (id string, err error) {
	if !x.pass("create load balancer", func() { id, err = x.fake.CreateLoadBalancer(ctx, lb) }) {
		id = x.id("never")
	}
	return id, err
}

func (x *between) UpdateLoadBalancer(ctx context.Context, lb LoadBalancer) (now LoadBalancer, err error) {
	if !x.pass("update load balancer", func() { now, err = x.fake.UpdateLoadBalancer(ctx, lb) }) {
		now = lb
	}
	return now, err
}

func (x *between) DeleteLoadBalancer(ctx context.Context, lb LoadBalancer) (err error) {
	x.pass("delete load balancer", func() { err = x.fake.DeleteLoadBalancer(ctx, lb) })
	return err
}

// holds returns HNS's load balancers with the addresses of their endpoints.
func (b *bench) holds() []string {
	l := Listing{}
	for _, e := range b.hns.endpoints {
		l.Endpoints = append(l.Endpoints, e)
	}
	p := pass{model: newModel(l, "")}
	all := []string{}
	for _, lb := range b.hns.balancers {
		all = append(all, lb.Key.String()+" "+p.names(lb.Endpoints))
	}
	slices.Sort(all)
	return all
}

// What HNS says that it did and did not do is found out by the next resync, also
// by another process: a load balancer that should be gone is still known for ours,
// though nothing but pods of the node is behind it.
func TestLies(t *testing.T) {
	for _, v := range []Version{v13, v15} {
		for _, op := range []string{"create endpoint", "delete endpoint", "create load balancer", "update load balancer", "delete load balancer"} {
			for _, restart := range []bool{false, true} {
				t.Run(fmt.Sprintf("HNS %s, %s, restart %t", v, op, restart), func(t *testing.T) { lies(t, v, op, restart) })
			}
		}
	}
}

func lies(t *testing.T, v Version, op string, restart bool) {
	b := newBench(t, v, bridgeN)
	liar := &between{b.hns, func(_ string, do func()) bool { do(); return true }}
	honest := liar.pass
	b.restartOn(liar)
	b.pods("10.244.1.11", "10.244.1.12")
	b.converge(snapshot(1, clusterIP("web", "10.96.0.10", "10.244.1.11:80", "10.244.1.12:80", "10.244.2.11:80@b"), clusterIP("api", "10.96.0.11", "10.244.1.11:80")))
	liar.pass = func(x string, do func()) bool {
		if x != op {
			do()
		}
		return x != op
	}
	want := snapshot(2, clusterIP("web", "10.96.0.10", "10.244.1.11:80", "10.244.2.12:80@b"), clusterIP("new", "10.96.0.12", "10.244.1.12:80"))
	_, _ = b.round(want) // HNS says what it likes
	liar.pass = honest
	if restart {
		b.restartOn(liar)
	}
	b.now = b.now.Add(time.Minute)
	if _, err := b.round(want); err != nil {
		t.Fatalf("the next resync: %v", err)
	}
	if diff := cmp.Diff([]string{"tcp 10.96.0.10:80 [10.244.1.11 10.244.2.12]", "tcp 10.96.0.12:80 [10.244.1.12]"}, b.holds()); diff != "" {
		t.Errorf("load balancers (-want +got):\n%s", diff)
	}
	if n := len(b.hns.endpoints); n != 3 {
		t.Errorf("%d endpoints, want two pods and one elsewhere: %v", n, b.hns.endpoints)
	}
}

// The process dies before or after each of its calls, and by the time another one
// starts the Services may be others. It finds all that is its own, and needs one
// round.
func TestDiesAtEachCall(t *testing.T) {
	first := snapshot(1, clusterIP("web", "10.96.0.10", "10.244.1.11:80", "10.244.2.11:80@b"), clusterIP("api", "10.96.0.11", "10.244.1.11:80"))
	second := snapshot(2, clusterIP("web", "10.96.0.10", "10.244.1.12:80"), clusterIP("new", "10.96.0.12", "10.244.1.12:80"), clusterIP("out", "10.96.0.13", "10.244.2.12:80@b"))
	for name, then := range map[string]*service.Snapshot{"nothing": snapshot(3), "what was": first, "what was to be": second} {
		for _, v := range []Version{v13, v15} {
			t.Run(fmt.Sprintf("%s, HNS %s", name, v), func(t *testing.T) {
				for call := 1; diesAt(t, newBench(t, v, bridgeN), call, []*service.Snapshot{first, second, then}); call++ {
				}
				for call := 1; diesAt(t, newBench(t, v, overlayN), call, []*service.Snapshot{first, second, then}); call++ {
				}
			})
		}
	}
}

// diesAt reports that there was such a call. Odd ones are not carried out.
func diesAt(t *testing.T, b *bench, call int, snapshots []*service.Snapshot) (died bool) {
	b.pods("10.244.1.11", "10.244.1.12")
	b.converge(snapshots[0])
	at := 0
	b.restartOn(&between{b.hns, func(_ string, do func()) bool {
		if at++; at == call {
			panic(errCrash)
		}
		do()
		if at++; at == call {
			panic(errCrash)
		}
		return true
	}})
	func() {
		defer func() { died = recover() != nil }()
		_, _ = b.round(snapshots[1])
	}()
	b.restart()
	b.converge(snapshots[2])
	if left := len(b.hns.endpoints); snapshots[2].Len(service.IPv4) == 0 && (len(b.hns.balancers) > 0 || left > 3) { // pods and a source VIP
		t.Errorf("call %d: left are %v, %v", call, b.holds(), b.hns.endpoints)
	}
	return died
}
