// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"strings"
	"time"

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
	for name := range h.Conditions {
		seen.Conditions = append(seen.Conditions, name)
	}
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
