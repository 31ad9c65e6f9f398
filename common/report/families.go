// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"sync/atomic"

	"k8s.io/klog/v2"

	"kubeproxy/common/health"
	"kubeproxy/common/service"
)

// unavailable shows which families rounds of one backend do not program, as the node
// lacks them.
type unavailable struct {
	health *health.Monitor
	log    klog.Logger
	reason string // that is shown
}

// Report implements Reporter. It reports nothing while the family has no Services.
func (u *unavailable) Report(r Round) {
	reason, before := r.Unavailable, u.reason
	if r.Snapshot.Len(r.Family) == 0 {
		reason = ""
	}
	if reason == "" && before == "" {
		return
	}
	u.reason = reason
	u.health.SetCondition("family-"+r.Family.String(), reason)
	if reason != "" && reason != before {
		logUnavailable(u.log, r.Family, reason)
	}
}

// reportUnavailable shows which families have no backend.
func reportUnavailable(to *health.Monitor, log klog.Logger, unavailable map[service.Family]string) {
	for f, reason := range unavailable {
		to.SetCondition("family-"+f.String(), reason)
		logUnavailable(log, f, reason)
	}
}

func logUnavailable(log klog.Logger, f service.Family, reason string) {
	log.Info("Warning: Services are not programmed for a family", "family", f.String(), "err", reason)
}

// unknownPods shows that pods of a family cannot be distinguished from other clients,
// because the Node lacks the podCIDRs that the configuration relies on.
type unknownPods struct {
	health   *health.Monitor
	node     string
	fromNode atomic.Bool // see track.Options.PodsFromNode
}

func newUnknownPods(o Options, to *health.Monitor) *unknownPods {
	u := &unknownPods{health: to, node: o.Node}
	u.fromNode.Store(o.PodsFromNode)
	return u
}

// Report implements Reporter.
func (u *unknownPods) Report(r Round) {
	text := ""
	if u.fromNode.Load() && r.Snapshot.Len(r.Family) > 0 && !r.Snapshot.Node.Pods.Known(r.Family) {
		text = "the Node " + u.node + " has no podCIDRs of " + r.Family.String() + ", so clients that are no pods are not masqueraded: detectLocalMode NodeCIDR wants one"
	}
	u.health.SetCondition("pods-"+r.Family.String(), text)
}

// degraded shows which optional feature the node does not have for one backend, and logs
// when that begins.
type degraded struct {
	health *health.Monitor
	log    klog.Logger // of the backend
	reason string      // that was logged last
}

// Report implements Reporter.
func (d *degraded) Report(r Round) {
	d.health.SetCondition("lacking-"+r.Family.String(), r.Degraded)
	if r.Degraded != "" && r.Degraded != d.reason {
		d.log.Info("Warning: " + r.Degraded)
	}
	d.reason = r.Degraded
}
