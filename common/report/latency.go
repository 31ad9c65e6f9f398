// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"kubeproxy/common/service"
)

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
