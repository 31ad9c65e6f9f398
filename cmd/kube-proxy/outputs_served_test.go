// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"

	"kubeproxy/common/events"
	"kubeproxy/common/health"
	"kubeproxy/common/health/servicestate"
	"kubeproxy/common/metrics"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/common/track"
	"kubeproxy/test/kit"
)

// hostileServers has s in what the servers for health and Services answer.
func hostileServers(t *testing.T, s string) {
	t.Helper()
	m := health.New(health.Options{Families: []service.Family{service.IPv4}})
	m.SetCondition("x", s)
	m.Result(service.IPv4, reconcile.Result{Outcome: reconcile.Outcome{Err: errors.New(s)}})
	b := &servicestate.Store{Problems: func() []track.Problem {
		return []track.Problem{{Service: types.NamespacedName{Namespace: "shop", Name: s}, Field: s, Message: s}}
	}}
	about := func() servicestate.ProxyInfo { return servicestate.ProxyInfo{Mode: s, Node: s, Health: m.Report()} }
	for path, h := range map[string]http.Handler{"/healthz": m.Handler(health.Observer{}), "/services": b.Handler(about)} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		checkPrinted(t, path, w.Body.String())
		if !json.Valid(w.Body.Bytes()) {
			t.Errorf("%s: no JSON: %q", path, w.Body)
		}
	}
}

// hostileMetrics has s in every label that is not a constant.
func hostileMetrics(t *testing.T, s string) {
	t.Helper()
	var build metrics.Build
	var seen metrics.Observation
	poison(reflect.ValueOf(&build).Elem(), s, 0)
	poison(reflect.ValueOf(&seen).Elem(), s, 0)
	// Two equal ones would be one series.
	seen.Sources, seen.Conditions = seen.Sources[:1], seen.Conditions[:1]
	m := metrics.New(metrics.Options{
		Backends: []metrics.Backend{{Mode: "nftables", Family: service.IPv4}}, Build: build,
		Features: []metrics.Feature{{Name: s, Stage: s}},
	})
	m.Observe(func() metrics.Observation { return seen })
	c, to := m.Client(), url.URL{Host: s}
	c.Requests.Increment(t.Context(), s, s, s)
	c.Retries.IncrementRetry(t.Context(), s, s, s)
	c.Duration.Observe(t.Context(), s, to, time.Second)
	c.RateLimiter.Observe(t.Context(), s, to, time.Second)
	c.RequestSize.Observe(t.Context(), s, s, 1)
	c.ResponseSize.Observe(t.Context(), s, s, 1)
	c.Resolver.Observe(t.Context(), s, time.Second)
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	text := w.Body.String()
	checkPrinted(t, "/metrics", text)
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		t.Errorf("/metrics: %v in %q", err, text)
	}
	for _, name := range []string{"kubernetes_build_info", "kubernetes_feature_enabled", "kubeproxy_condition", "kubeproxy_source_synced", "kubeproxy_relay_refused_total", "rest_client_requests_total"} {
		if families[name] == nil || len(families[name].Metric) != 1 {
			t.Errorf("/metrics: want one series of %s, have %v", name, families[name])
		}
	}
}

// hostileEvents has s in messages of Events. The names are those of the API server, which
// are valid.
func hostileEvents(t *testing.T, s string) {
	t.Helper()
	sink := &kit.EventSink{}
	node := strings.Repeat("node-a.", 35) + "example"
	web := events.Object{Kind: "Service", Namespace: "shop", Name: "web", UID: "1"}
	messages := []string{s, errors.Join(errors.New(s), errors.New(s)).Error(), strings.Repeat(s, 100), strings.Repeat("x", 990) + s}
	synctest.Test(t, func(t *testing.T) {
		h, err := events.New(events.Options{Config: &rest.Config{Host: "http://127.0.0.1:1", Transport: sink}, Node: node})
		if err != nil {
			t.Fatal(err)
		}
		for i, m := range messages {
			h.Failed(events.Object{Kind: "Node", Name: node}, events.Topic{Reason: fmt.Sprint("RulesNotProgrammed", i)}, m)
			h.Failed(web, events.Topic{Reason: fmt.Sprint("ServiceSkipped", i), Scope: events.Cluster}, m)
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			h.Run(ctx)
			close(done)
		}()
		time.Sleep(time.Minute) // of the bubble
		stop()
		<-done
	})
	written := sink.Written()
	if len(written) != 2*len(messages) {
		t.Errorf("%d Events, want %d", len(written), 2*len(messages))
	}
	for _, q := range written {
		e := q.Event
		checkPrinted(t, "Event", q.Body)
		checkPrinted(t, "message of an Event", e.Message)
		if n := len(e.Message); n == 0 || n > 1024 || strings.Contains(e.Message, "\n") {
			t.Errorf("a message of %d bytes: %q", n, e.Message)
		}
		if wrong := validation.IsDNS1123Subdomain(e.Name); len(wrong) > 0 {
			t.Errorf("Event %q: %v", e.Name, wrong)
		}
	}
}
