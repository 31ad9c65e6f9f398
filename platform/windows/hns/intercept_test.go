// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"kubeproxy/common/metrics"
	"kubeproxy/common/service"
	"kubeproxy/test/kit"
)

// TestMeterReportsEachCall creates and deletes a Service. Exactly the calls that reached
// HNS are reported.
func TestMeterReportsEachCall(t *testing.T) {
	b := newTestNode(t, v15, bridgeN)
	var reported []string
	b.restartOn(Metered(b.hns, func(c Call) {
		line := c.Operation
		if c.Balancer != nil {
			line += " " + c.Balancer.Use()
		}
		if c.Err != nil {
			line += " " + c.Class() + " " + c.Cause()
		}
		reported = append(reported, line)
	}))
	for i, endpoints := range [][]string{{"10.244.2.11:80@b"}, {"10.244.2.12:80@b"}, nil} {
		b.converge(snapshot(uint64(i), clusterIP("web", "10.96.0.10", endpoints...)))
	}
	b.hns.down = true
	if _, err := b.round(snapshot(3, clusterIP("web", "10.96.0.10", "10.244.2.11:80@b"))); !errors.Is(err, ErrNotRunning) {
		t.Errorf("%v while HNS is down", err)
	}
	want := []string{
		"list", "create_endpoint", "create_load_balancer clusterip", "list",
		"create_endpoint", "change_load_balancer clusterip", "delete_endpoint", "list",
		"delete_load_balancer clusterip", "delete_endpoint", "list", "create_endpoint not_running other",
	}
	kit.Same(t, "(-want +got)", want, reported)
	for _, line := range reported {
		var operation string
		if _, err := fmt.Sscan(line, &operation); err != nil || !slices.Contains(Operations, operation) {
			t.Errorf("operation %q is not in the list", operation)
		}
	}
}

// TestMeterNamesErrors checks the class of each code, and kube-proxy's name for it.
func TestMeterNamesErrors(t *testing.T) {
	for code, want := range map[uint32][2]string{
		0x803b0001: {"not_found", "network_not_found"},
		0x80070490: {"not_found", "other"},
		0x803b0013: {"exists", "port_already_exists"},
		0x800700b7: {"exists", "other"},
		0x80004001: {"refused", "not_implemented"},
		0x803b001e: {"refused", "invalid_ip"},
		0x803b002f: {"exists", "invalid_ip"},
		0x803b0007: {"busy", "other"},
		0x6ba:      {"not_running", "other"},
		0x7e:       {"not_installed", "other"},
		0x12345:    {"refused", "other"},
	} {
		c := Call{Err: fmt.Errorf("in vain: %w", codeError("create", code))}
		kit.Equal(t, [2]string{c.Class(), c.Cause()}, want, "0x%x", code)
	}
	c := Call{Err: context.Canceled}
	if c.Class() != "other" || c.Cause() != "other" || (&Call{}).Class()+(&Call{}).Cause() != "" {
		t.Errorf("something else is %s, %s", c.Class(), c.Cause())
	}
	if d := Metered(newFake(v13), func(Call) {}); !errors.Is(d.DeleteLoadBalancer(t.Context(), LoadBalancer{ID: "none"}), ErrNotFound) {
		t.Error("an error is lost on the way")
	}
}

// TestUse checks the purpose of load balancers, including adopted ones.
func TestUse(t *testing.T) {
	b := newTestNode(t, v13, bridgeN)
	b.options.ForwardHealthChecks, b.options.RootEndpoint = true, "cbr0"
	b.restart()
	b.pods("10.244.1.11")
	if _, err := b.hns.CreateEndpoint(t.Context(), Endpoint{Name: "cbr0", Network: bridgeN.ID, Addrs: []netip.Addr{addr("10.244.1.2")}}); err != nil {
		t.Fatal(err)
	}
	web := clusterIP("web", "10.96.0.10", "10.244.1.11:80")
	web.HealthCheck = 31000
	web.Frontends = append(web.Frontends, frontend(service.NodePort, "", 30080), frontend(service.ExternalIP, "198.51.100.9", 80), frontend(service.LoadBalancerIP, "203.0.113.5", 80))
	want := []string{"clusterip", "externalip", "healthcheck", "ingressip", "nodeport"}
	for _, situation := range []string{"made", "adopted"} {
		b.converge(snapshot(1, web))
		var got []string
		for _, lb := range b.backend.state.model.balancers {
			got = append(got, lb.Use())
		}
		slices.Sort(got)
		kit.Same(t, fmt.Sprintf("%s (-want +got)", situation), want, got)
		for id, lb := range b.hns.balancers {
			lb.Kind = 0
			b.hns.balancers[id] = lb
		}
		b.restart()
	}
}

// TestMeter counts calls to HNS of both families together, and the load balancers among
// them whose failure affects Services.
func TestMeter(t *testing.T) {
	c, m := newMeter(), metrics.New(metrics.Options{})
	m.Register(c.collectors())
	m.Register(c.collectors()) // by the second family
	lb := LoadBalancer{Address: service.Address{Addr: netip.MustParseAddr("10.96.0.10")}}
	refused, gone := &Error{Op: "x", Code: 0x803b0013}, &Error{Op: "x", Code: 0x490}
	for _, x := range []Call{
		{Operation: "list", Took: time.Second},
		{Operation: "list", Err: &Error{Op: "x", Code: 0x6ba}},
		{Operation: CreateBalancer, Err: refused, Balancer: &lb},
		{Operation: ChangeBalancer, Err: gone, Balancer: &lb},
		{Operation: DeleteBalancer, Err: gone, Balancer: &lb},
		{Operation: DeleteBalancer, Err: refused, Balancer: &lb},
		{Operation: CreateBalancer, Balancer: &lb},
	} {
		c.call(x)
	}
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	body, _ := io.ReadAll(w.Result().Body)
	for _, want := range []string{
		`hns_call_duration_seconds_count{operation="list"} 2`,
		`hns_call_failures_total{class="not_running",operation="list"} 1`,
		`hns_call_failures_total{class="not_found",operation="delete_load_balancer"} 1`,
		`hns_call_failures_total{class="busy",operation="create_endpoint"} 0`,
		`hns_call_duration_seconds_count{operation="create_endpoint"} 0`,
		`hns_call_duration_seconds_bucket{operation="list",le="262.144"} 2`,
		`winkernel_lb_create_failures_total{error="port_already_exists",ip_family="IPv4",lb_type="clusterip"} 1`,
		`winkernel_lb_update_failures_total{error="other",ip_family="IPv4",lb_type="clusterip"} 1`,
		`winkernel_lb_delete_failures_total{error="port_already_exists",ip_family="IPv4",lb_type="clusterip"} 1`,
	} {
		kit.Check(t, strings.Contains(string(body), want+"\n"), "no %s", want)
	}
	kit.Check(t, !strings.Contains(string(body), `delete_failures_total{error="other"`),
		"what was gone already counts as a failure")
}

// A hanging HNS is reported and does not prevent a stop. Objects of unfinished calls
// count as ours, and no further call is made.
func TestHangingHNS(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestNode(t, v13, bridgeN)
		b.pods("10.244.1.11")
		hang := make(chan struct{})
		var reported []string
		stuck := onWrites(b.hns, func(op string, do func()) {
			if do(); op == "create load balancer" { // it takes effect, but without an answer
				<-hang
			}
		})
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
		d := WithTimeout(onWrites(b.hns, func(op string, do func()) {
			time.Sleep(map[string]time.Duration{"delete endpoint": 15 * time.Second, "delete load balancer": time.Minute}[op])
			one.Lock()
			defer one.Unlock()
			do()
		}), func(text string) { reported = append(reported, text) }, func() {})
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
		kit.Check(t, len(reported) == 3 && reported[2] == "" && reported[1] != "",
			"said %q, want two remarks and one end", reported)
	})
}

// Answers count as progress. So does a listing, for a while, because it consists of many
// calls that are not visible. Failures do not count.
func TestProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestNode(t, v13, bridgeN)
		moved := 0
		d := WithTimeout(onLists(b.hns, stall), func(string) {}, func() { moved++ })
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
		b.restartOn(WithTimeout(onLists(b.hns, stall), func(text string) {
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

func stall() { time.Sleep(time.Hour) }
