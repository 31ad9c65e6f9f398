// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package metrics

import "time"

// Reload is the outcome of a change of the configuration file.
type Reload string

// The possible outcomes.
const (
	Applied   Reload = "applied"   // in force now
	Restart   Reload = "restart"   // requires a new process, so this one ends
	Rejected  Reload = "rejected"  // the previous configuration stays in force
	Unchanged Reload = "unchanged" // same meaning as before
)

// reloads lists them all.
var reloads = []Reload{Applied, Restart, Rejected, Unchanged}

// Loaded records when the configuration in force was read.
func (m *Metrics) Loaded(at time.Time) {
	m.gauges["config_last_reload_successful"].WithLabelValues().Set(1)
	m.gauges["config_last_reload_success_timestamp_seconds"].WithLabelValues().Set(unix(at))
}

// Reloaded counts a change of the configuration file.
func (m *Metrics) Reloaded(what Reload, at time.Time) {
	m.counters["config_reloads_total"].WithLabelValues(string(what)).Inc()
	switch what {
	case Rejected:
		m.gauges["config_last_reload_successful"].WithLabelValues().Set(0)
	case Applied, Unchanged:
		m.Loaded(at)
	}
}
