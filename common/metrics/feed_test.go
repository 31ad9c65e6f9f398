// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"errors"
	"io"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

// values maps "name labels" to a value, without the prefix of ours.
type values map[string]float64

func (va values) check(t *testing.T, m *Metrics) {
	t.Helper()
	for key, v := range va {
		name, labels, _ := strings.Cut(key, " ")
		if got := value(t, m.registry, "kubeproxy_"+name, labels); got != v {
			t.Errorf("%s = %v, want %v", key, got, v)
		}
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
		if got := value(t, m.slis, "kubernetes_healthchecks_total", key); got != want {
			t.Errorf("%s = %v, want %v", key, got, want)
		}
	}
	if got := value(t, m.slis, "kubernetes_healthcheck", "IPv4 livez"); got != 0 {
		t.Errorf("latest check = %v, want that it was in vain", got)
	}
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
		if !strings.Contains(w.Body.String(), want+"\n") {
			t.Errorf("/metrics lacks %s", want)
		}
	}
	w = httptest.NewRecorder()
	m.SLIs().ServeHTTP(w, httptest.NewRequest("GET", "/metrics/slis", nil))
	if want := `kubernetes_healthcheck{name="IPv4",type="healthz"} 1`; !strings.Contains(w.Body.String(), want) {
		t.Errorf("/metrics/slis = %s, want %s", w.Body, want)
	}
}
