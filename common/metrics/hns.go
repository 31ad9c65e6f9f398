// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// hnsMetrics are the metrics of mode kernelspace alone, by the name without
// its prefix.
var hnsMetrics = map[string]metric{
	hnsDuration: {[]string{"operation"}, "Time until the Host Networking Service answered."},
	hnsFailures: {[]string{"operation", "class"}, "Answers of the Host Networking Service other than success, by class of error."},
	// kube-proxy's.
	balancerFailures["create"]: {balancer, "Load balancers that could not be made."},
	balancerFailures["update"]: {balancer, "Load balancers that could not be changed in place."},
	balancerFailures["delete"]: {balancer, "Load balancers that could not be deleted."},
}

// balancer are kube-proxy's labels for failures of a load balancer.
var balancer = []string{"ip_family", "lb_type", "error"}

const (
	hnsDuration = "hns_call_duration_seconds"
	hnsFailures = "hns_call_failures_total"
)

// balancerFailures are metric names by operation.
var balancerFailures = map[string]string{
	"create": "sync_proxy_rules_winkernel_lb_create_failures_total",
	"update": "sync_proxy_rules_winkernel_lb_update_failures_total",
	"delete": "sync_proxy_rules_winkernel_lb_delete_failures_total",
}

// HNS counts calls to the Host Networking Service.
type HNS struct {
	duration *prometheus.HistogramVec
	failures *prometheus.CounterVec
	balancer map[string]*prometheus.CounterVec
}

// HNS creates and registers the metrics of calls to HNS, with a series for each operation
// and class. It must be called at most once.
func (m *Metrics) HNS(operations, classes []string) *HNS {
	counter := func(name string) *prometheus.CounterVec {
		x := hnsMetrics[name]
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: x.help}, x.labels)
		m.registry.MustRegister(c)
		return c
	}
	x := hnsMetrics[hnsDuration]
	h := &HNS{
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: namespace, Name: hnsDuration, Help: x.help, Buckets: buckets(hnsDuration)}, x.labels),
		failures: counter(hnsFailures),
		balancer: map[string]*prometheus.CounterVec{},
	}
	m.registry.MustRegister(h.duration)
	for what, name := range balancerFailures {
		h.balancer[what] = counter(name)
	}
	for _, o := range operations {
		h.duration.WithLabelValues(o)
		for _, c := range classes {
			h.failures.WithLabelValues(o, c)
		}
	}
	return h
}

// Call observes the duration of an operation. class is the class of its error, or ""
// after a success.
func (h *HNS) Call(operation, class string, took time.Duration) {
	h.duration.WithLabelValues(operation).Observe(took.Seconds())
	if class != "" {
		h.failures.WithLabelValues(operation, class).Inc()
	}
}

// Balancer identifies the kind of a load balancer for which an operation failed.
type Balancer struct {
	Family, Use, Error string
}

// BalancerFailed counts a failed operation, "create", "update" or "delete".
func (h *HNS) BalancerFailed(what string, b Balancer) {
	h.balancer[what].WithLabelValues(b.Family, b.Use, b.Error).Inc()
}
