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

// interceptor wraps HNS. It calls intercept for each writing call. intercept decides
// whether HNS receives the call.
type interceptor struct {
	*fake
	intercept func(op string, do func()) (done bool)
}

func (i *interceptor) CreateEndpoint(ctx context.Context, e Endpoint) (created Endpoint, err error) {
	if !i.intercept("create endpoint", func() { created, err = i.fake.CreateEndpoint(ctx, e) }) {
		created = e
		created.ID = i.id("never")
	}
	return created, err
}

func (i *interceptor) DeleteEndpoint(ctx context.Context, id string) (err error) {
	i.intercept("delete endpoint", func() { err = i.fake.DeleteEndpoint(ctx, id) })
	return err
}

func (i *interceptor) CreateLoadBalancer(ctx context.Context, lb LoadBalancer) (made LoadBalancer, err error) {
	if !i.intercept("create load balancer", func() { made, err = i.fake.CreateLoadBalancer(ctx, lb) }) {
		made = lb
		made.ID = i.id("never")
	}
	return made, err
}

func (i *interceptor) UpdateLoadBalancer(ctx context.Context, lb LoadBalancer) (now LoadBalancer, err error) {
	if !i.intercept("update load balancer", func() { now, err = i.fake.UpdateLoadBalancer(ctx, lb) }) {
		now = lb
	}
	return now, err
}

func (i *interceptor) DeleteLoadBalancer(ctx context.Context, lb LoadBalancer) (err error) {
	i.intercept("delete load balancer", func() { err = i.fake.DeleteLoadBalancer(ctx, lb) })
	return err
}

// pass knows what HNS holds, for texts.
func (fa *fake) pass(f service.Family) *pass {
	l := Listing{}
	for _, e := range fa.endpoints {
		l.Endpoints = append(l.Endpoints, e)
	}
	return &pass{model: newModel(l, ""), family: f}
}

// balancerText describes a load balancer as a plan does.
func (fa *fake) balancerText(start string, lb *LoadBalancer) string {
	return fmt.Sprintf("%s%s %s %s", start, lb.Key, lb.describe(), fa.pass(lb.Family).formatEndpoints(lb.Endpoints))
}

// balancerTexts returns HNS's load balancers with the addresses of their endpoints.
func (tn *testNode) balancerTexts() []string {
	l := Listing{}
	for _, e := range tn.hns.endpoints {
		l.Endpoints = append(l.Endpoints, e)
	}
	p := pass{model: newModel(l, "")}
	all := []string{}
	for _, lb := range tn.hns.balancers {
		all = append(all, lb.Key.String()+" "+p.formatEndpoints(lb.Endpoints))
	}
	slices.Sort(all)
	return all
}

// HNS reports success for a call without effect. The next resync finds that, also in
// another process. A load balancer that should be deleted is still known as ours,
// although it uses only local pods.
func TestFalseSuccess(t *testing.T) {
	for _, v := range []Version{v13, v15} {
		for _, op := range []string{"create endpoint", "delete endpoint", "create load balancer", "update load balancer", "delete load balancer"} {
			for _, restart := range []bool{false, true} {
				t.Run(fmt.Sprintf("HNS %s, %s, restart %t", v, op, restart), func(t *testing.T) { runFalseSuccess(t, v, op, restart) })
			}
		}
	}
}

func runFalseSuccess(t *testing.T, v Version, op string, restart bool) {
	b := newTestNode(t, v, bridgeN)
	d := &interceptor{b.hns, func(_ string, do func()) bool { do(); return true }}
	passThrough := d.intercept
	b.restartOn(d)
	b.pods("10.244.1.11", "10.244.1.12")
	b.converge(snapshot(1, clusterIP("web", "10.96.0.10", "10.244.1.11:80", "10.244.1.12:80", "10.244.2.11:80@b"), clusterIP("api", "10.96.0.11", "10.244.1.11:80")))
	d.intercept = func(x string, do func()) bool {
		if x != op {
			do()
		}
		return x != op
	}
	want := snapshot(2, clusterIP("web", "10.96.0.10", "10.244.1.11:80", "10.244.2.12:80@b"), clusterIP("new", "10.96.0.12", "10.244.1.12:80"))
	_, _ = b.round(want) // the result does not matter
	d.intercept = passThrough
	if restart {
		b.restartOn(d)
	}
	b.now = b.now.Add(time.Minute)
	if _, err := b.round(want); err != nil {
		t.Fatalf("the next resync: %v", err)
	}
	if diff := cmp.Diff([]string{"tcp 10.96.0.10:80 [10.244.1.11 10.244.2.12]", "tcp 10.96.0.12:80 [10.244.1.12]"}, b.balancerTexts()); diff != "" {
		t.Errorf("load balancers (-want +got):\n%s", diff)
	}
	if n := len(b.hns.endpoints); n != 3 {
		t.Errorf("%d endpoints, want two pods and one elsewhere: %v", n, b.hns.endpoints)
	}
}

// The process dies before or after each of its calls. The Services may differ when the
// next process starts. It recognises all our objects and needs one sync.
func TestCrashAtEachCall(t *testing.T) {
	first := snapshot(1, clusterIP("web", "10.96.0.10", "10.244.1.11:80", "10.244.2.11:80@b"), clusterIP("api", "10.96.0.11", "10.244.1.11:80"))
	second := snapshot(2, clusterIP("web", "10.96.0.10", "10.244.1.12:80"), clusterIP("new", "10.96.0.12", "10.244.1.12:80"), clusterIP("out", "10.96.0.13", "10.244.2.12:80@b"))
	for name, then := range map[string]*service.Snapshot{"nothing": snapshot(3), "what was": first, "what was to be": second} {
		for _, v := range []Version{v13, v15} {
			t.Run(fmt.Sprintf("%s, HNS %s", name, v), func(t *testing.T) {
				for call := 1; crashAt(t, newTestNode(t, v, bridgeN), call, []*service.Snapshot{first, second, then}); call++ {
				}
				for call := 1; crashAt(t, newTestNode(t, v, overlayN), call, []*service.Snapshot{first, second, then}); call++ {
				}
			})
		}
	}
}

// crashAt returns whether there was such a call. Calls with odd numbers have no effect.
func crashAt(t *testing.T, b *testNode, call int, snapshots []*service.Snapshot) (crashed bool) {
	b.pods("10.244.1.11", "10.244.1.12")
	b.converge(snapshots[0])
	at := 0
	b.restartOn(&interceptor{b.hns, func(_ string, do func()) bool {
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
		defer func() { crashed = recover() != nil }()
		_, _ = b.round(snapshots[1])
	}()
	b.restart()
	b.converge(snapshots[2])
	if left := len(b.hns.endpoints); snapshots[2].Len(service.IPv4) == 0 && (len(b.hns.balancers) > 0 || left > 3) { // the pods and a source VIP
		t.Errorf("call %d: left are %v, %v", call, b.balancerTexts(), b.hns.endpoints)
	}
	return crashed
}
