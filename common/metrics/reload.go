// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package metrics

import "time"

// Reload is what became of a configuration file that changed.
type Reload string

// Everything that can become of it.
const (
	Applied   Reload = "applied"   // taken in
	Restart   Reload = "restart"   // the process ends for it
	Rejected  Reload = "rejected"  // what was in force stays
	Unchanged Reload = "unchanged" // it means the same as before
)

// reloads lists them all.
var reloads = []Reload{Applied, Restart, Rejected, Unchanged}

// Loaded notes that the configuration in force was read at a time.
func (m *Metrics) Loaded(at time.Time) {
	m.gauges["config_last_reload_successful"].WithLabelValues().Set(1)
	m.gauges["config_last_reload_success_timestamp_seconds"].WithLabelValues().Set(unix(at))
}

// Reloaded counts a change of the configuration file that was found.
func (m *Metrics) Reloaded(what Reload, at time.Time) {
	m.counters["config_reloads_total"].WithLabelValues(string(what)).Inc()
	switch what {
	case Rejected:
		m.gauges["config_last_reload_successful"].WithLabelValues().Set(0)
	case Applied, Unchanged:
		m.Loaded(at)
	}
}
