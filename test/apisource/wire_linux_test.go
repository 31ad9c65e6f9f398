// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package apisource

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"kubeproxy/test/cluster"
	"kubeproxy/test/kit"
)

// requests are those that the proxy made, in their order.
type requests struct {
	server string

	mu  sync.Mutex
	all []*http.Request
	at  []time.Time
}

func (r *requests) add(q *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all, r.at = append(r.all, q), append(r.at, time.Now())
}

// services returns the requests for Services.
func (r *requests) services() []*http.Request {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []*http.Request
	for _, q := range r.all {
		if strings.HasSuffix(q.URL.Path, "/services") {
			all = append(all, q)
		}
	}
	return all
}

// lists returns when lists were asked for.
func (r *requests) lists() []time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []time.Time
	for i, q := range r.all {
		if q.Method == http.MethodGet && q.URL.Query().Get("watch") == "" { // Events are written, too
			all = append(all, r.at[i])
		}
	}
	return all
}

// refusingServer starts an API server on the control host that refuses everything, and
// returns what it is asked.
func (w fixture) refusingServer(t *testing.T) (seen *requests, config string) {
	t.Helper()
	l, err := w.lab.Host("control").Listen(t.Context(), "tcp", "192.0.2.100:0")
	if err != nil {
		t.Fatal(err)
	}
	seen = &requests{}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		seen.add(q.Clone(context.Background()))
		http.Error(w, "no", http.StatusServiceUnavailable)
	}))
	server.Listener.Close()
	server.Listener = l
	server.Start()
	t.Cleanup(server.Close)
	config = filepath.Join(t.TempDir(), "kubeconfig")
	u := url.URL{Scheme: "http", Host: l.Addr().String()}
	seen.server = u.String()
	text := `{apiVersion: v1, kind: Config, clusters: [{name: a, cluster: {server: "` + u.String() + `"}}], users: [{name: a, user: {}}], contexts: [{name: a, context: {cluster: a, user: a}}], current-context: a}`
	kit.WriteFile(t, config, text)
	return seen, config
}

// The API server receives the content types of the configuration, and requests to stream
// existing objects. Its refusals are logged once.
func TestContentTypes(t *testing.T) {
	t.Parallel()
	w := newLab(t)
	for name, tc := range map[string]struct {
		flags []string
		want  string
	}{
		"default": {nil, "application/vnd.kubernetes.protobuf"},
		"JSON":    {[]string{"--kube-api-content-type=application/json"}, "application/json"},
	} {
		t.Run(name, func(t *testing.T) {
			seen, config := w.refusingServer(t)
			p := kubeProxy.Start(t, w.lab.Node, append(tc.flags, "--kubeconfig="+config)...)
			kit.Until(t, "requests", func() bool { return len(seen.services()) > 0 })
			q := seen.services()[0]
			if got := q.Header.Get("Accept"); !strings.HasPrefix(got, tc.want) {
				t.Errorf("Accept = %q, want %q", got, tc.want)
			}
			if got := q.Header.Get("User-Agent"); !strings.HasPrefix(got, "kube-proxy/") {
				t.Errorf("User-Agent = %q", got)
			}
			if q.URL.Query().Get("sendInitialEvents") != "true" || q.URL.Query().Get("allowWatchBookmarks") != "true" {
				t.Errorf("query %q, want a stream of what exists, with bookmarks", q.URL.RawQuery)
			}
			p.AwaitLog(t, "The API server cannot be read")
			p.Stop(t)
			if n := p.Log.Count("The API server cannot be read"); n > 1 {
				t.Errorf("%d lines for one sort of failure", n)
			}
		})
	}
}

// The limits hold for all kinds together. They are for lists, of which the
// API server has to make an answer each time, and not for watches.
func TestRateLimits(t *testing.T) {
	t.Parallel()
	w := newLab(t)
	seen, config := w.refusingServer(t)
	begin := time.Now() // and not the first arrival, which may be late
	p := kubeProxy.Start(t, w.lab.Node, "--kubeconfig="+config, "--kube-api-qps=1", "--kube-api-burst=1")
	const n = 5
	kit.Until(t, "lists", func() bool { return len(seen.lists()) >= n })
	if took := seen.lists()[n-1].Sub(begin); took < (n-1)*time.Second {
		t.Errorf("%d lists within %s, want one a second", n, took)
	}
	host := strings.TrimPrefix(seen.server, "http://")
	for _, name := range []string{"rest_client_request_duration_seconds", "rest_client_rate_limiter_duration_seconds"} {
		if n, _ := p.Metric(t, name, "verb", "GET", "host", host); n == 0 {
			t.Errorf("metric %s of %s has counted nothing", name, host)
		}
	}
	p.Stop(t)
}

// Requests to the API server are counted under the names that dashboards of Kubernetes
// use.
func TestClientMetrics(t *testing.T) {
	t.Parallel()
	w := newFixture(t, cluster.Options{})
	p := w.start(t, cluster.Login{})
	p.AwaitLog(t, `"Programmed"`, "IPv4")
	host := strings.TrimPrefix(w.Server, "https://")
	if n, _ := p.Metric(t, "rest_client_requests_total", "code", "200", "method", "GET", "host", host); n < 4 {
		t.Errorf("%v requests, want at least one for each kind", n)
	}
	for _, kind := range []string{"services", "endpointslices", "nodes", "servicecidrs"} {
		if n, _ := p.Metric(t, "kubeproxy_source_synced", "source", kind); n != 1 {
			t.Errorf("source %s is not synced", kind)
		}
	}
}
