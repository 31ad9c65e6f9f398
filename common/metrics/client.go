// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"context"
	"net/url"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Client has the metrics of the API client. Its fields implement the hooks of package
// k8s.io/client-go/tools/metrics.
type Client struct {
	Requests     ClientRequests
	Retries      ClientRetries
	Duration     ClientDuration
	RateLimiter  ClientDuration
	RequestSize  ClientSize
	ResponseSize ClientSize
	Resolver     ClientResolver
}

type (
	// ClientRequests counts requests.
	ClientRequests struct{ *prometheus.CounterVec }
	// ClientRetries counts retried requests.
	ClientRetries struct{ *prometheus.CounterVec }
	// ClientDuration observes durations.
	ClientDuration struct{ *prometheus.HistogramVec }
	// ClientSize observes sizes in bytes.
	ClientSize struct{ *prometheus.HistogramVec }
	// ClientResolver observes the duration of name resolution.
	ClientResolver struct{ *prometheus.HistogramVec }
)

// Client creates and registers the metrics of a client. It must be called only once.
func (m *Metrics) Client() Client {
	counter := func(name string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: clients[name].help}, clients[name].labels)
		m.registry.MustRegister(c)
		return c
	}
	histogram := func(name string) *prometheus.HistogramVec {
		h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: clients[name].help, Buckets: buckets(name)}, clients[name].labels)
		m.registry.MustRegister(h)
		return h
	}
	return Client{
		Requests:     ClientRequests{counter(clientRequests)},
		Retries:      ClientRetries{counter(clientRetries)},
		Duration:     ClientDuration{histogram(clientDuration)},
		RateLimiter:  ClientDuration{histogram(clientRateLimiter)},
		RequestSize:  ClientSize{histogram(clientRequestSize)},
		ResponseSize: ClientSize{histogram(clientResponseSize)},
		Resolver:     ClientResolver{histogram(clientResolver)},
	}
}

// Increment counts a request.
func (c ClientRequests) Increment(_ context.Context, code, method, host string) {
	c.WithLabelValues(printables([]string{code, method, host})...).Inc()
}

// IncrementRetry counts a retried request.
func (c ClientRetries) IncrementRetry(_ context.Context, code, method, host string) {
	c.WithLabelValues(printables([]string{code, method, host})...).Inc()
}

// Observe records a duration. Of the URL it keeps only the host.
func (c ClientDuration) Observe(_ context.Context, verb string, u url.URL, took time.Duration) {
	c.WithLabelValues(printables([]string{verb, u.Host})...).Observe(took.Seconds())
}

// Observe records a size.
func (c ClientSize) Observe(_ context.Context, verb, host string, size float64) {
	c.WithLabelValues(printables([]string{verb, host})...).Observe(size)
}

// Observe records the duration of a name resolution.
func (c ClientResolver) Observe(_ context.Context, host string, took time.Duration) {
	c.WithLabelValues(printables([]string{host})...).Observe(took.Seconds())
}
