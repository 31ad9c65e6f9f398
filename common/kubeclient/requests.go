// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeclient

import (
	clientmetrics "k8s.io/client-go/tools/metrics"

	"kubeproxy/common/metrics"
)

// CountRequests counts the requests of this process to the API server in m. client-go
// accepts one registration for all clients of a process.
func CountRequests(m *metrics.Metrics) {
	c := m.Client()
	clientmetrics.Register(clientmetrics.RegisterOpts{
		RequestResult: c.Requests, RequestRetry: c.Retries,
		RequestLatency: c.Duration, RateLimiterLatency: c.RateLimiter, ResolverLatency: c.Resolver,
		RequestSize: c.RequestSize, ResponseSize: c.ResponseSize,
	})
}
