// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"kubeproxy/common/health"
	"kubeproxy/common/metrics"
	"kubeproxy/common/track"
)

// sink is the sink of the source. It reports objects and passes them to the tracker.
type sink struct {
	*track.Tracker
	health       *health.Monitor
	metrics      *metrics.Metrics
	events       *Events
	latency      *latency
	sources      *Sources
	node         *nodeLog
	deprecations *deprecations
}

func (k sink) SetService(s *corev1.Service) {
	k.metrics.ServiceChanged()
	k.events.setService(s)
	k.events.reportDeprecation(types.NamespacedName{Namespace: s.Namespace, Name: s.Name}, k.deprecations.update(s))
	if !k.UpdateService(s) {
		k.metrics.ServiceUnchanged()
	}
}

func (k sink) DeleteService(n types.NamespacedName) {
	k.metrics.ServiceChanged()
	k.events.removeService(n)
	k.deprecations.remove(n)
	if !k.RemoveService(n) {
		k.metrics.ServiceUnchanged()
	}
}

// SetSlice withdraws the latency record of a slice that changes nothing for the tracker.
// No round follows such a slice, and the next round has nothing to do with it.
func (k sink) SetSlice(s *discoveryv1.EndpointSlice) {
	k.metrics.EndpointsChanged()
	pending := k.latency.sliceChanged(s)
	if !k.UpdateSlice(s) {
		k.metrics.EndpointsUnchanged()
		k.latency.withdraw(pending)
	}
}

func (k sink) DeleteSlice(n types.NamespacedName) {
	k.metrics.EndpointsChanged()
	k.latency.sliceDeleted(n)
	if !k.RemoveSlice(n) {
		k.metrics.EndpointsUnchanged()
	}
}

func (k sink) SetNode(n *corev1.Node) {
	k.health.SetNode(n)
	k.Tracker.SetNode(n)
	k.node.nodeChanged(k.Tracker)
	k.node.eligibilityChanged(k.health.Report().NodeReason)
}

func (k sink) DeleteNode() {
	k.health.DeleteNode()
	k.Tracker.DeleteNode()
	k.node.eligibilityChanged(k.health.Report().NodeReason)
}

func (k sink) Synced() {
	k.sources.setSynced()
	k.Tracker.Synced()
}
