// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"errors"
	"fmt"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/common/source"
	"kubeproxy/common/track"
	"kubeproxy/test/kit"
)

func TestSourceStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewSources()
		c.RecordContact("services")
		c.RecordError(errors.New("refused"))
		time.Sleep(staleAfter + time.Second)
		c.RecordContact("endpointslices")
		got := map[string][2]bool{}
		for _, s := range c.report() {
			got[s.Name] = [2]bool{s.Synced, s.Stale}
			kit.Check(t, s.Err == "", "%s: error %q outlives a sign of life", s.Name, s.Err)
		}
		want := map[string][2]bool{"services": {true, true}, "endpointslices": {true, false}, "nodes": {false, false}}
		kit.Same(t, "synced, stale (-want +got)", want, got)
	})
}

// TestOptionalSources checks that an optional kind is no source until it was read. After
// that its latest error counts.
func TestOptionalSources(t *testing.T) {
	c := NewSources()
	refused := &source.ReadError{Kind: "servicecidrs", Err: errors.New("refused")}
	hidden := &source.ReadError{Kind: "servicecidrs", Optional: true, Err: errors.New("hidden")}
	shown := func() string {
		for _, s := range c.report() {
			if s.Name == "servicecidrs" {
				return s.Err
			}
		}
		return "no source"
	}
	for i, step := range []struct {
		do   func()
		want string
	}{
		{func() { c.RecordError(refused) }, "watch servicecidrs at the API server: refused"},
		{func() { c.RecordError(hidden) }, "no source"},
		{func() { c.RecordContact("servicecidrs") }, ""},
		{func() { c.RecordError(refused) }, "watch servicecidrs at the API server: refused"},
		{func() { c.RecordError(hidden) }, "watch servicecidrs at the API server: hidden"},
	} {
		if step.do(); shown() != step.want {
			t.Errorf("step %d: %q, want %q", i, shown(), step.want)
		}
	}
}

// TestSourceFaultsByObject breaks two manifests and repairs them one by one.
func TestSourceFaultsByObject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewManifestSources()
		shown := func() string {
			s := c.report()[0]
			return fmt.Sprintf("%s %d %q", s.Name, s.Faults, s.Err)
		}
		for i, step := range []struct {
			object, err, want string
		}{
			{"a.yaml", "bad a", `manifests 1 "bad a"`},
			{"b.yaml", "bad b", `manifests 2 "bad b"`},
			{"a.yaml", "worse a", `manifests 2 "worse a"`},
			{"a.yaml", "", `manifests 1 "bad b"`},
			{"b.yaml", "", `manifests 0 ""`},
		} {
			f := source.Fault{Object: step.object}
			if step.err != "" {
				f.Err = errors.New(step.err)
			}
			c.RecordFault(ManifestSource, f)
			kit.Equal(t, shown(), step.want, "step %d", i)
			time.Sleep(time.Second)
		}
		begin := time.Now()
		c.RecordFault(ManifestSource, source.Fault{Object: "a.yaml", Err: errors.New("bad a")})
		time.Sleep(time.Minute)
		since := c.RecordFault(ManifestSource, source.Fault{Object: "a.yaml"})
		kit.Check(t, since.Equal(begin), "over since %v, want %v", since, begin)
	})
}

// TestFaultsWithoutURL checks that a fault names the server, and not the whole request.
func TestFaultsWithoutURL(t *testing.T) {
	for cause, want := range map[string]string{
		"dial tcp 192.0.2.1:6443: connection refused": "watch: dial tcp 192.0.2.1:6443: connection refused",
		"EOF": "watch: 192.0.2.1:6443: EOF",
	} {
		err := fmt.Errorf("watch: %w", &url.Error{Op: "Get", URL: "https://192.0.2.1:6443/api/v1/services?watch=true", Err: errors.New(cause)})
		kit.Same(t, "(-want +got)", want, withoutURL(err))
	}
	kit.Same(t, "(-want +got)", "line 3", withoutURL(errors.New("line 3")))
}

// TestManifestsNeverRead wants manifests not to be synced while one was never readable.
func TestManifestsNeverRead(t *testing.T) {
	c := NewManifestSources()
	c.setSynced()
	for _, never := range []int{1, 0} {
		c.ManifestsRead(time.Second, never)
		s := c.report()[0]
		kit.Check(t, s.Synced == (never == 0), "with %d files that were never readable: %+v", never, s)
	}
}

// TestManifestsGoStale leaves the manifests unread for two periods.
func TestManifestsGoStale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewManifestSources()
		const poll = 10 * time.Second
		c.ManifestsRead(poll, 0)
		c.setSynced()
		time.Sleep(2 * poll)
		if s := c.report()[0]; s.Stale || !s.Synced || s.LastContact.IsZero() {
			t.Errorf("after two periods: %+v, want it not stale yet", s)
		}
		time.Sleep(time.Second)
		s := c.report()[0]
		kit.Check(t, s.Stale, "after more than two periods: %+v, want it stale", s)
		c.ManifestsRead(poll, 0)
		if s := c.report()[0]; s.Stale {
			t.Errorf("after it was looked at again: %+v, want it not stale", s)
		}
	})
}

// scraped returns the samples of /metrics whose name begins with one of prefixes, by the
// text before the value.
func scraped(r *Reports, prefixes ...string) map[string]string {
	w := httptest.NewRecorder()
	r.Metrics.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	all := map[string]string{}
	for line := range strings.Lines(w.Body.String()) {
		for _, p := range prefixes {
			if at := strings.LastIndexByte(line, ' '); strings.HasPrefix(line, p) {
				all[line[:at]] = strings.TrimSpace(line[at:])
			}
		}
	}
	return all
}

// TestUnchangedObjectsAreNotPending writes a slice and a Service again with the same
// meaning. No round follows, so no metric may count them as pending; the next round is
// half a minute later.
func TestUnchangedObjectsAreNotPending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTestReports(Options{Sources: NewSources()})
		h := r.Sink()
		yes, port := true, int32(8080)
		slice := func(trigger time.Time) *discoveryv1.EndpointSlice {
			return &discoveryv1.EndpointSlice{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: "shop", Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"},
					Annotations: map[string]string{corev1.EndpointsLastChangeTriggerTime: trigger.Format(time.RFC3339Nano)},
				},
				AddressType: discoveryv1.AddressTypeIPv4,
				Ports:       []discoveryv1.EndpointPort{{Port: &port}},
				Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}, Conditions: discoveryv1.EndpointConditions{Ready: &yes}}},
			}
		}
		web := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"},
			Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.1", ClusterIPs: []string{"10.96.0.1"}, Ports: []corev1.ServicePort{{Port: 80}}},
		}
		time.Sleep(time.Second)
		h.SetService(web)
		h.SetSlice(slice(time.Now()))
		h.Synced()
		round := func() { r.round(service.IPv4, r.sink.Latest(), reconcile.Result{Generation: 1, Start: time.Now()}) }
		time.Sleep(time.Second)
		round()
		h.SetService(web)
		h.SetSlice(slice(time.Now()))
		pending := scraped(r, "kubeproxy_sync_proxy_rules_endpoint_changes", "kubeproxy_sync_proxy_rules_service_changes")
		time.Sleep(30 * time.Second)
		round()
		want := map[string]string{
			"kubeproxy_sync_proxy_rules_endpoint_changes_pending": "0", "kubeproxy_sync_proxy_rules_endpoint_changes_total": "2",
			"kubeproxy_sync_proxy_rules_service_changes_pending": "0", "kubeproxy_sync_proxy_rules_service_changes_total": "2",
		}
		kit.Same(t, "changes (-want +got)", want, pending)
		const took = `kubeproxy_network_programming_duration_seconds_`
		got := scraped(r, took+"sum", took+"count")
		kit.Same(t, "time to program (-want +got)", map[string]string{took + `sum{ip_family="IPv4"}`: "1", took + `count{ip_family="IPv4"}`: "1"}, got)
	})
}

// TestMetricsWithoutChanges checks the staleness of unread sources, and that nothing is
// pending.
func TestMetricsWithoutChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTestReports(Options{Sources: NewSources()})
		time.Sleep(time.Minute)
		r.sink.sources.RecordContact("services")
		time.Sleep(time.Second)
		got := scraped(r, "kubeproxy_oldest_pending", "kubeproxy_source_staleness")
		want := map[string]string{
			`kubeproxy_oldest_pending_change_age_seconds{ip_family="IPv4"}`: "0",
			`kubeproxy_source_staleness_seconds{source="services"}`:         "1",
			`kubeproxy_source_staleness_seconds{source="endpointslices"}`:   "61",
			`kubeproxy_source_staleness_seconds{source="nodes"}`:            "61",
		}
		kit.Same(t, "(-want +got)", want, got)
	})
}

// TestNodeEligibilityIsLogged marks a Node for deletion, unmarks it and marks it again.
// Each change is one log line; other changes of the Node are none.
func TestNodeEligibilityIsLogged(t *testing.T) {
	log, text := kit.NewLog(0)
	h := newTestReports(Options{Sources: NewSources(), Log: log}).Sink()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}}
	marked := node.DeepCopy()
	marked.Spec.Taints = []corev1.Taint{{Key: "ToBeDeletedByClusterAutoscaler"}}
	for i, step := range []struct {
		do   func()
		want string // in the only line, empty for no line
	}{
		{func() { h.SetNode(node) }, "The Node is known"},
		{func() { h.SetNode(marked) }, "are told to leave this node, by /healthz\" node=\"node-a\" reason=\"the Node has the taint"},
		{func() { h.SetNode(marked) }, ""},
		{func() { h.SetNode(node) }, "are not told to leave this node any more"},
		{func() { h.DeleteNode() }, "was deleted"},
		{func() { h.SetNode(node) }, "are not told"},
	} {
		lines := 1
		if step.want == "" {
			lines = 0
		}
		text.Reset()
		step.do()
		got := text.String()
		kit.Check(t, strings.Count(got, "\n") == lines && strings.Contains(got, step.want), "step %d logs %q, want %q", i, got, step.want)
	}
}

// TestProblemWithoutService checks that a problem of the node names no Service.
func TestProblemWithoutService(t *testing.T) {
	log, text := kit.NewLog(0)
	r := newTestReports(Options{Log: log})
	for want, p := range map[string]track.Problem{
		`"unusable" field="spec.podCIDRs[0]"`:              {Kind: track.OfNode, Field: "spec.podCIDRs[0]", Message: "unusable"},
		`"unusable" service="shop/web" field="spec.ports"`: {Service: types.NamespacedName{Namespace: "shop", Name: "web"}, Field: "spec.ports", Message: "unusable"},
	} {
		text.Reset()
		r.problemsFound([]track.Problem{p})
		kit.Check(t, strings.Contains(text.String(), want), "log %q, want %s", text.String(), want)
	}
}
