// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"sync/atomic"

	"kubeproxy/common/metrics"
)

// meter counts calls to HNS once registerMetrics has been called.
type meter struct{ metrics atomic.Pointer[metrics.HNS] }

// registerMetrics counts calls in m from now on. It is called for each backend.
func (t *meter) registerMetrics(m *metrics.Metrics) {
	if t.metrics.Load() == nil {
		t.metrics.Store(m.HNS(Operations, Classes()))
	}
}

func (t *meter) call(c Call) {
	m := t.metrics.Load()
	if m == nil {
		return
	}
	m.Call(c.Operation, c.Class(), c.Took)
	what := map[string]string{CreateBalancer: "create", ChangeBalancer: "update", DeleteBalancer: "delete"}[c.Operation]
	// Deleting an object that does not exist is a success.
	if c.Err == nil || what == "" || what == "delete" && c.Class() == "not_found" {
		return
	}
	m.BalancerFailed(what, metrics.Balancer{Family: c.Balancer.Family.String(), Use: c.Balancer.Use(), Error: c.Cause()})
}
