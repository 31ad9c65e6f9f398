// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/common/traffic"
)

// observer computes at each scrape what may never be read. It implements prometheus.Collector.
type observer struct {
	metrics *Metrics
	descs   map[string]*prometheus.Desc
}

func newObserver(m *Metrics) *observer {
	o := &observer{m, map[string]*prometheus.Desc{}}
	for name, x := range observed {
		o.descs[name] = prometheus.NewDesc(Namespace+"_"+name, x.help, x.labels, nil)
	}
	return o
}

func (o *observer) Describe(to chan<- *prometheus.Desc) {
	for _, d := range o.descs {
		to <- d
	}
}

// sink takes the metrics of one collection.
type sink struct {
	descs map[string]*prometheus.Desc
	to    chan<- prometheus.Metric
}

func (s sink) gauge(name string, value float64, labels ...string) {
	s.to <- prometheus.MustNewConstMetric(s.descs[name], prometheus.GaugeValue, value, printables(labels)...)
}

func (s sink) counter(name string, n uint64, labels ...string) {
	s.to <- prometheus.MustNewConstMetric(s.descs[name], prometheus.CounterValue, float64(n), printables(labels)...)
}

func (o *observer) Collect(to chan<- prometheus.Metric) {
	s := sink{o.descs, to}
	o.metrics.mu.Lock()
	all := maps.Clone(o.metrics.programmed)
	o.metrics.mu.Unlock()
	s.collectProgrammed(all)
	now := o.metrics.observation()
	for _, x := range now.Sources {
		s.gauge("source_staleness_seconds", x.Staleness.Seconds(), x.Name)
		s.gauge("source_synced", boolValue(x.Synced), x.Name)
		s.gauge("source_faults", float64(x.Faults), x.Name)
		s.counter("source_silent_watches_total", uint64(x.Silent), x.Name)
		s.counter("source_restores_total", uint64(x.Restored), x.Name)
	}
	for state, n := range now.Services {
		s.gauge("services", float64(n), state)
	}
	for reason, n := range now.Unserved {
		s.gauge("unserved_services", float64(n), reason)
	}
	for reason, n := range now.Skipped {
		s.gauge("skipped_objects", float64(n), reason)
	}
	if t := now.Tracked; t != nil {
		s.gauge("conntrack_entries", float64(t.Entries))
		s.gauge("conntrack_limit", float64(t.Limit))
	}
	if p := now.Packets; p != nil {
		s.counter("iptables_ct_state_invalid_dropped_packets_total", p.Invalid)
		s.counter("iptables_localhost_nodeports_accepted_packets_total", p.Loopback)
	}
	if r := now.Relay; r != nil {
		s.collectRelay(r)
	}
	if t := now.Traffic; t != nil {
		s.collectTraffic(t)
	}
	s.collectByFamily(now)
	s.gauge("silent_endpoints", float64(now.Silent.LeftOut), "out")
	s.gauge("silent_endpoints", float64(now.Silent.Kept), "in")
	s.counter("silent_endpoint_changes_total", now.Silent.Fell, "silent")
	s.counter("silent_endpoint_changes_total", now.Silent.Over, "over")
	s.gauge("standby", boolValue(now.Standby))
	for _, name := range now.Conditions {
		s.gauge("condition", 1, name)
	}
	for _, name := range now.Blocked {
		s.gauge("blocked", 1, name)
	}
}

// collectProgrammed counts what is in force. The metric without the label of a backend has
// the numbers of the backend that misses most.
func (s sink) collectProgrammed(all map[Backend]programmed) {
	missingLocal := map[service.Family]count{}
	for b, p := range all {
		n := p.count(b.Family)
		s.gauge("programmed_service_ports", float64(n.ports), b.labels()...)
		s.gauge("programmed_endpoints", float64(n.endpoints), b.labels()...)
		if most := missingLocal[b.Family]; n.internal+n.external >= most.internal+most.external {
			missingLocal[b.Family] = n
		}
	}
	for f, n := range missingLocal {
		s.gauge("sync_proxy_rules_no_local_endpoints_total", float64(n.internal), "internal", f.String())
		s.gauge("sync_proxy_rules_no_local_endpoints_total", float64(n.external), "external", f.String())
	}
}

func (s sink) collectRelay(r *Relay) {
	s.gauge("relay_open_files", float64(r.Open))
	s.gauge("relay_open_files_limit", float64(r.Limit))
	for why, n := range r.Refused {
		s.counter("relay_refused_total", n, why)
	}
}

func (s sink) collectByFamily(now Observation) {
	for f, age := range now.OldestPending {
		s.gauge("oldest_pending_change_age_seconds", age.Seconds(), f.String())
	}
	for f, n := range now.Accelerated {
		s.counter("socket_acceleration_connections_total", n, f.String())
	}
	for f, n := range now.Unreached {
		s.counter("relay_unreached_total", n, f.String())
	}
	for f, n := range now.Unrelayed {
		s.counter("nftables_localhost_nodeport_rejected_packets_total", n, f.String(), "SCTP")
	}
	for f, l := range now.Localhost {
		s.gauge("nftables_localhost_nodeport_listeners", float64(l.Listeners), f.String())
		s.counter("nftables_localhost_nodeport_listener_creation_failures_total", uint64(l.Failures), f.String())
	}
}

// collectTraffic sets the metrics of what Services carried.
func (s sink) collectTraffic(t *traffic.Named) {
	for _, x := range append(t.Services, traffic.Service{Counts: t.Rest}) {
		s.counter("service_connections_total", x.Connections, x.Namespace, x.Name)
		if t.Counted.Packets {
			s.counter("service_packets_total", x.PacketsIn, x.Namespace, x.Name, "in")
			s.counter("service_packets_total", x.PacketsOut, x.Namespace, x.Name, "out")
		}
		if t.Counted.Bytes {
			s.counter("service_bytes_total", x.BytesIn, x.Namespace, x.Name, "in")
			s.counter("service_bytes_total", x.BytesOut, x.Namespace, x.Name, "out")
		}
	}
}

// count is the content of a snapshot for one family.
type count struct{ ports, endpoints, internal, external int }

func (p programmed) count(f service.Family) count {
	var n count
	for port := range p.snapshot.Ports(f) {
		if p.failed[port.Name] {
			continue
		}
		n.ports++
		n.endpoints += union(port.Cluster, port.Local)
		if !port.HasEndpoints() || len(port.Local) > 0 {
			continue
		}
		internal, external := lacksLocal(port)
		n.internal += internal
		n.external += external
	}
	return n
}

// lacksLocal returns, as 0 or 1, whether policy Local leaves the internal and the
// external frontends of a port without endpoints on this node.
func lacksLocal(p *service.Port) (internal, external int) {
	for _, f := range p.Frontends {
		switch {
		case p.Policy(f.Kind) != service.PolicyLocal:
		case f.Kind.External():
			external = 1
		default:
			internal = 1
		}
	}
	return internal, external
}

// union returns the number of endpoints in a or b, which are sorted.
func union(a, b []service.Endpoint) int {
	n := 0
	for len(a) > 0 && len(b) > 0 {
		switch c := a[0].Addr.Compare(b[0].Addr); {
		case c < 0:
			a = a[1:]
		case c > 0:
			b = b[1:]
		default:
			a, b = a[1:], b[1:]
		}
		n++
	}
	return n + len(a) + len(b)
}

// The groups of metrics that only some modes have, by a word in their names.
const (
	NFTables  = "nftables"
	IPTables  = "iptables"
	Conntrack = "conntrack"
)

// applies reports whether the mode can increase the counter with the given name.
func (m *Metrics) applies(name string) bool {
	for _, group := range []string{NFTables, IPTables, Conntrack} {
		if strings.Contains(name, group) && !slices.Contains(m.options.Groups, group) {
			return false
		}
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
	if !r.Done() && slices.Contains(m.options.Groups, NFTables) {
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
		m.gauges["sync_proxy_rules_iptables_total"].WithLabelValues(table, family).Set(float64(n))
	}
	for table, n := range r.Rules.Written {
		m.gauges["sync_proxy_rules_iptables_last"].WithLabelValues(table, family).Set(float64(n))
	}
}

// setProgrammed records what is in force. A round that failed as a whole leaves that unknown.
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

// InForce observes the time from a change of endpoints in the cluster until it was in force.
func (m *Metrics) InForce(f service.Family, after time.Duration) {
	m.histograms[networkProgramming].WithLabelValues(f.String()).Observe(after.Seconds())
}

// Conntrack observes a search for stale conntrack entries.
func (m *Metrics) Conntrack(f service.Family, took time.Duration, deleted int) {
	m.histograms["conntrack_reconciler_sync_duration_seconds"].WithLabelValues(f.String()).Observe(took.Seconds())
	m.counters["conntrack_reconciler_deleted_entries_total"].WithLabelValues(f.String()).Add(float64(deleted))
}

// ConnectionsEnded counts connections to endpoints that left, and those ended for balance.
func (m *Metrics) ConnectionsEnded(f service.Family, orphans, rebalanced int) {
	m.counters["orphans_ended_total"].WithLabelValues(f.String()).Add(float64(orphans))
	m.counters["connections_rebalanced_total"].WithLabelValues(f.String()).Add(float64(rebalanced))
}

// DrewAgain counts a connection whose entry was deleted because its endpoint did not answer.
func (m *Metrics) DrewAgain(f service.Family) {
	m.counters["second_draws_total"].WithLabelValues(f.String()).Inc()
}

// CleanupFailed counts a failed attempt of b to remove leftover rules of an earlier
// process. Other stale rules are removed in the round that makes them stale.
func (m *Metrics) CleanupFailed(b Backend) {
	if slices.Contains(m.options.Groups, NFTables) {
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
