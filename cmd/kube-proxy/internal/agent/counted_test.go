// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"

	"kubeproxy/common/logging"
	"kubeproxy/common/report"
	"kubeproxy/common/track"
	"kubeproxy/config"
	"kubeproxy/platform/modes"
	"kubeproxy/test/kit"
)

// page returns what a server answers.
func page(from http.Handler, path string) string {
	w := httptest.NewRecorder()
	from.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w.Body.String()
}

// TestCounted has what the API server does, and each health check, reach the metrics.
func TestCounted(t *testing.T) {
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	kit.WriteFile(t, kubeconfig, newFakeCluster(t, "one", 1).kubeconfig("one"))
	o, c := NewOptions(modes.All()), &config.Config{}
	c.ClientConnection.Kubeconfig = kubeconfig
	sources := report.NewSources()
	from, err := o.newSource("v1", c, "node-a", sources, klog.Logger{})
	if err != nil {
		t.Fatal(err)
	}
	api := from.(*apiSource)
	api.WatchTimedOut("nodes")
	api.Restored("services", "9", "7")
	r := report.New(report.Options{Sources: sources, Tracker: track.New(track.Options{})})
	p := newTestProxy(o, c, klog.Logger{})
	p.process.Logs = &logging.Log{}
	servers, err := p.newServers(&errgroup.Group{})
	if err != nil {
		t.Fatal(err)
	}
	page(servers.health, "/livez")
	page(servers.health, "/healthz")
	for want, text := range map[string]string{
		`source_silent_watches_total{source="nodes"} 1`:                              page(r.Metrics.Handler(), "/"),
		`source_restores_total{source="services"} 1`:                                 page(r.Metrics.Handler(), "/"),
		`kubernetes_healthchecks_total{name="IPv4",status="error",type="livez"} 1`:   page(p.reports.Metrics.SLIs(), "/"),
		`kubernetes_healthchecks_total{name="IPv4",status="error",type="healthz"} 1`: page(p.reports.Metrics.SLIs(), "/"),
		`proxy_healthz_total{code="503"} 1`:                                          page(p.reports.Metrics.Handler(), "/"),
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
}
