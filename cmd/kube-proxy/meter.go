// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"sync/atomic"

	"kubeproxy/common/metrics"
	"kubeproxy/platform/windows/hns"
)

// meter counts calls to HNS once there is something to count them in.
type meter struct{ to atomic.Pointer[metrics.HNS] }

// count has calls counted in m from now on. It is called for each backend.
func (t *meter) count(m *metrics.Metrics) {
	if t.to.Load() == nil {
		t.to.Store(m.HNS(hns.Operations, hns.Classes()))
	}
}

func (t *meter) call(c hns.Call) {
	to := t.to.Load()
	if to == nil {
		return
	}
	to.Call(c.Operation, c.Class(), c.Took)
	what := map[string]string{hns.CreateBalancer: "create", hns.ChangeBalancer: "update", hns.DeleteBalancer: "delete"}[c.Operation]
	// What is gone already is as good as deleted.
	if c.Err == nil || what == "" || what == "delete" && c.Class() == "not_found" {
		return
	}
	to.BalancerFailed(what, metrics.Balancer{Family: c.Balancer.Family.String(), Use: c.Balancer.Use(), Error: c.Cause()})
}
