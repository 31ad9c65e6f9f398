// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package metrics counts what the proxy does, under the names that dashboards for
// kube-proxy expect and under some of its own. Rounds, Events, health checks and
// observations go in, a Prometheus handler comes out. This file lists every metric. What
// they mean for health is left to package health.
package metrics

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"kubeproxy/common/printable"
	"kubeproxy/common/service"
	"kubeproxy/common/traffic"
)

// Namespace begins the name of each metric that is not kube-proxy's alone.
const Namespace = "kubeproxy"

// The label sets. Those of kube-proxy's metrics must not change: more gets a metric of its own.
var (
	family   = []string{"ip_family"}
	backend  = []string{"backend", "ip_family"}
	policy   = []string{"traffic_policy", "ip_family"}
	table    = []string{"table", "ip_family"}
	code     = []string{"code"}
	result   = []string{"result"}
	reason   = []string{"reason"}
	carried  = []string{"namespace", "service"}
	directed = []string{"namespace", "service", "direction"}
)

// counters, by the name without its prefix.
var counters = map[string]metric{
	// kube-proxy's.
	"sync_proxy_rules_endpoint_changes_total":                  {nil, "Changes to endpoints that arrived."},
	"sync_proxy_rules_service_changes_total":                   {nil, "Changes to Services that arrived."},
	"proxy_healthz_total":                                      {code, "Answers of /healthz by HTTP status code."},
	"proxy_livez_total":                                        {code, "Answers of /livez by HTTP status code."},
	"sync_proxy_rules_nftables_sync_failures_total":            {family, "Rounds of nftables that failed."},
	"sync_proxy_rules_nftables_cleanup_failures_total":         {family, "Attempts to remove rules of an earlier process that did not succeed."},
	"sync_proxy_rules_iptables_restore_failures_total":         {family, "Rounds in which iptables-restore failed."},
	"sync_proxy_rules_iptables_partial_restore_failures_total": {family, "Those among them that compared only what changed."},
	"conntrack_reconciler_deleted_entries_total":               {family, "Stale connection tracking entries that were removed."},
	// Ours.
	"drift_found_total":            {backend, "Changes by others to what this backend had programmed that were noticed."},
	"config_reloads_total":         {result, "Changes of the configuration file that were found, by outcome."},
	"drift_repaired_total":         {backend, "Changes by others that were undone."},
	"sync_failures_total":          {backend, "Rounds that failed, wholly or for single Service ports."},
	"second_draws_total":           {family, "Connections that nobody answered within a second, so that the next packet of the client draws an endpoint again."},
	"orphans_ended_total":          {family, "Connections that were open and ended after their endpoint had left its Service."},
	"connections_rebalanced_total": {family, "Connections that were open and ended because their endpoint had more than its share."},
	"events_written_total":         {nil, "Kubernetes Events that the API server accepted."},
	"events_dropped_total":         {reason, "Kubernetes Events that were not written, or not in time."},
}

// gauges, by the name without its prefix.
var gauges = map[string]metric{
	// kube-proxy's.
	"sync_proxy_rules_last_timestamp_seconds":        {family, "When the dataplane last matched what is wanted, as a Unix time."},
	"sync_proxy_rules_last_queued_timestamp_seconds": {family, "When a round was last requested, as a Unix time."},
	"sync_proxy_rules_endpoint_changes_pending":      {nil, "Changes to endpoints that no round has included yet."},
	"sync_proxy_rules_service_changes_pending":       {nil, "Changes to Services that no round has included yet."},
	"sync_proxy_rules_iptables_total":                {table, "Rules in the proxy's chains of iptables."},
	"sync_proxy_rules_iptables_last":                 {table, "Rules of iptables that the latest round wrote."},
	// Ours.
	"config_last_reload_successful":                {nil, "1 if the configuration file, as it is now, can be used, else 0."},
	"config_last_reload_success_timestamp_seconds": {nil, "When the configuration in force was read, as a Unix time."},
	"failed_service_ports":                         {backend, "Service ports that the latest round could not program."},
	"limited_service_ports":                        {backend, "Service ports of which the mode cannot do everything."},
}

// observed are gauges whose values are computed at each scrape.
var observed = map[string]metric{
	// kube-proxy's.
	"iptables_ct_state_invalid_dropped_packets_total":              {nil, "Packets that were dropped because connection tracking called them invalid."},
	"iptables_localhost_nodeports_accepted_packets_total":          {nil, "Packets that came to NodePorts of loopback addresses, one for each connection."},
	"socket_acceleration_connections_total":                        {family, "Connections that sockets made to an endpoint at once, by socket acceleration."},
	"nftables_localhost_nodeport_listeners":                        {family, "NodePorts that the proxy itself answers on a loopback address, in whichever mode."},
	"nftables_localhost_nodeport_listener_creation_failures_total": {family, "Attempts to listen for a NodePort on a loopback address that failed."},
	"nftables_localhost_nodeport_rejected_packets_total":           {[]string{"ip_family", "protocol"}, "Packets to NodePorts of a loopback address that were refused because the proxy does not relay the protocol."},
	"sync_proxy_rules_no_local_endpoints_total":                    {policy, "Service ports with traffic policy Local that have endpoints, but none on this node."},
	// Ours.
	"programmed_service_ports":          {backend, "Service ports in force."},
	"programmed_endpoints":              {backend, "Endpoints in force, counted once for each Service port."},
	"oldest_pending_change_age_seconds": {family, "Age of the oldest change that is not in force yet, 0 without any."},
	"source_staleness_seconds":          {[]string{"source"}, "Time since the source was last known to be up to date, or since the start."},
	"source_synced":                     {[]string{"source"}, "Whether the source has delivered everything that existed at the start."},
	// By state and reason only: a series for each Service and node would outnumber all others.
	"services":                    {[]string{"state"}, "Services by the state of their worst port."},
	"unserved_services":           {reason, "Services with an address where clients are not served, by reason."},
	"skipped_objects":             {reason, "Parts of the cluster's objects that had to be left out, by the faulty field."},
	"conntrack_entries":           {nil, "Connections that the kernel tracks in the node's network."},
	"conntrack_limit":             {nil, "Connections that the kernel tracks at most. New ones beyond that fail."},
	"source_faults":               {[]string{"source"}, "Things of the source that cannot be read or used now, such as objects in manifests."},
	"source_silent_watches_total": {[]string{"source"}, "Watches that were given up because they were silent for too long; the kind was listed again."},
	"source_restores_total":       {[]string{"source"}, "How often the resource version went backwards, as after a restore of etcd; everything was listed again."},
	"relay_open_files":            {nil, "Files that the relay of mode userspace has open: listeners, connections and UDP clients."},
	"relay_open_files_limit":      {nil, "Files that the relay of mode userspace may have open."},
	"relay_refused_total":         {reason, "Connections and datagrams that the relay of mode userspace refused, by reason."},
	"relay_unreached_total":       {family, "Clients of the relay, or of NodePorts on loopback addresses, for which no endpoint could be reached."},
	"standby":                     {nil, "1 while another service proxy programs the node in place of this one, else 0."},
	"blocked":                     {reason, "1 for each condition that keeps traffic from flowing though all is programmed."},
	"condition":                   {[]string{"condition"}, "1 for each condition that needs an operator's attention."},
	// Those that answer are far more, so only the others are counted.
	"silent_endpoints":              {[]string{"use"}, "Endpoints that do not answer while others of their Service port do: out if one Service leaves them out, else in."},
	"silent_endpoint_changes_total": {[]string{"change"}, "Endpoints that fell silent, and silent ones that answer or left."},
	// With countTraffic only. MostNamed of package traffic bounds the Services.
	"service_connections_total": {carried, "Connections that Services took, by Service for those with the most; without a name, those of all others together."},
	"service_packets_total":     {directed, "Packets that Services carried, in to endpoints and out from them, by Service like the connections."},
	"service_bytes_total":       {directed, "Bytes that Services carried, like the packets."},
}

// histograms, by the name without its prefix. All are kube-proxy's.
var histograms = map[string]metric{
	"sync_proxy_rules_duration_seconds":          {family, "Duration of rounds."},
	"sync_full_proxy_rules_duration_seconds":     {family, "Duration of rounds that compared everything."},
	"sync_partial_proxy_rules_duration_seconds":  {family, "Duration of rounds that compared what changed."},
	networkProgramming:                           {family, "Time from a change of endpoints in the cluster until it is in force."},
	"conntrack_reconciler_sync_duration_seconds": {family, "Duration of searches for stale connection tracking entries."},
}

const networkProgramming = "network_programming_duration_seconds"

// kubernetes are the metrics without our prefix that every Kubernetes component has.
var kubernetes = map[string]metric{
	"kubernetes_build_info": {
		[]string{"major", "minor", "git_version", "git_commit", "git_tree_state", "build_date", "go_version", "compiler", "platform"},
		"1, labelled with what the program was built from.",
	},
	"kubernetes_feature_enabled": {[]string{"name", "stage"}, "1 for each feature gate that is on, 0 for the others."},
	// These two are served under /metrics/slis.
	"kubernetes_healthcheck":        {[]string{"name", "type"}, "Result of the latest health check."},
	"kubernetes_healthchecks_total": {[]string{"name", "status", "type"}, "Results of health checks."},
}

// registers are counters of the metrics themselves, which every component has. None is hidden here.
var registers = map[string]metric{
	registered:               {[]string{"stability_level", "deprecated_version"}, "Metrics by stability and the version since when they are deprecated."},
	"hidden_metrics_total":   {nil, "Deprecated metrics that are hidden."},
	"disabled_metrics_total": {nil, "Metrics that were disabled."},
}

const registered = "registered_metrics_total"

// clients are every client's of the API server, with the buckets of all other components.
var clients = map[string]metric{
	clientRequests:     {[]string{"code", "method", "host"}, "Requests to the API server by status code, method and host; the code is <error> without an answer."},
	clientRetries:      {[]string{"code", "verb", "host"}, "Requests that were tried again."},
	clientDuration:     {[]string{"verb", "host"}, "Time until the API server answered."},
	clientRateLimiter:  {[]string{"verb", "host"}, "Time that requests waited for the limits on queries per second and bursts."},
	clientRequestSize:  {[]string{"verb", "host"}, "Size of requests."},
	clientResponseSize: {[]string{"verb", "host"}, "Size of answers; those of watches do not count."},
	clientResolver:     {[]string{"host"}, "Time to resolve the API server's name."},
}

// Names of metrics in clients.
const (
	clientRequests     = "rest_client_requests_total"
	clientRetries      = "rest_client_request_retries_total"
	clientDuration     = "rest_client_request_duration_seconds"
	clientRateLimiter  = "rest_client_rate_limiter_duration_seconds"
	clientRequestSize  = "rest_client_request_size_bytes"
	clientResponseSize = "rest_client_response_size_bytes"
	clientResolver     = "rest_client_dns_resolution_duration_seconds"
)

type metric struct {
	labels []string
	help   string
}

// buckets returns the upper bounds for the histogram of the given name.
func buckets(name string) []float64 {
	upTo30 := []float64{0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30}
	switch name {
	case clientDuration, clientRateLimiter:
		return append(upTo30, 60)
	case clientResolver:
		return upTo30
	case clientRequestSize, clientResponseSize:
		return slices.Concat([]float64{64, 256, 512}, prometheus.ExponentialBuckets(1<<10, 4, 8))
	case networkProgramming:
		return slices.Concat(
			prometheus.LinearBuckets(0.25, 0.25, 2),
			prometheus.LinearBuckets(1, 1, 59),
			prometheus.LinearBuckets(60, 5, 12),
			prometheus.LinearBuckets(120, 30, 7),
		)
	}
	return prometheus.ExponentialBuckets(0.001, 2, 15)
}

// Backend identifies one dataplane of one family.
type Backend struct {
	Mode   string // such as "nftables"
	Family service.Family
}

func (b Backend) labels() []string { return []string{b.Mode, b.Family.String()} }

// Client has the API client's metrics, as hooks of k8s.io/client-go/tools/metrics.
type Client struct {
	Requests     ClientRequests
	Retries      ClientRetries
	Duration     ClientDuration
	RateLimiter  ClientDuration
	RequestSize  ClientSize
	ResponseSize ClientSize
	Resolver     ClientResolver
}

type (
	// ClientRequests counts requests.
	ClientRequests struct{ *prometheus.CounterVec }
	// ClientRetries counts retried requests.
	ClientRetries struct{ *prometheus.CounterVec }
	// ClientDuration observes durations.
	ClientDuration struct{ *prometheus.HistogramVec }
	// ClientSize observes sizes in bytes.
	ClientSize struct{ *prometheus.HistogramVec }
	// ClientResolver observes the duration of name resolution.
	ClientResolver struct{ *prometheus.HistogramVec }
)

// Client creates and registers the metrics of a client. It must be called only once.
func (m *Metrics) Client() Client {
	counter := func(name string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: clients[name].help}, clients[name].labels)
		m.registry.MustRegister(c)
		return c
	}
	histogram := func(name string) *prometheus.HistogramVec {
		h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: clients[name].help, Buckets: buckets(name)}, clients[name].labels)
		m.registry.MustRegister(h)
		return h
	}
	return Client{
		Requests:     ClientRequests{counter(clientRequests)},
		Retries:      ClientRetries{counter(clientRetries)},
		Duration:     ClientDuration{histogram(clientDuration)},
		RateLimiter:  ClientDuration{histogram(clientRateLimiter)},
		RequestSize:  ClientSize{histogram(clientRequestSize)},
		ResponseSize: ClientSize{histogram(clientResponseSize)},
		Resolver:     ClientResolver{histogram(clientResolver)},
	}
}

// Increment counts a request.
func (c ClientRequests) Increment(_ context.Context, code, method, host string) {
	c.WithLabelValues(printables([]string{code, method, host})...).Inc()
}

// IncrementRetry counts a retried request.
func (c ClientRetries) IncrementRetry(_ context.Context, code, method, host string) {
	c.WithLabelValues(printables([]string{code, method, host})...).Inc()
}

// Observe records a duration. Of the URL it keeps only the host.
func (c ClientDuration) Observe(_ context.Context, verb string, u url.URL, took time.Duration) {
	c.WithLabelValues(printables([]string{verb, u.Host})...).Observe(took.Seconds())
}

// Observe records a size.
func (c ClientSize) Observe(_ context.Context, verb, host string, size float64) {
	c.WithLabelValues(printables([]string{verb, host})...).Observe(size)
}

// Observe records the duration of a name resolution.
func (c ClientResolver) Observe(_ context.Context, host string, took time.Duration) {
	c.WithLabelValues(printables([]string{host})...).Observe(took.Seconds())
}

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

// Options configure Metrics.
type Options struct {
	// Backends are those whose counters are present from the start, with value 0.
	Backends []Backend
	Build    Build
	Features []Feature
	Groups   []string // of metrics that the mode has
}

// Build describes the build of the program.
type Build struct {
	Major, Minor, GitVersion, GitCommit, GitTreeState string
	BuildDate, GoVersion, Compiler, Platform          string
}

// Feature is a feature gate.
type Feature struct {
	Name, Stage string // the stage is "ALPHA", "BETA", "DEPRECATED" or empty
	Enabled     bool
}

// Observation is the state at one moment.
type Observation struct {
	OldestPending map[service.Family]time.Duration // age; 0 without a pending change
	Sources       []Source
	Services      map[string]int // by state
	Unserved      map[string]int // Services, by reason
	Skipped       map[string]int // by reason; there must be few reasons
	Standby       bool           // another process programs the node
	Conditions    []string       // the names of those that hold
	Unreached     map[service.Family]uint64
	Blocked       []string       // the names of those that keep traffic from flowing
	Tracked       *Tracked       // nil where unknown
	Packets       *Packets       // nil if no iptables rules count packets
	Relay         *Relay         // nil if the process relays no connections
	Traffic       *traffic.Named // nil if nothing is counted
	Silent        Silent
	// Localhost has the families whose loopback address has listeners.
	Localhost map[service.Family]Localhost
	// Accelerated counts the connections that sockets made without translation, if they do.
	Accelerated map[service.Family]uint64
	// Unrelayed counts the SCTP packets to NodePorts of the loopback address that rules
	// refused. It has the families with such rules, or that would have them.
	Unrelayed map[service.Family]uint64
}

// Relay is the open files of relayed connections, their limit, and refused clients by reason.
type Relay struct {
	Open, Limit int
	Refused     map[string]uint64
}

// Silent counts endpoints that do not answer, that fell silent, and of which that is over.
type Silent struct {
	LeftOut, Kept int
	Fell, Over    uint64
}

// Packets are the counters of iptables rules.
type Packets struct{ Invalid, Loopback uint64 }

// Localhost counts listeners for NodePorts on a loopback address, and failures to open one.
type Localhost struct{ Listeners, Failures int }

// Tracked is the number of conntrack entries and their limit.
type Tracked struct{ Entries, Limit int64 }

// Source is the state of a source of objects.
type Source struct {
	Name      string
	Synced    bool
	Staleness time.Duration // since it was last known to be up to date, or the start
	Silent    int           // number of watches given up so far
	Restored  int           // how often the resource version went backwards so far
	Faults    int           // things that cannot be read or used at present
}

// Metrics holds every metric. All methods may be called from any goroutine.
type Metrics struct {
	options    Options
	registry   *prometheus.Registry
	slis       *prometheus.Registry
	counters   map[string]*prometheus.CounterVec
	gauges     map[string]*prometheus.GaugeVec
	histograms map[string]*prometheus.HistogramVec
	checks     *prometheus.GaugeVec
	checked    *prometheus.CounterVec

	mu         sync.Mutex
	observe    func() Observation // nil before Observe
	programmed map[Backend]programmed
	changes    changes
}

// changes counts those that no round has programmed yet.
type changes struct{ services, endpoints int }

// programmed is what a backend has in force.
type programmed struct {
	snapshot *service.Snapshot
	failed   map[service.PortName]bool
}

// New returns Metrics with their own registry.
func New(o Options) *Metrics {
	m := &Metrics{
		options:    o,
		registry:   prometheus.NewRegistry(),
		slis:       prometheus.NewRegistry(),
		counters:   map[string]*prometheus.CounterVec{},
		gauges:     map[string]*prometheus.GaugeVec{},
		histograms: map[string]*prometheus.HistogramVec{},
		programmed: map[Backend]programmed{},
	}
	for name, c := range counters {
		m.counters[name] = prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: Namespace, Name: name, Help: c.help}, c.labels)
		m.registry.MustRegister(m.counters[name])
	}
	for name, g := range gauges {
		m.gauges[name] = prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: Namespace, Name: name, Help: g.help}, g.labels)
		m.registry.MustRegister(m.gauges[name])
	}
	for name, h := range histograms {
		m.histograms[name] = prometheus.NewHistogramVec(
			prometheus.HistogramOpts{Namespace: Namespace, Name: name, Help: h.help, Buckets: buckets(name)}, h.labels)
		m.registry.MustRegister(m.histograms[name])
	}
	m.registry.MustRegister(newObserver(m), collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.component()
	m.initSeries()
	return m
}

// Observe adds the gauges of Observation. Each scrape calls now, from any goroutine.
func (m *Metrics) Observe(now func() Observation) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.observe = now
}

// observation returns the present Observation, empty before Observe.
func (m *Metrics) observation() Observation {
	m.mu.Lock()
	observe := m.observe
	m.mu.Unlock()
	if observe == nil {
		return Observation{}
	}
	return observe()
}

// component adds the metrics that every Kubernetes component has.
func (m *Metrics) component() {
	gauge := func(name string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: kubernetes[name].help}, kubernetes[name].labels)
	}
	build, feature := gauge("kubernetes_build_info"), gauge("kubernetes_feature_enabled")
	m.registry.MustRegister(build, feature)
	b := m.options.Build
	build.WithLabelValues(printables([]string{b.Major, b.Minor, b.GitVersion, b.GitCommit, b.GitTreeState,
		b.BuildDate, b.GoVersion, b.Compiler, b.Platform})...).Set(1)
	for _, f := range m.options.Features {
		feature.WithLabelValues(printables([]string{f.Name, f.Stage})...).Set(boolValue(f.Enabled))
	}
	for name, x := range registers {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: x.help}, x.labels)
		m.registry.MustRegister(c)
		if name == registered { // kube-proxy exposes them as ALPHA
			c.WithLabelValues("ALPHA", "").Add(float64(len(counters) + len(gauges) + len(observed) + len(histograms)))
			continue
		}
		c.WithLabelValues()
	}
	const checked = "kubernetes_healthchecks_total"
	m.checks = gauge("kubernetes_healthcheck")
	m.checked = prometheus.NewCounterVec(prometheus.CounterOpts{Name: checked, Help: kubernetes[checked].help}, kubernetes[checked].labels)
	m.slis.MustRegister(m.checks, m.checked)
}

// initSeries creates the series whose labels are known. If a counter appears with its
// first event, rate() misses that event:
// https://prometheus.io/docs/practices/instrumentation/#avoid-missing-metrics.
func (m *Metrics) initSeries() {
	for name, c := range counters {
		switch {
		case len(c.labels) == 0:
			m.counters[name].WithLabelValues()
		case c.labels[0] == code[0]:
			m.counters[name].WithLabelValues("200")
			m.counters[name].WithLabelValues("503")
		case c.labels[0] == result[0]:
			for _, r := range reloads {
				m.counters[name].WithLabelValues(string(r))
			}
		case c.labels[0] == reason[0]:
			for _, r := range dropReasons {
				m.counters[name].WithLabelValues(r)
			}
		}
	}
	for name, g := range gauges {
		if len(g.labels) == 0 {
			m.gauges[name].WithLabelValues()
		}
	}
	for _, b := range m.options.Backends {
		m.initBackendSeries(b)
	}
}

func (m *Metrics) initBackendSeries(b Backend) {
	for name, c := range counters {
		switch {
		case len(c.labels) == 2:
			m.counters[name].WithLabelValues(b.labels()...)
		case len(c.labels) == 1 && c.labels[0] == family[0] && m.applies(name):
			m.counters[name].WithLabelValues(b.Family.String())
		}
	}
	m.gauges["failed_service_ports"].WithLabelValues(b.labels()...)
	m.gauges["limited_service_ports"].WithLabelValues(b.labels()...)
}

// Register adds metrics of a mode. Those that are registered already are left out.
func (m *Metrics) Register(all []prometheus.Collector) {
	for _, c := range all {
		var already prometheus.AlreadyRegisteredError
		if err := m.registry.Register(c); err != nil && !errors.As(err, &already) {
			panic(err) // two metrics of one name: a mistake in the program
		}
	}
}

// Handler serves all metrics except the results of health checks.
func (m *Metrics) Handler() http.Handler { return handler(m.registry) }

// SLIs serves the results of health checks, for scrapes at short intervals.
func (m *Metrics) SLIs() http.Handler { return handler(m.slis) }

func handler(r *prometheus.Registry) http.Handler {
	// One value that cannot be collected must not hide the others.
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError})
}

// printables returns label values without control characters and invalid UTF-8. The text
// format escapes only line breaks, backslashes and quotes, and a value that is not UTF-8
// causes a panic:
// https://prometheus.io/docs/instrumenting/exposition_formats/#comments-help-text-and-type-information
func printables(labels []string) []string {
	all := make([]string, len(labels))
	for i, l := range labels {
		all[i] = printable.Text(l)
	}
	return all
}

func boolValue(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
