// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestHNS checks calls and failures of load balancers, and that these metrics are absent
// without HNS.
func TestHNS(t *testing.T) {
	shapes := func(m *Metrics) map[string]string {
		got := map[string]string{}
		for _, f := range gather(t, m.registry) {
			if strings.Contains(f.name, "hns") || strings.Contains(f.name, "winkernel") {
				got[f.name] = f.shape
			}
		}
		return got
	}
	m := New(Options{})
	if got := shapes(m); len(got) > 0 {
		t.Errorf("without HNS there is %v", got)
	}
	h := m.HNS([]string{"list", "create_load_balancer"}, []string{"busy", "other"})
	h.Call("list", "", 2*time.Second)
	h.Call("list", "busy", time.Second)
	for what := range balancerFailures {
		h.BalancerFailed(what, Balancer{"IPv4", "clusterip", "port_already_exists"})
	}
	failed := "COUNTER{error,ip_family,lb_type}"
	want := map[string]string{
		"kubeproxy_hns_call_duration_seconds":                           "HISTOGRAM{operation} 0.001 0.004 0.016 0.064 0.256 1.024 4.096 16.384 65.536 262.144",
		"kubeproxy_hns_call_failures_total":                             "COUNTER{class,operation}",
		"kubeproxy_sync_proxy_rules_winkernel_lb_create_failures_total": failed,
		"kubeproxy_sync_proxy_rules_winkernel_lb_update_failures_total": failed,
		"kubeproxy_sync_proxy_rules_winkernel_lb_delete_failures_total": failed,
	}
	if diff := cmp.Diff(want, shapes(m)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	values{
		"hns_call_failures_total busy list":                                                      1,
		"hns_call_failures_total other list":                                                     0,
		"hns_call_failures_total busy create_load_balancer":                                      0,
		"sync_proxy_rules_winkernel_lb_delete_failures_total port_already_exists IPv4 clusterip": 1,
	}.check(t, m)
}
