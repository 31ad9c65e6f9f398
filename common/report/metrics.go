// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"kubeproxy/common/health"
	"kubeproxy/common/health/servicestate"
	"kubeproxy/common/metrics"
	"kubeproxy/common/service"
	"kubeproxy/common/track"
)

// metricsReader reads the present values of metrics.
type metricsReader struct {
	health    *health.Monitor
	services  *servicestate.Store
	sources   *Sources
	tracker   *track.Tracker
	silent    *Silent
	dataplane func(*metrics.Observation) // see Options.Observe
	started   time.Time
}

func (r *metricsReader) observe() metrics.Observation {
	h := r.health.Report()
	seen := metrics.Observation{
		OldestPending: map[service.Family]time.Duration{},
		Services:      map[string]int{}, Unserved: map[string]int{}, Skipped: map[string]int{},
		Standby: h.Standby != "", Sources: r.readSources(h.CurrentTime),
	}
	for _, f := range service.Families {
		status, programmed := h.Status[f.String()]
		if !programmed {
			continue
		}
		seen.OldestPending[f] = 0
		if at := status.OldestPending; at != nil {
			seen.OldestPending[f] = h.CurrentTime.Sub(*at)
		}
	}
	known := r.services.Summary()
	for state, n := range known.States {
		seen.Services[string(state)] = n
	}
	for reason, n := range known.Unserved {
		seen.Unserved[string(reason)] = n
	}
	for _, p := range r.tracker.Problems() {
		seen.Skipped[fieldOf(p.Field)]++
	}
	seen.Conditions, seen.Blocked = slices.Collect(maps.Keys(h.Conditions)), h.Blocked
	seen.Silent = r.silent.count()
	if r.dataplane != nil {
		r.dataplane(&seen)
	}
	return seen
}

func (r *metricsReader) readSources(now time.Time) []metrics.Source {
	var all []metrics.Source
	for _, s := range r.sources.report() {
		x := metrics.Source{Name: s.Name, Synced: s.Synced, Faults: s.Faults}
		x.Silent, x.Restored = r.sources.counts(s.Name)
		switch {
		case !s.LastContact.IsZero():
			x.Staleness = now.Sub(s.LastContact)
		case !s.Synced:
			// A source that was never read counts as read at the start.
			x.Staleness = now.Sub(r.started)
		}
		all = append(all, x)
	}
	return all
}

// fieldOf reduces the path of a problem to its field, for few label values.
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

// sliceChanged records a slice with the time of its change, and returns the record, if any.
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

// takeProgrammed removes the records of changes that a round put in force, for their latencies.
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
