// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/common/traffic"
	"kubeproxy/test/kit"
)

// seconds are the buckets of most durations.
const seconds = "0.001 0.002 0.004 0.008 0.016 0.032 0.064 0.128 0.256 0.512 1.024 2.048 4.096 8.192 16.384"

// minutes are those of network_programming_duration_seconds.
const minutes = "0.25 0.5 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 " +
	"31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 " +
	"60 65 70 75 80 85 90 95 100 105 110 115 120 150 180 210 240 270 300"

// latencies and sizes are those of an API client's metrics.
const (
	latencies = "0.005 0.025 0.1 0.25 0.5 1 2 4 8 15 30"
	sizes     = "64 256 512 1024 4096 16384 65536 262144 1.048576e+06 4.194304e+06 1.6777216e+07"
)

// documented are the metrics that dashboards rely on, as name: type{labels} buckets.
var documented = map[string]string{
	// The names and shapes of kube-proxy 1.36.
	"kubeproxy_sync_proxy_rules_duration_seconds":                            "HISTOGRAM{ip_family} " + seconds,
	"kubeproxy_sync_full_proxy_rules_duration_seconds":                       "HISTOGRAM{ip_family} " + seconds,
	"kubeproxy_sync_partial_proxy_rules_duration_seconds":                    "HISTOGRAM{ip_family} " + seconds,
	"kubeproxy_sync_proxy_rules_last_timestamp_seconds":                      "GAUGE{ip_family}",
	"kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds":               "GAUGE{ip_family}",
	"kubeproxy_network_programming_duration_seconds":                         "HISTOGRAM{ip_family} " + minutes,
	"kubeproxy_sync_proxy_rules_endpoint_changes_pending":                    "GAUGE{}",
	"kubeproxy_sync_proxy_rules_endpoint_changes_total":                      "COUNTER{}",
	"kubeproxy_sync_proxy_rules_service_changes_pending":                     "GAUGE{}",
	"kubeproxy_sync_proxy_rules_service_changes_total":                       "COUNTER{}",
	"kubeproxy_socket_acceleration_connections_total":                        "COUNTER{ip_family}",
	"kubeproxy_nftables_localhost_nodeport_listeners":                        "GAUGE{ip_family}",
	"kubeproxy_nftables_localhost_nodeport_listener_creation_failures_total": "COUNTER{ip_family}",
	"kubeproxy_sync_proxy_rules_no_local_endpoints_total":                    "GAUGE{ip_family,traffic_policy}",
	"kubeproxy_proxy_healthz_total":                                          "COUNTER{code}",
	"kubeproxy_proxy_livez_total":                                            "COUNTER{code}",
	"kubeproxy_sync_proxy_rules_nftables_sync_failures_total":                "COUNTER{ip_family}",
	"kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total":             "COUNTER{ip_family}",
	"kubeproxy_sync_proxy_rules_iptables_restore_failures_total":             "COUNTER{ip_family}",
	"kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total":     "COUNTER{ip_family}",
	"kubeproxy_sync_proxy_rules_iptables_total":                              "GAUGE{ip_family,table}",
	"kubeproxy_sync_proxy_rules_iptables_last":                               "GAUGE{ip_family,table}",
	"kubeproxy_iptables_ct_state_invalid_dropped_packets_total":              "COUNTER{}",
	"kubeproxy_nftables_localhost_nodeport_rejected_packets_total":           "COUNTER{ip_family,protocol}",
	"kubeproxy_iptables_localhost_nodeports_accepted_packets_total":          "COUNTER{}",
	"kubeproxy_conntrack_reconciler_sync_duration_seconds":                   "HISTOGRAM{ip_family} " + seconds,
	"kubeproxy_conntrack_reconciler_deleted_entries_total":                   "COUNTER{ip_family}",
	"kubernetes_build_info":                                                  "GAUGE{build_date,compiler,git_commit,git_tree_state,git_version,go_version,major,minor,platform}",
	"kubernetes_feature_enabled":                                             "GAUGE{name,stage}",
	"registered_metrics_total":                                               "COUNTER{deprecated_version,stability_level}",
	"hidden_metrics_total":                                                   "COUNTER{}",
	"disabled_metrics_total":                                                 "COUNTER{}",
	// These are the metrics of every client of the API server.
	"rest_client_requests_total":                  "COUNTER{code,host,method}",
	"rest_client_request_retries_total":           "COUNTER{code,host,verb}",
	"rest_client_request_duration_seconds":        "HISTOGRAM{host,verb} " + latencies + " 60",
	"rest_client_rate_limiter_duration_seconds":   "HISTOGRAM{host,verb} " + latencies + " 60",
	"rest_client_dns_resolution_duration_seconds": "HISTOGRAM{host} " + latencies,
	"rest_client_request_size_bytes":              "HISTOGRAM{host,verb} " + sizes,
	"rest_client_response_size_bytes":             "HISTOGRAM{host,verb} " + sizes,
	// Ours.
	"kubeproxy_programmed_service_ports":                     "GAUGE{backend,ip_family}",
	"kubeproxy_programmed_endpoints":                         "GAUGE{backend,ip_family}",
	"kubeproxy_failed_service_ports":                         "GAUGE{backend,ip_family}",
	"kubeproxy_limited_service_ports":                        "GAUGE{backend,ip_family}",
	"kubeproxy_config_reloads_total":                         "COUNTER{result}",
	"kubeproxy_config_last_reload_successful":                "GAUGE{}",
	"kubeproxy_config_last_reload_success_timestamp_seconds": "GAUGE{}",
	"kubeproxy_drift_found_total":                            "COUNTER{backend,ip_family}",
	"kubeproxy_drift_repaired_total":                         "COUNTER{backend,ip_family}",
	"kubeproxy_sync_failures_total":                          "COUNTER{backend,ip_family}",
	"kubeproxy_second_draws_total":                           "COUNTER{ip_family}",
	"kubeproxy_orphans_ended_total":                          "COUNTER{ip_family}",
	"kubeproxy_connections_rebalanced_total":                 "COUNTER{ip_family}",
	"kubeproxy_oldest_pending_change_age_seconds":            "GAUGE{ip_family}",
	"kubeproxy_source_staleness_seconds":                     "GAUGE{source}",
	"kubeproxy_silent_endpoints":                             "GAUGE{use}",
	"kubeproxy_silent_endpoint_changes_total":                "COUNTER{change}",
	"kubeproxy_standby":                                      "GAUGE{}",
	"kubeproxy_source_synced":                                "GAUGE{source}",
	"kubeproxy_skipped_objects":                              "GAUGE{reason}",
	"kubeproxy_source_faults":                                "GAUGE{source}",
	"kubeproxy_source_silent_watches_total":                  "COUNTER{source}",
	"kubeproxy_source_restores_total":                        "COUNTER{source}",
	"kubeproxy_relay_open_files":                             "GAUGE{}",
	"kubeproxy_relay_open_files_limit":                       "GAUGE{}",
	"kubeproxy_relay_refused_total":                          "COUNTER{reason}",
	"kubeproxy_relay_unreached_total":                        "COUNTER{ip_family}",
	"kubeproxy_blocked":                                      "GAUGE{reason}",
	"kubeproxy_condition":                                    "GAUGE{condition}",
	"kubeproxy_conntrack_entries":                            "GAUGE{}",
	"kubeproxy_conntrack_limit":                              "GAUGE{}",
	"kubeproxy_services":                                     "GAUGE{state}",
	"kubeproxy_unserved_services":                            "GAUGE{reason}",
	"kubeproxy_events_written_total":                         "COUNTER{}",
	"kubeproxy_events_dropped_total":                         "COUNTER{reason}",
	"kubeproxy_service_connections_total":                    "COUNTER{namespace,service}",
	"kubeproxy_service_packets_total":                        "COUNTER{direction,namespace,service}",
	"kubeproxy_service_bytes_total":                          "COUNTER{direction,namespace,service}",
}

var (
	v4     = Backend{"nftables", service.IPv4}
	legacy = Backend{"iptables", service.IPv6}
)

// fed returns Metrics that have recorded everything once.
func fed() *Metrics {
	m := New(Options{
		Backends: []Backend{v4, legacy}, Groups: []string{NFTables, IPTables, Conntrack},
		Build:    Build{Major: "1", Minor: "37", GitVersion: "v1.37.0", Platform: "linux/amd64"},
		Features: []Feature{{"WinDSR", "", true}, {"Slow", "ALPHA", false}},
	})
	m.Observe(func() Observation {
		return Observation{
			OldestPending: map[service.Family]time.Duration{service.IPv4: 3 * time.Second},
			Sources:       []Source{{"apiserver", true, 90 * time.Second, 2, 1, 4}},
			Services:      map[string]int{"programmed": 5, "failed": 1},
			Unserved:      map[string]int{"noEndpoints": 2},
			Skipped:       map[string]int{"spec.ports.nodePort": 2},
			Conditions:    []string{"configuration"},
			Unreached:     map[service.Family]uint64{service.IPv4: 2},
			Blocked:       []string{"health-checks"},
			Tracked:       &Tracked{Entries: 7, Limit: 262144},
			Packets:       &Packets{Invalid: 5, Loopback: 6},
			Relay:         &Relay{Open: 8, Limit: 9, Refused: map[string]uint64{"loop": 1}},
			Localhost:     map[service.Family]Localhost{service.IPv4: {Listeners: 2, Failures: 1}},
			Accelerated:   map[service.Family]uint64{service.IPv4: 4},
			Unrelayed:     map[service.Family]uint64{service.IPv4: 8},
			Traffic: &traffic.Named{
				Counted:  traffic.Kinds{Packets: true, Bytes: true},
				Services: []traffic.Service{{Namespace: "shop", Name: "web", Counts: traffic.Counts{Connections: 7, BytesIn: 9}}},
				Rest:     traffic.Counts{Connections: 3},
			},
		}
	})
	s := service.New(1, &service.Node{NodePorts: service.AnyAddress()}, nil)
	m.Result(v4, reconcile.Result{Took: 3 * time.Second, Snapshot: s, Outcome: reconcile.Outcome{FullSync: true}})
	m.Result(v4, reconcile.Result{Took: time.Second, Snapshot: s})
	m.Result(legacy, reconcile.Result{Took: time.Second, Snapshot: s, Outcome: reconcile.Outcome{Rules: &reconcile.Rules{
		Refused: true, Held: map[string]int{"nat": 40, "filter": 20}, Written: map[string]int{"nat": 3, "filter": 0},
	}}})
	m.Queued(v4, time.Unix(7, 0))
	m.EventWritten()
	m.EventDropped("full")
	m.InForce(service.IPv4, time.Second)
	m.Conntrack(service.IPv4, time.Second, 3)
	m.ConnectionsEnded(service.IPv4, 2, 1)
	m.DrewAgain(service.IPv4)
	feedClient(m.Client())
	return m
}

// feedClient calls every hook of a client once.
func feedClient(c Client) {
	ctx, u := context.Background(), url.URL{Scheme: "https", Host: "192.0.2.1:6443", Path: "/api/v1/services"}
	c.Requests.Increment(ctx, "200", "GET", u.Host)
	c.Retries.IncrementRetry(ctx, "429", "GET", u.Host)
	c.Duration.Observe(ctx, "GET", u, time.Second)
	c.RateLimiter.Observe(ctx, "GET", u, time.Second)
	c.RequestSize.Observe(ctx, "POST", u.Host, 100)
	c.ResponseSize.Observe(ctx, "GET", u.Host, 1e6)
	c.Resolver.Observe(ctx, "api.example.com", time.Second)
}

func TestNamesTypesLabelsBuckets(t *testing.T) {
	got := map[string]string{}
	for _, f := range gather(t, fed().registry) {
		got[f.name] = f.shape
	}
	general := 0
	for name := range maps.Clone(got) {
		if strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_") {
			general++
			delete(got, name)
		}
	}
	kit.Same(t, "(-want +got)", documented, got)
	kit.Check(t, general >= 20, "%d metrics of the process, want those of Go and of the system", general)
	listed := len(counters) + len(gauges) + len(observed) + len(histograms) + len(clients) + len(kubernetes) + len(registers) - 2 // which are SLIs
	kit.Check(t, listed == len(documented), "%d metrics are listed, %d documented", listed, len(documented))
}

func TestHealthChecksAreServedApart(t *testing.T) {
	m := New(Options{})
	m.Checked(Check{"IPv4", "livez", true})
	got := map[string]string{}
	for _, f := range gather(t, m.slis) {
		got[f.name] = f.shape
	}
	want := map[string]string{
		"kubernetes_healthcheck":        "GAUGE{name,type}",
		"kubernetes_healthchecks_total": "COUNTER{name,status,type}",
	}
	kit.Same(t, "(-want +got)", want, got)
}

// described is a metric as scraped.
type described struct {
	name, shape string
	values      map[string]float64 // by labels
}

func gather(t *testing.T, r *prometheus.Registry) []described {
	t.Helper()
	families, err := r.Gather()
	kit.Must(t, err)
	var all []described
	for _, f := range families {
		d := described{name: f.GetName(), values: map[string]float64{}}
		for _, x := range f.GetMetric() {
			var names, values, bounds []string
			for _, l := range x.GetLabel() {
				names, values = append(names, l.GetName()), append(values, l.GetValue())
			}
			for _, b := range x.GetHistogram().GetBucket() {
				bounds = append(bounds, fmt.Sprint(b.GetUpperBound()))
			}
			slices.Sort(names)
			d.shape = fmt.Sprintf("%s{%s}", f.GetType(), strings.Join(names, ","))
			if bounds != nil {
				d.shape += " " + strings.Join(bounds, " ")
			}
			v := x.GetGauge().GetValue() + x.GetCounter().GetValue() + x.GetHistogram().GetSampleSum()
			d.values[strings.Join(values, " ")] = v
		}
		all = append(all, d)
	}
	return all
}

// value returns one value, -1 if there is none.
func value(t *testing.T, r *prometheus.Registry, name, labels string) float64 {
	t.Helper()
	for _, d := range gather(t, r) {
		if v, ok := d.values[labels]; ok && d.name == name {
			return v
		}
	}
	return -1
}

// values maps "name labels" to a value, without the prefix of ours.
type values map[string]float64

func (va values) check(t *testing.T, m *Metrics) {
	t.Helper()
	for key, v := range va {
		name, labels, _ := strings.Cut(key, " ")
		kit.Equal(t, value(t, m.registry, "kubeproxy_"+name, labels), v, "%s", key)
	}
}

func TestEverythingHasAValue(t *testing.T) {
	values{
		"sync_proxy_rules_duration_seconds IPv4":                        4,
		"sync_full_proxy_rules_duration_seconds IPv4":                   3,
		"sync_partial_proxy_rules_duration_seconds IPv4":                1,
		"sync_proxy_rules_last_queued_timestamp_seconds IPv4":           7,
		"network_programming_duration_seconds IPv4":                     1,
		"conntrack_reconciler_deleted_entries_total IPv4":               3,
		"conntrack_reconciler_sync_duration_seconds IPv4":               1,
		"oldest_pending_change_age_seconds IPv4":                        3,
		"source_staleness_seconds apiserver":                            90,
		"source_synced apiserver":                                       1,
		"source_faults apiserver":                                       4,
		"services failed":                                               1,
		"unserved_services noEndpoints":                                 2,
		"events_written_total ":                                         1,
		"events_dropped_total full":                                     1,
		"events_dropped_total forbidden":                                0,
		"skipped_objects spec.ports.nodePort":                           2,
		"condition configuration":                                       1,
		"nftables_localhost_nodeport_rejected_packets_total IPv4 SCTP":  8,
		"iptables_ct_state_invalid_dropped_packets_total ":              5,
		"iptables_localhost_nodeports_accepted_packets_total ":          6,
		"sync_proxy_rules_iptables_restore_failures_total IPv6":         1,
		"sync_proxy_rules_iptables_partial_restore_failures_total IPv6": 1,
		"sync_proxy_rules_iptables_total IPv6 nat":                      40,
		"sync_proxy_rules_iptables_total IPv6 filter":                   20,
		"sync_proxy_rules_iptables_last IPv6 nat":                       3,
		"sync_proxy_rules_iptables_last IPv6 filter":                    0,
	}.check(t, fed())
}

// Counters exist from the start, even if they never increase.
func TestCountersStartAtZero(t *testing.T) {
	values{
		"drift_found_total nftables IPv4":                       0,
		"drift_repaired_total nftables IPv4":                    0,
		"failed_service_ports nftables IPv4":                    0,
		"proxy_healthz_total 503":                               0,
		"proxy_livez_total 200":                                 0,
		"sync_proxy_rules_service_changes_pending ":             0,
		"sync_proxy_rules_endpoint_changes_total ":              0,
		"sync_proxy_rules_nftables_sync_failures_total IPv4":    0,
		"sync_proxy_rules_nftables_sync_failures_total IPv6":    -1,
		"sync_proxy_rules_nftables_cleanup_failures_total IPv4": 0,
		"sync_proxy_rules_iptables_restore_failures_total IPv4": -1,
	}.check(t, New(Options{Backends: []Backend{v4}, Groups: []string{NFTables, Conntrack}}))
	values{
		"sync_failures_total iptables IPv6":                             0,
		"conntrack_reconciler_deleted_entries_total IPv6":               0,
		"sync_proxy_rules_nftables_sync_failures_total IPv6":            -1,
		"sync_proxy_rules_iptables_restore_failures_total IPv6":         0,
		"sync_proxy_rules_iptables_partial_restore_failures_total IPv6": 0,
	}.check(t, New(Options{Backends: []Backend{legacy}, Groups: []string{IPTables, Conntrack}}))
	values{
		"conntrack_reconciler_deleted_entries_total IPv4": -1,
		"sync_failures_total kernelspace IPv4":            0,
	}.check(t, New(Options{Backends: []Backend{{"kernelspace", service.IPv4}}}))
}

// cluster has a port with two endpoints, one of them local, and two ports that policy
// Local leaves without endpoints.
func cluster() *service.Snapshot {
	at := func(s string) service.Endpoint { return service.Endpoint{Addr: netip.MustParseAddrPort(s)} }
	a, b := at("10.1.0.1:80"), at("10.1.0.2:80")
	name := func(n string) service.PortName {
		return service.PortName{Namespace: "shop", Name: n, Protocol: service.TCP}
	}
	vip, lb := service.Frontend{Kind: service.ClusterIP, Port: 80}, service.Frontend{Kind: service.LoadBalancerIP, Port: 80}
	return service.New(4, &service.Node{NodePorts: service.AnyAddress()}, []*service.Port{
		{Name: name("both"), Frontends: []service.Frontend{vip}, Cluster: []service.Endpoint{a}, Local: []service.Endpoint{a, b}, Internal: service.PolicyLocal},
		{Name: name("inner"), Frontends: []service.Frontend{vip, lb}, Cluster: []service.Endpoint{a, b}, Internal: service.PolicyLocal},
		{Name: name("outer"), Frontends: []service.Frontend{vip, lb}, Cluster: []service.Endpoint{a}, External: service.PolicyLocal},
		{Name: name("none"), Frontends: []service.Frontend{vip, lb}, External: service.PolicyLocal},
	})
}

func TestRounds(t *testing.T) {
	refused := errors.New("refused")
	port := &reconcile.PortError{Name: service.PortName{Namespace: "shop", Name: "inner", Protocol: service.TCP}, Err: refused}
	limit := &reconcile.PortError{Name: port.Name, Err: &reconcile.UnsupportedError{Text: "cannot"}}
	start := time.Unix(1000, 0)
	for name, tt := range map[string]struct {
		err  error
		want values
	}{
		"went well": {nil, values{
			"programmed_service_ports nftables IPv4":                  4,
			"programmed_endpoints nftables IPv4":                      5,
			"failed_service_ports nftables IPv4":                      0,
			"sync_proxy_rules_no_local_endpoints_total IPv4 internal": 1,
			"sync_proxy_rules_no_local_endpoints_total IPv4 external": 1,
			"sync_proxy_rules_last_timestamp_seconds IPv4":            1002,
			"drift_found_total nftables IPv4":                         2,
			"drift_repaired_total nftables IPv4":                      2,
			"sync_failures_total nftables IPv4":                       0,
			"sync_proxy_rules_nftables_sync_failures_total IPv4":      0,
		}},
		"but for one port": {errors.Join(port), values{
			"programmed_service_ports nftables IPv4":                  3,
			"programmed_endpoints nftables IPv4":                      3,
			"failed_service_ports nftables IPv4":                      1,
			"sync_proxy_rules_no_local_endpoints_total IPv4 internal": 0,
			"sync_proxy_rules_last_timestamp_seconds IPv4":            -1,
			"drift_repaired_total nftables IPv4":                      0,
			"sync_failures_total nftables IPv4":                       1,
		}},
		"all that can be": {limit, values{
			"programmed_service_ports nftables IPv4":             4,
			"failed_service_ports nftables IPv4":                 0,
			"limited_service_ports nftables IPv4":                1,
			"sync_proxy_rules_last_timestamp_seconds IPv4":       1002,
			"drift_repaired_total nftables IPv4":                 2,
			"sync_failures_total nftables IPv4":                  0,
			"sync_proxy_rules_nftables_sync_failures_total IPv4": 0,
		}},
		"not at all": {errors.Join(port, refused), values{
			"programmed_service_ports nftables IPv4":             -1,
			"failed_service_ports nftables IPv4":                 0,
			"drift_found_total nftables IPv4":                    2,
			"drift_repaired_total nftables IPv4":                 0,
			"sync_failures_total nftables IPv4":                  1,
			"sync_proxy_rules_nftables_sync_failures_total IPv4": 1,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			m := New(Options{Backends: []Backend{v4}, Groups: []string{NFTables}})
			r := reconcile.Result{Start: start, Took: 2 * time.Second, Snapshot: cluster(), Outcome: reconcile.Outcome{Drift: []string{"a", "b"}, Err: tt.err}}
			m.Result(v4, r)
			tt.want.check(t, m)
		})
	}
}

// A failed round keeps the values of what is in force.
func TestFailureKeepsFigures(t *testing.T) {
	m := New(Options{})
	m.Result(v4, reconcile.Result{Snapshot: cluster()})
	m.Result(v4, reconcile.Result{Snapshot: service.New(5, &service.Node{NodePorts: service.AnyAddress()}, nil), Outcome: reconcile.Outcome{Err: io.ErrUnexpectedEOF}})
	values{"programmed_service_ports nftables IPv4": 4}.check(t, m)
}

// While one mode replaces another, both have something in force.
func TestTwoBackendsOfOneFamily(t *testing.T) {
	m := New(Options{})
	m.Result(v4, reconcile.Result{Snapshot: cluster()})
	m.Result(Backend{"iptables", service.IPv4}, reconcile.Result{Snapshot: service.New(5, &service.Node{NodePorts: service.AnyAddress()}, nil)})
	values{
		"programmed_service_ports nftables IPv4":                  4,
		"programmed_service_ports iptables IPv4":                  0,
		"sync_proxy_rules_no_local_endpoints_total IPv4 internal": 1,
	}.check(t, m)
}

func TestChanges(t *testing.T) {
	m := New(Options{})
	m.ServiceChanged()
	m.EndpointsChanged()
	m.EndpointsChanged()
	values{"sync_proxy_rules_endpoint_changes_pending ": 2, "sync_proxy_rules_service_changes_pending ": 1}.check(t, m)
	m.EndpointsUnchanged()
	m.ServiceUnchanged()
	values{"sync_proxy_rules_endpoint_changes_pending ": 1, "sync_proxy_rules_service_changes_pending ": 0}.check(t, m)
	m.ChangesSynced()
	m.EndpointsUnchanged() // too late to count
	values{
		"sync_proxy_rules_endpoint_changes_pending ": 0, "sync_proxy_rules_endpoint_changes_total ": 2,
		"sync_proxy_rules_service_changes_pending ": 0, "sync_proxy_rules_service_changes_total ": 1,
	}.check(t, m)
}

func TestAnswersAndChecks(t *testing.T) {
	m := New(Options{Groups: []string{NFTables}})
	m.HealthAnswered("/healthz", 503)
	m.HealthAnswered("/livez", 200)
	m.HealthAnswered("/else", 200)
	m.CleanupFailed(Backend{"nftables", service.IPv6})
	values{"proxy_healthz_total 503": 1, "proxy_healthz_total 200": 0, "proxy_livez_total 200": 1, "sync_proxy_rules_nftables_cleanup_failures_total IPv6": 1}.check(t, m)
	legacy := New(Options{Groups: []string{IPTables}})
	legacy.CleanupFailed(Backend{"iptables", service.IPv4})
	values{"sync_proxy_rules_nftables_cleanup_failures_total IPv4": -1}.check(t, legacy)
	m.Checked(Check{"IPv4", "livez", true})
	m.Checked(Check{"IPv4", "livez", false})
	for key, want := range map[string]float64{"IPv4 success livez": 1, "IPv4 error livez": 1} {
		kit.Equal(t, value(t, m.slis, "kubernetes_healthchecks_total", key), want, "%s", key)
	}
	got := value(t, m.slis, "kubernetes_healthcheck", "IPv4 livez")
	kit.Check(t, got == 0, "latest check = %v, want that it was in vain", got)
}

func TestHandlers(t *testing.T) {
	m := fed()
	m.Checked(Check{"IPv4", "healthz", true})
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	for _, want := range []string{
		`kubernetes_build_info{build_date="",compiler="",git_commit="",git_tree_state="",git_version="v1.37.0",go_version="",major="1",minor="37",platform="linux/amd64"} 1`,
		`kubernetes_feature_enabled{name="Slow",stage="ALPHA"} 0`,
		`kubernetes_feature_enabled{name="WinDSR",stage=""} 1`,
		"# TYPE go_goroutines gauge",
	} {
		kit.Check(t, strings.Contains(w.Body.String(), want+"\n"), "/metrics lacks %s", want)
	}
	w = httptest.NewRecorder()
	m.SLIs().ServeHTTP(w, httptest.NewRequest("GET", "/metrics/slis", nil))
	want := `kubernetes_healthcheck{name="IPv4",type="healthz"} 1`
	kit.Check(t, strings.Contains(w.Body.String(), want), "/metrics/slis = %s, want %s", w.Body, want)
}

// TestChartMetrics checks that every metric that the alerts and the dashboard of the chart
// name exists.
func TestChartMetrics(t *testing.T) {
	known := map[string]bool{}
	for name, shape := range documented {
		known[name] = true
		if strings.HasPrefix(shape, "HISTOGRAM") {
			known[name+"_bucket"], known[name+"_sum"], known[name+"_count"] = true, true, true
		}
	}
	for _, file := range []string{"rules.yaml", "dashboard.json"} {
		text := kit.ReadFile(t, "../../build/chart/files/"+file)
		names := regexp.MustCompile(`kubeproxy_\w+`).FindAllString(string(text), -1)
		kit.Check(t, len(names) >= 10, "%s names %d metrics", file, len(names))
		for _, name := range names {
			kit.Check(t, known[name], "%s: there is no metric %s", file, name)
		}
	}
}

func TestReloaded(t *testing.T) {
	const (
		good = "kubeproxy_config_last_reload_successful"
		when = "kubeproxy_config_last_reload_success_timestamp_seconds"
	)
	m := New(Options{})
	m.Loaded(time.Unix(1, 0))
	for i, step := range []struct {
		what       Reload
		good, when float64
	}{{Rejected, 0, 1}, {Rejected, 0, 1}, {Unchanged, 1, 12}, {Rejected, 0, 12}, {Applied, 1, 14}, {Restart, 1, 14}} {
		m.Reloaded(step.what, time.Unix(int64(10+i), 0))
		kit.Equal(t, value(t, m.registry, good, ""), step.good, "after step %d, %s: successful", i, step.what)
		kit.Equal(t, value(t, m.registry, when, ""), step.when, "after step %d, %s: timestamp", i, step.what)
	}
	for what, want := range map[Reload]float64{Rejected: 3, Applied: 1, Unchanged: 1, Restart: 1} {
		v := value(t, m.registry, "kubeproxy_config_reloads_total", string(what))
		kit.Check(t, v == want, "%s: counted %v, want %v", what, v, want)
	}
	v := value(t, New(Options{}).registry, "kubeproxy_config_reloads_total", "rejected")
	kit.Check(t, v == 0, "the counter is %v at the start, want 0", v)
}
