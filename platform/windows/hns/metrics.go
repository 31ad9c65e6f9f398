// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"github.com/prometheus/client_golang/prometheus"
	"kubeproxy/common/metrics"
)

// meter counts the calls to HNS of all families.
type meter struct {
	duration *prometheus.HistogramVec
	failures *prometheus.CounterVec
	// balancers counts load balancers by the operation that failed, under kube-proxy's names.
	balancers map[string]*prometheus.CounterVec
}

func newMeter() *meter {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: metrics.Namespace, Name: name, Help: help}, labels)
	}
	balancer := func(what, help string) *prometheus.CounterVec {
		return counter("sync_proxy_rules_winkernel_lb_"+what+"_failures_total", help, "ip_family", "lb_type", "error")
	}
	m := &meter{
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: metrics.Namespace, Name: "hns_call_duration_seconds", Help: "Time until the Host Networking Service answered.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 10), // listing can take minutes
		}, []string{"operation"}),
		failures: counter("hns_call_failures_total", "Answers of the Host Networking Service other than success, by class of error.", "operation", "class"),
		balancers: map[string]*prometheus.CounterVec{
			CreateBalancer: balancer("create", "Load balancers that could not be made."),
			ChangeBalancer: balancer("update", "Load balancers that could not be changed in place."),
			DeleteBalancer: balancer("delete", "Load balancers that could not be deleted."),
		},
	}
	for _, o := range Operations {
		m.duration.WithLabelValues(o)
		for _, c := range Classes() {
			m.failures.WithLabelValues(o, c)
		}
	}
	return m
}

func (m *meter) collectors() []prometheus.Collector {
	all := []prometheus.Collector{m.duration, m.failures}
	for _, c := range m.balancers {
		all = append(all, c)
	}
	return all
}

func (m *meter) call(c Call) {
	m.duration.WithLabelValues(c.Operation).Observe(c.Took.Seconds())
	if c.Err == nil {
		return
	}
	m.failures.WithLabelValues(c.Operation, c.Class()).Inc()
	failed := m.balancers[c.Operation]
	// Deleting an object that does not exist is a success.
	if failed == nil || c.Operation == DeleteBalancer && c.Class() == "not_found" {
		return
	}
	failed.WithLabelValues(c.Balancer.Family.String(), c.Balancer.Use(), c.Cause()).Inc()
}
