// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"strconv"
	"strings"
	"time"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

// The modes with metrics of their own, and kernelspace, where the state of connections is
// unknown.
const (
	nftables    = "nftables"
	iptables    = "iptables"
	userspace   = "userspace" // has rules of iptables
	kernelspace = "kernelspace"
)

// appliesTo reports whether mode can increase the counter with the given name.
func appliesTo(name, mode string) bool {
	switch {
	case strings.Contains(name, nftables):
		return mode == nftables
	case strings.Contains(name, iptables):
		return mode == iptables || mode == userspace
	case strings.Contains(name, "conntrack"):
		return mode != kernelspace
	}
	return true
}

// Result records a round of b.
func (m *Metrics) Result(b Backend, r reconcile.Result) {
	f, took := b.Family.String(), r.Took.Seconds()
	m.histograms["sync_proxy_rules_duration_seconds"].WithLabelValues(f).Observe(took)
	if r.FullSync {
		m.histograms["sync_full_proxy_rules_duration_seconds"].WithLabelValues(f).Observe(took)
	} else {
		m.histograms["sync_partial_proxy_rules_duration_seconds"].WithLabelValues(f).Observe(took)
	}
	drift := float64(len(r.Drift))
	m.counters["drift_found_total"].WithLabelValues(b.labels()...).Add(drift)
	if r.Done() {
		m.counters["drift_repaired_total"].WithLabelValues(b.labels()...).Add(drift)
		ended := r.Start.Add(r.Took)
		m.gauges["sync_proxy_rules_last_timestamp_seconds"].WithLabelValues(f).Set(unix(ended))
	} else {
		m.counters["sync_failures_total"].WithLabelValues(b.labels()...).Inc()
	}
	if !r.Done() && b.Mode == nftables {
		m.counters["sync_proxy_rules_nftables_sync_failures_total"].WithLabelValues(f).Inc()
	}
	if r.Rules != nil {
		m.countRestore(b.Family.String(), r)
	}
	m.setProgrammed(b, r)
}

func (m *Metrics) countRestore(family string, r reconcile.Result) {
	if r.Rules.Refused {
		m.counters["sync_proxy_rules_iptables_restore_failures_total"].WithLabelValues(family).Inc()
	}
	if r.Rules.Refused && !r.FullSync {
		m.counters["sync_proxy_rules_iptables_partial_restore_failures_total"].WithLabelValues(family).Inc()
	}
	for table, n := range r.Rules.Held {
		m.gauges[rulesHeld].WithLabelValues(table, family).Set(float64(n))
	}
	for table, n := range r.Rules.Written {
		m.gauges[rulesWritten].WithLabelValues(table, family).Set(float64(n))
	}
}

// setProgrammed records what is in force. A round that failed as a whole leaves that
// unknown, so the previous record remains.
func (m *Metrics) setProgrammed(b Backend, r reconcile.Result) {
	if !reconcile.OnlyPortErrors(r.Err) {
		return
	}
	failed := map[service.PortName]bool{}
	for _, e := range reconcile.RetryablePortErrors(r.Err) {
		failed[e.Name] = true
	}
	limited := len(reconcile.PortErrors(r.Err)) - len(reconcile.RetryablePortErrors(r.Err))
	m.gauges["limited_service_ports"].WithLabelValues(b.labels()...).Set(float64(limited))
	m.gauges["failed_service_ports"].WithLabelValues(b.labels()...).Set(float64(len(failed)))
	m.mu.Lock()
	defer m.mu.Unlock()
	m.programmed[b] = programmed{r.Snapshot, failed}
}

// Queued records that a round of b was requested.
func (m *Metrics) Queued(b Backend, at time.Time) {
	m.gauges["sync_proxy_rules_last_queued_timestamp_seconds"].WithLabelValues(b.Family.String()).Set(unix(at))
}

// EndpointsChanged counts a change to an EndpointSlice.
func (m *Metrics) EndpointsChanged() {
	m.counters["sync_proxy_rules_endpoint_changes_total"].WithLabelValues().Inc()
	m.addPendingChanges(0, 1)
}

// EndpointsUnchanged records that the latest change to an EndpointSlice needs no round.
func (m *Metrics) EndpointsUnchanged() { m.addPendingChanges(0, -1) }

// ServiceChanged counts a change to a Service.
func (m *Metrics) ServiceChanged() {
	m.counters["sync_proxy_rules_service_changes_total"].WithLabelValues().Inc()
	m.addPendingChanges(1, 0)
}

// ServiceUnchanged records that the latest change to a Service needs no round.
func (m *Metrics) ServiceUnchanged() { m.addPendingChanges(-1, 0) }

// ChangesSynced records that a round has included all changes so far.
func (m *Metrics) ChangesSynced() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.changes = changes{}
	m.setPendingChanges()
}

// addPendingChanges adds to the changes that wait for a round. A change that a round
// included before it turned out to need none is not subtracted again.
func (m *Metrics) addPendingChanges(ofServices, ofEndpoints int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.changes.services = max(0, m.changes.services+ofServices)
	m.changes.endpoints = max(0, m.changes.endpoints+ofEndpoints)
	m.setPendingChanges()
}

func (m *Metrics) setPendingChanges() {
	m.gauges["sync_proxy_rules_service_changes_pending"].WithLabelValues().Set(float64(m.changes.services))
	m.gauges["sync_proxy_rules_endpoint_changes_pending"].WithLabelValues().Set(float64(m.changes.endpoints))
}

// InForce observes the time from a change of endpoints in the cluster until it was in
// force.
func (m *Metrics) InForce(f service.Family, after time.Duration) {
	m.histograms[networkProgramming].WithLabelValues(f.String()).Observe(after.Seconds())
}

// Conntrack observes a search for stale conntrack entries.
func (m *Metrics) Conntrack(f service.Family, took time.Duration, deleted int) {
	m.histograms["conntrack_reconciler_sync_duration_seconds"].WithLabelValues(f.String()).Observe(took.Seconds())
	m.counters["conntrack_reconciler_deleted_entries_total"].WithLabelValues(f.String()).Add(float64(deleted))
}

// CleanupFailed counts a failed attempt of b to remove leftover rules of an earlier
// process. Other stale rules are removed in the round that makes them stale.
func (m *Metrics) CleanupFailed(b Backend) {
	if b.Mode == nftables {
		m.counters["sync_proxy_rules_nftables_cleanup_failures_total"].WithLabelValues(b.Family.String()).Inc()
	}
}

// EventWritten counts an Event that the API server accepted.
func (m *Metrics) EventWritten() { m.counters["events_written_total"].WithLabelValues().Inc() }

// dropReasons are the reasons not to write an Event: too many conditions, no permission,
// rejection by the API server, API server unreachable.
var dropReasons = []string{"full", "forbidden", "refused", "unreachable"}

// EventDropped counts an Event that was not written, with one of dropReasons.
func (m *Metrics) EventDropped(why string) {
	m.counters["events_dropped_total"].WithLabelValues(why).Inc()
}

// HealthAnswered counts an answer of /healthz or /livez. It ignores other paths.
func (m *Metrics) HealthAnswered(path string, status int) {
	if c := m.counters["proxy_"+strings.TrimPrefix(path, "/")+"_total"]; c != nil {
		c.WithLabelValues(strconv.Itoa(status)).Inc()
	}
}

// Check is the result of one health check.
type Check struct {
	Name, Type string // the type is "healthz" or "livez"
	Passed     bool
}

// Checked records the result of a health check.
func (m *Metrics) Checked(c Check) {
	status := "error"
	if c.Passed {
		status = "success"
	}
	m.checks.WithLabelValues(c.Name, c.Type).Set(boolValue(c.Passed))
	m.checked.WithLabelValues(c.Name, status, c.Type).Inc()
}

func unix(t time.Time) float64 { return float64(t.UnixNano()) / 1e9 }
