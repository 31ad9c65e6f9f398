// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"strconv"
	"strings"
	"time"

	"kubeproxy/common/health"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

// The modes that have metrics of their own, and kernelspace, where nothing is
// known of connections.
const (
	nftables    = "nftables"
	iptables    = "iptables"
	userspace   = "userspace" // has rules of iptables
	kernelspace = "kernelspace"
)

// appliesTo reports that there can be something to count in mode for the
// counter with the given name.
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

// Round is a round of one backend and what it was for.
type Round struct {
	Result   reconcile.Result
	Snapshot *service.Snapshot
	Extent   Extent
	Restored *Restored // nil where no rules of iptables are kept
}

// Restored is what a round did to rules of iptables.
type Restored struct {
	Refused       bool           // by iptables-restore
	Held, Written map[string]int // by table; the former is nil while it is not known
}

// Extent is how much a round looked at.
type Extent uint8

// A round compares what changed or all there is.
const (
	Partial Extent = iota
	Full
)

// Result counts a round of b.
func (m *Metrics) Result(b Backend, r Round) {
	f, took := b.Family.String(), r.Result.Took.Seconds()
	m.histograms["sync_proxy_rules_duration_seconds"].WithLabelValues(f).Observe(took)
	if r.Extent == Full {
		m.histograms["sync_full_proxy_rules_duration_seconds"].WithLabelValues(f).Observe(took)
	} else {
		m.histograms["sync_partial_proxy_rules_duration_seconds"].WithLabelValues(f).Observe(took)
	}
	drift := float64(len(r.Result.Drift))
	m.counters["drift_found_total"].WithLabelValues(b.labels()...).Add(drift)
	if r.Result.Done() {
		m.counters["drift_repaired_total"].WithLabelValues(b.labels()...).Add(drift)
		ended := r.Result.Start.Add(r.Result.Took)
		m.gauges["sync_proxy_rules_last_timestamp_seconds"].WithLabelValues(f).Set(unix(ended))
	} else {
		m.counters["sync_failures_total"].WithLabelValues(b.labels()...).Inc()
	}
	if !r.Result.Done() && b.Mode == nftables {
		m.counters["sync_proxy_rules_nftables_sync_failures_total"].WithLabelValues(f).Inc()
	}
	if r.Restored != nil {
		m.countRestore(b.Family.String(), r)
	}
	m.setProgrammed(b, r)
}

func (m *Metrics) countRestore(family string, r Round) {
	if r.Restored.Refused {
		m.counters["sync_proxy_rules_iptables_restore_failures_total"].WithLabelValues(family).Inc()
	}
	if r.Restored.Refused && r.Extent == Partial {
		m.counters["sync_proxy_rules_iptables_partial_restore_failures_total"].WithLabelValues(family).Inc()
	}
	for table, n := range r.Restored.Held {
		m.gauges[rulesHeld].WithLabelValues(table, family).Set(float64(n))
	}
	for table, n := range r.Restored.Written {
		m.gauges[rulesWritten].WithLabelValues(table, family).Set(float64(n))
	}
}

// setProgrammed remembers what is in force now. A round that failed as a whole tells
// nothing about that, so the one before stays true.
func (m *Metrics) setProgrammed(b Backend, r Round) {
	if r.Result.Err != nil && !health.OnlyPortErrors(r.Result.Err) {
		return
	}
	failed := map[service.PortName]bool{}
	for _, e := range reconcile.RetryablePortErrors(r.Result.Err) {
		failed[e.Name] = true
	}
	limited := len(reconcile.PortErrors(r.Result.Err)) - len(reconcile.RetryablePortErrors(r.Result.Err))
	m.gauges["limited_service_ports"].WithLabelValues(b.labels()...).Set(float64(limited))
	m.gauges["failed_service_ports"].WithLabelValues(b.labels()...).Set(float64(len(failed)))
	m.mu.Lock()
	defer m.mu.Unlock()
	m.programmed[b] = programmed{r.Snapshot, failed}
}

// Queued notes that b was asked for a round.
func (m *Metrics) Queued(b Backend, at time.Time) {
	m.gauges["sync_proxy_rules_last_queued_timestamp_seconds"].WithLabelValues(b.Family.String()).Set(unix(at))
}

// EndpointsChanged counts a change to an EndpointSlice.
func (m *Metrics) EndpointsChanged() {
	m.counters["sync_proxy_rules_endpoint_changes_total"].WithLabelValues().Inc()
	m.addPendingChanges(0, 1)
}

// EndpointsUnchanged says that the latest change to an EndpointSlice needs no round.
func (m *Metrics) EndpointsUnchanged() { m.addPendingChanges(0, -1) }

// ServiceChanged counts a change to a Service.
func (m *Metrics) ServiceChanged() {
	m.counters["sync_proxy_rules_service_changes_total"].WithLabelValues().Inc()
	m.addPendingChanges(1, 0)
}

// ServiceUnchanged says that the latest change to a Service needs no round.
func (m *Metrics) ServiceUnchanged() { m.addPendingChanges(-1, 0) }

// ChangesSynced says that a round has taken up all changes so far.
func (m *Metrics) ChangesSynced() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.changes = changes{}
	m.setPendingChanges()
}

// addPendingChanges counts changes that wait for a round. One that a round has taken up
// before it turned out to need none is not taken off again.
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

// InForce observes that a change of endpoints took so long to be in force,
// from when the cluster learned of it.
func (m *Metrics) InForce(f service.Family, after time.Duration) {
	m.histograms[networkProgramming].WithLabelValues(f.String()).Observe(after.Seconds())
}

// Conntrack observes a search for stale connection tracking entries.
func (m *Metrics) Conntrack(f service.Family, took time.Duration, deleted int) {
	m.histograms["conntrack_reconciler_sync_duration_seconds"].WithLabelValues(f.String()).Observe(took.Seconds())
	m.counters["conntrack_reconciler_deleted_entries_total"].WithLabelValues(f.String()).Add(float64(deleted))
}

// CleanupFailed counts an attempt of b to remove rules left by an earlier
// process that did not succeed. What is stale otherwise goes in the round that
// makes it so.
func (m *Metrics) CleanupFailed(b Backend) {
	if b.Mode == nftables {
		m.counters["sync_proxy_rules_nftables_cleanup_failures_total"].WithLabelValues(b.Family.String()).Inc()
	}
}

// EventWritten counts an Event that the API server took.
func (m *Metrics) EventWritten() { m.counters["events_written_total"].WithLabelValues().Inc() }

// dropReasons are why an Event is not written: too many wait, the account may
// not, the API server refuses it, it could not be reached.
var dropReasons = []string{"full", "forbidden", "refused", "unreachable"}

// EventDropped counts an Event that is not written, for one of dropReasons.
func (m *Metrics) EventDropped(why string) {
	m.counters["events_dropped_total"].WithLabelValues(why).Inc()
}

// HealthAnswered counts an answer of /healthz or /livez, the only paths it knows.
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

// Checked counts the result of a health check.
func (m *Metrics) Checked(c Check) {
	status := "error"
	if c.Passed {
		status = "success"
	}
	m.checks.WithLabelValues(c.Name, c.Type).Set(boolValue(c.Passed))
	m.checked.WithLabelValues(c.Name, status, c.Type).Inc()
}

func unix(t time.Time) float64 { return float64(t.UnixNano()) / 1e9 }
