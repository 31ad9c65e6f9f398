// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"io"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"kubeproxy/common/metrics"
)

// TestMeter counts calls to HNS of both families together, and the load balancers among
// them whose failure affects Services.
func TestMeter(t *testing.T) {
	c, m := newMeter(), metrics.New(metrics.Options{})
	m.Register(c.collectors())
	m.Register(c.collectors()) // by the second family
	lb := LoadBalancer{Key: Key{VIP: netip.MustParseAddr("10.96.0.10")}}
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
		if !strings.Contains(string(body), want+"\n") {
			t.Errorf("no %s", want)
		}
	}
	if strings.Contains(string(body), `delete_failures_total{error="other"`) {
		t.Error("what was gone already counts as a failure")
	}
}
