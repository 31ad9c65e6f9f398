// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"math"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
	"testing/fstest"

	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"

	"kubeproxy/common/logging"
	"kubeproxy/common/report"
	"kubeproxy/common/track"
	"kubeproxy/config"
	"kubeproxy/platform/mode"
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
	kit.Must(t, err)
	api := from.(*apiSource)
	api.WatchTimedOut("nodes")
	api.Restored("services", "9", "7")
	r := report.New(report.Options{Sources: sources, Tracker: track.New(track.Options{})})
	p := newTestProxy(o, c, klog.Logger{})
	p.process.Logs = &logging.Log{}
	servers, err := p.newServers(&errgroup.Group{})
	kit.Must(t, err)
	page(servers.health, "/livez")
	page(servers.health, "/healthz")
	for want, text := range map[string]string{
		`source_silent_watches_total{source="nodes"} 1`:                              page(r.Metrics.Handler(), "/"),
		`source_restores_total{source="services"} 1`:                                 page(r.Metrics.Handler(), "/"),
		`kubernetes_healthchecks_total{name="IPv4",status="error",type="livez"} 1`:   page(p.reports.Metrics.SLIs(), "/"),
		`kubernetes_healthchecks_total{name="IPv4",status="error",type="healthz"} 1`: page(p.reports.Metrics.SLIs(), "/"),
		`proxy_healthz_total{code="503"} 1`:                                          page(p.reports.Metrics.Handler(), "/"),
	} {
		kit.Check(t, strings.Contains(text, want), "no %s in\n%s", want, text)
	}
}

// TestMemoryLimit checks that the soft limit is nine tenths of the cgroup's limit, or
// GOMEMLIMIT if that is set.
func TestMemoryLimit(t *testing.T) {
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(-1))
	const limit = 4 << 30
	root := fstest.MapFS{
		"proc/self/cgroup":         {Data: []byte("0::/\n")},
		"proc/self/mountinfo":      {Data: []byte("29 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")},
		"sys/fs/cgroup/memory.max": {Data: []byte("4294967296\n")},
	}
	for env, want := range map[string]int64{"": limit / 100 * 90, "5GiB": math.MaxInt64} {
		t.Setenv("GOMEMLIMIT", env)
		debug.SetMemoryLimit(math.MaxInt64)
		LimitMemory(klog.Logger{}, root, mode.Descriptor{})
		got := debug.SetMemoryLimit(-1)
		kit.Check(t, got == want, "GOMEMLIMIT %q: a soft limit of %d, want %d", env, got, want)
	}
}

func TestSoftLimit(t *testing.T) {
	const mb = 1 << 20
	for limit, want := range map[int64]int64{32 * mb: 16 * mb, 64 * mb: 40 * mb, 128 * mb: 104 * mb, 1000 * mb: 900 * mb} {
		got := softLimit(limit, mode.Descriptor{})
		kit.Check(t, got == want, "%d of %d, want %d", got, limit, want)
		if got := softLimit(limit, mode.Descriptor{MemoryShare: 4}); got != limit/4 {
			t.Errorf("a mode with commands: %d of %d, want a quarter", got, limit)
		}
	}
}
