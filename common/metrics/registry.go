// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"kubeproxy/common/printable"
	"kubeproxy/common/service"
	"kubeproxy/common/traffic"
)

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
	Tracked       *Tracked       // nil where unknown
	Packets       *Packets       // nil if no iptables rules count packets
	Relay         *Relay         // nil if the process relays no connections
	Traffic       *traffic.Named // nil if nothing is counted
	// Localhost has the families whose loopback address has listeners.
	Localhost map[service.Family]Localhost
	// Accelerated counts the connections that sockets made without translation. It has the
	// families with socket acceleration.
	Accelerated map[service.Family]uint64
	// Unrelayed counts the SCTP packets to NodePorts of the loopback address that rules
	// refused. It has the families with such rules, or that would have them.
	Unrelayed map[service.Family]uint64
}

// Relay is the number of open files that relayed connections use, their limit, and the
// number of refused clients by reason.
type Relay struct {
	Open, Limit int
	Refused     map[string]uint64
}

// Packets are the counters of iptables rules.
type Packets struct{ Invalid, Loopback uint64 }

// Localhost counts the listeners for NodePorts on a loopback address, and the failures to
// open one.
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

// Observe adds the gauges of Observation. Each scrape calls now, possibly from several
// goroutines.
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
