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

// hearing is the Sink of the source: the tracker, overheard by observers.
type hearing struct {
	*track.Tracker
	observers *observers
}

func (h hearing) SetService(s *corev1.Service) {
	h.observers.metrics.ServiceChanged()
	h.observers.herald.set(s)
	h.observers.herald.deprecated(types.NamespacedName{Namespace: s.Namespace, Name: s.Name}, h.observers.deprecations.set(s))
	if !h.TakeService(s) {
		h.observers.metrics.ServiceSettled()
	}
}

func (h hearing) DeleteService(n types.NamespacedName) {
	h.observers.metrics.ServiceChanged()
	h.observers.herald.gone(n)
	h.observers.deprecations.gone(n)
	if !h.DropService(n) {
		h.observers.metrics.ServiceSettled()
	}
}

// SetSlice takes no round into account for a slice that means the same as
// before: none follows, and the next one, whenever it comes, has nothing to do
// with it.
func (h hearing) SetSlice(s *discoveryv1.EndpointSlice) {
	h.observers.metrics.EndpointsChanged()
	heard := h.observers.latency.changed(s)
	if !h.TakeSlice(s) {
		h.observers.metrics.EndpointsSettled()
		h.observers.latency.withdraw(heard)
	}
}

func (h hearing) DeleteSlice(n types.NamespacedName) {
	h.observers.metrics.EndpointsChanged()
	h.observers.latency.deleted(n)
	if !h.DropSlice(n) {
		h.observers.metrics.EndpointsSettled()
	}
}

func (h hearing) SetNode(n *corev1.Node) {
	h.observers.health.SetNode(n)
	h.Tracker.SetNode(n)
	h.observers.nodeLog.learned(h.Tracker)
	h.observers.nodeLog.judged(h.observers.health.Report().NodeReason)
	h.observers.wish.heard(n)
}

func (h hearing) DeleteNode() {
	h.observers.health.DeleteNode()
	h.Tracker.DeleteNode()
	h.observers.nodeLog.judged(h.observers.health.Report().NodeReason)
}

func (h hearing) Synced() {
	h.observers.contact.synced()
	h.Tracker.Synced()
}

// latency measures how long changes of endpoints take to be in force, from
// when the cluster learned of them. What happened before the start does not
// count.
type latency struct {
	start time.Time

	mu      sync.Mutex
	seen    map[types.NamespacedName]time.Time
	waiting [2][]*trigger
}

type trigger struct {
	family    service.Family
	at, heard time.Time
}

func newLatency(start time.Time) *latency {
	return &latency{start: start, seen: map[types.NamespacedName]time.Time{}}
}

// changed notes a slice that says when what it is about happened. It returns
// what it noted, nil for nothing.
func (l *latency) changed(s *discoveryv1.EndpointSlice) *trigger {
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
	l.waiting[f] = append(l.waiting[f], t)
	return t
}

// withdraw takes back what changed returned. It does nothing for nil.
func (l *latency) withdraw(t *trigger) {
	if t == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting[t.family] = slices.DeleteFunc(l.waiting[t.family], func(x *trigger) bool { return x == t })
}

func (l *latency) deleted(n types.NamespacedName) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.seen, n)
}

// settle returns how long those changes took that a round from start to end
// has put in force.
func (l *latency) settle(f service.Family, start, end time.Time) []time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	var took []time.Duration
	var later []*trigger
	for _, t := range l.waiting[f] {
		if t.heard.After(start) {
			later = append(later, t)
		} else {
			took = append(took, end.Sub(t.at))
		}
	}
	l.waiting[f] = later
	return took
}

// fieldOf cuts what is wrong down to which field it is in, of which there
// are few.
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
