// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A hanging HNS is reported and does not prevent a stop. Objects of unfinished calls
// count as ours, and no further call is made.
func TestHangingHNS(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestNode(t, v13, bridgeN)
		b.pods("10.244.1.11")
		hang := make(chan struct{})
		var reported []string
		stuck := &interceptor{b.hns, func(op string, do func()) bool {
			if do(); op == "create load balancer" { // it takes effect, but without an answer
				<-hang
			}
			return true
		}}
		b.restartOn(WithTimeout(stuck, func(text string) { reported = append(reported, text) }, func() {}))
		want := snapshot(1, clusterIP("web", "10.96.0.10", "10.244.1.11:80"), clusterIP("api", "10.96.0.11", "10.244.1.11:80"))
		p := b.plan(want)
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		err := p.Apply(ctx).Err
		close(hang)
		synctest.Wait() // HNS continues although the caller returned
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "create load balancer tcp 10.96.0.11:80: HNS has not answered") {
			t.Errorf("Apply = %v", err)
		}
		if n := b.hns.calls["create load balancer"]; n != 1 {
			t.Errorf("%d load balancers asked for, want none after the one that hangs", n)
		}
		if len(reported) != 2 || !strings.Contains(reported[0], "HNS has not answered for 10s (create load balancer tcp 10.96.0.11:80)") || reported[1] != "" {
			t.Errorf("said %q, want that HNS hangs and that it is over", reported)
		}
		b.restart()
		b.converge(snapshot(2)) // it is no longer desired, and known as ours
		if len(b.hns.balancers) != 0 {
			t.Errorf("left: %v", b.balancerTexts())
		}
	})
}

// A slow HNS is reported while a call of either family is late.
func TestSlowHNS(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestNode(t, v13, bridgeN)
		var reported []string
		var one sync.Mutex
		d := WithTimeout(&interceptor{b.hns, func(op string, do func()) bool {
			time.Sleep(map[string]time.Duration{"delete endpoint": 15 * time.Second, "delete load balancer": time.Minute}[op])
			one.Lock()
			defer one.Unlock()
			do()
			return true
		}}, func(text string) { reported = append(reported, text) }, func() {})
		done := make(chan error, 2)
		go func() { done <- d.DeleteEndpoint(t.Context(), "x") }()
		go func() { done <- d.DeleteLoadBalancer(t.Context(), LoadBalancer{ID: "x"}) }()
		for range 2 {
			if err := <-done; !errors.Is(err, ErrNotFound) {
				t.Error(err)
			}
		}
		if _, err := d.List(t.Context(), All); err != nil {
			t.Error(err)
		}
		if len(reported) != 3 || reported[2] != "" || reported[1] == "" {
			t.Errorf("said %q, want two remarks and one end", reported)
		}
	})
}

// Answers count as progress. So does a listing, for a while, because it consists of many
// calls that are not visible. Failures do not count.
func TestProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestNode(t, v13, bridgeN)
		moved := 0
		d := WithTimeout(&stalledLister{b.hns}, func(string) {}, func() { moved++ })
		if err := d.DeleteEndpoint(t.Context(), "x"); err == nil || moved != 0 {
			t.Errorf("%v, moved %d times, want none", err, moved)
		}
		if _, err := d.CreateEndpoint(t.Context(), Endpoint{Network: bridgeN.ID, Addrs: []netip.Addr{addr("10.244.1.11")}}); err != nil || moved != 1 {
			t.Errorf("%v, moved %d times, want once", err, moved)
		}
		if _, err := d.List(t.Context(), All); err != nil || moved != 1+119+1 {
			t.Errorf("%v, moved %d times, want each 10 s for 20 minutes", err, moved)
		}
	})
}

// The remark on a slow listing says whether changes wait for it.
func TestSlowListingSaysWhatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestNode(t, v13, bridgeN)
		var mu sync.Mutex
		var reported []string
		b.restartOn(WithTimeout(&stalledLister{b.hns}, func(text string) {
			mu.Lock()
			defer mu.Unlock()
			reported = append(reported, text)
		}, func() {}))
		b.backend.host.patience = listPatience
		begin := time.Now()
		b.backend.host.now = func() time.Time { return time.Unix(1e9, 0).Add(time.Since(begin)) }
		want := snapshot(1)
		b.plan(want) // the first round waits
		b.backend.state.listDuration = 0
		time.Sleep(time.Hour)
		b.plan(want) // begins another listing, for which it does not wait
		time.Sleep(2 * time.Hour)
		mu.Lock()
		defer mu.Unlock()
		const first, later = "(list all objects), and nothing can be programmed meanwhile; if", "(list all objects), and what others change in HNS is not seen meanwhile; changes of Services are programmed; if"
		if len(reported) != 4 || !strings.Contains(reported[0], first) || !strings.Contains(reported[2], later) || reported[1]+reported[3] != "" {
			t.Errorf("said %q, want a remark on each listing, and its end", reported)
		}
	})
}

// stalledLister is a fake whose listing takes an hour.
type stalledLister struct{ *fake }

func (s *stalledLister) List(ctx context.Context, what ObjectKinds) (Listing, error) {
	time.Sleep(time.Hour)
	return s.fake.List(ctx, what)
}
