// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"kubeproxy/common/service"
	"kubeproxy/common/track"
)

// instrumentedSink is the Sink of the source. It passes objects to the tracker and
// reports them to statusReporter.
type instrumentedSink struct {
	*track.Tracker
	reporter *statusReporter
}

func (h instrumentedSink) SetService(s *corev1.Service) {
	h.reporter.metrics.ServiceChanged()
	h.reporter.events.setService(s)
	h.reporter.events.reportDeprecation(types.NamespacedName{Namespace: s.Namespace, Name: s.Name}, h.reporter.deprecations.update(s))
	if !h.UpdateService(s) {
		h.reporter.metrics.ServiceUnchanged()
	}
}

func (h instrumentedSink) DeleteService(n types.NamespacedName) {
	h.reporter.metrics.ServiceChanged()
	h.reporter.events.removeService(n)
	h.reporter.deprecations.remove(n)
	if !h.RemoveService(n) {
		h.reporter.metrics.ServiceUnchanged()
	}
}

// SetSlice withdraws the latency record of a slice that changes nothing for the tracker.
// No round follows such a slice, and the next round has nothing to do with it.
func (h instrumentedSink) SetSlice(s *discoveryv1.EndpointSlice) {
	h.reporter.metrics.EndpointsChanged()
	pending := h.reporter.latency.sliceChanged(s)
	if !h.UpdateSlice(s) {
		h.reporter.metrics.EndpointsUnchanged()
		h.reporter.latency.withdraw(pending)
	}
}

func (h instrumentedSink) DeleteSlice(n types.NamespacedName) {
	h.reporter.metrics.EndpointsChanged()
	h.reporter.latency.sliceDeleted(n)
	if !h.RemoveSlice(n) {
		h.reporter.metrics.EndpointsUnchanged()
	}
}

func (h instrumentedSink) SetNode(n *corev1.Node) {
	h.reporter.health.SetNode(n)
	h.Tracker.SetNode(n)
	h.reporter.nodeLog.nodeChanged(h.Tracker)
	h.reporter.nodeLog.eligibilityChanged(h.reporter.health.Report().NodeReason)
}

func (h instrumentedSink) DeleteNode() {
	h.reporter.health.DeleteNode()
	h.Tracker.DeleteNode()
	h.reporter.nodeLog.eligibilityChanged(h.reporter.health.Report().NodeReason)
}

func (h instrumentedSink) Synced() {
	h.reporter.sources.setSynced()
	h.Tracker.Synced()
}

// latency measures the time from the cluster's record of an endpoint change to its
// programming. Changes from before the start of the process do not count.
type latency struct {
	start time.Time

	mu      sync.Mutex
	seen    map[types.NamespacedName]time.Time
	pending [2][]*trigger
}

type trigger struct {
	family       service.Family
	at, received time.Time
}

func newLatency(start time.Time) *latency {
	return &latency{start: start, seen: map[types.NamespacedName]time.Time{}}
}

// sliceChanged records a slice that carries the time of its change. It returns the
// record, nil for none.
func (l *latency) sliceChanged(s *discoveryv1.EndpointSlice) *trigger {
	at, err := time.Parse(time.RFC3339Nano, s.Annotations[corev1.EndpointsLastChangeTriggerTime])
	if err != nil || at.Before(l.start) {
		return nil
	}
	name := types.NamespacedName{Namespace: s.Namespace, Name: s.Name}
	f := service.IPv4
	if s.AddressType == discoveryv1.AddressTypeIPv6 {
		f = service.IPv6
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.seen[name].Equal(at) {
		return nil
	}
	l.seen[name] = at
	t := &trigger{f, at, time.Now()}
	l.pending[f] = append(l.pending[f], t)
	return t
}

// withdraw removes a record that sliceChanged returned. It does nothing for nil.
func (l *latency) withdraw(t *trigger) {
	if t == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pending[t.family] = slices.DeleteFunc(l.pending[t.family], func(x *trigger) bool { return x == t })
}

func (l *latency) sliceDeleted(n types.NamespacedName) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.seen, n)
}

// takeProgrammed removes the records of changes that a round from start to end has put in
// force, and returns their latencies.
func (l *latency) takeProgrammed(f service.Family, start, end time.Time) []time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	var took []time.Duration
	var later []*trigger
	for _, t := range l.pending[f] {
		if t.received.After(start) {
			later = append(later, t)
		} else {
			took = append(took, end.Sub(t.at))
		}
	}
	l.pending[f] = later
	return took
}

// fieldOf reduces the path of a problem to its field, so that the number of label values
// stays small.
func fieldOf(path string) string {
	if i := strings.LastIndexByte(path, ' '); i >= 0 { // such as "endpointslice NAME field"
		kind, _, _ := strings.Cut(path, " ")
		path = kind + "." + path[i+1:]
	}
	var b strings.Builder
	depth := 0
	for _, c := range path {
		switch {
		case c == '[':
			depth++
		case c == ']':
			depth--
		case depth == 0:
			b.WriteRune(c)
		}
	}
	return b.String()
}
