// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package descriptor

import (
	"io"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"kubeproxy/common/metrics"
	"kubeproxy/platform/windows/hns"
)

// TestMeter counts calls to HNS of both families together, and the load balancers among
// them whose failure affects Services.
func TestMeter(t *testing.T) {
	c, m := &meter{}, metrics.New(metrics.Options{})
	c.call(hns.Call{Operation: "list"}) // not registered yet
	c.registerMetrics(m)
	c.registerMetrics(m)
	lb := hns.LoadBalancer{Key: hns.Key{VIP: netip.MustParseAddr("10.96.0.10")}}
	refused, gone := &hns.Error{Op: "x", Code: 0x803b0013}, &hns.Error{Op: "x", Code: 0x490}
	for _, x := range []hns.Call{
		{Operation: "list", Took: time.Second},
		{Operation: "list", Err: &hns.Error{Op: "x", Code: 0x6ba}},
		{Operation: hns.CreateBalancer, Err: refused, Balancer: &lb},
		{Operation: hns.ChangeBalancer, Err: gone, Balancer: &lb},
		{Operation: hns.DeleteBalancer, Err: gone, Balancer: &lb},
		{Operation: hns.DeleteBalancer, Err: refused, Balancer: &lb},
		{Operation: hns.CreateBalancer, Balancer: &lb},
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
