// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package health

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

// ask sends one request in process.
func ask(h http.Handler, method, path, body string) *httptest.ResponseRecorder {
	return askFrom("127.0.0.1:40000", h, httptest.NewRequest(method, "http://127.0.0.1:10249"+path, strings.NewReader(body)))
}

// askFrom is a request from an address.
func askFrom(client string, h http.Handler, q *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	q.RemoteAddr = client
	h.ServeHTTP(w, q)
	return w
}

// programmed returns a Monitor with a successful round for each family, except the
// failing ones.
func programmed(o Options, failing ...service.Family) *Monitor {
	o.Families, o.SyncPeriod = service.Families[:], period
	m := New(o)
	for _, f := range service.Families {
		r := reconcile.Result{Generation: 5, Start: time.Now()}
		if slices.Contains(failing, f) {
			r.Err = errRefused
		}
		m.Result(f, r)
	}
	return m
}

func TestHealthzAndLivez(t *testing.T) {
	tainted := &corev1.Node{Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: "other"}, {Key: "ToBeDeletedByClusterAutoscaler"}}}}
	deleting := &corev1.Node{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &metav1.Time{Time: time.Now()}}}
	plain := &corev1.Node{Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: "other"}}}}
	node := func(nodes ...*corev1.Node) func(*Monitor) {
		return func(m *Monitor) {
			for _, n := range nodes {
				m.SetNode(n)
			}
		}
	}
	waits := func(m *Monitor) {
		m.Result(service.IPv4, reconcile.Result{Start: time.Now(), Outcome: reconcile.Outcome{Err: fmt.Errorf("plan: %w for a network", reconcile.ErrWaiting)}})
	}
	young := time.Now()
	late := Options{Now: func() time.Time { return young.Add(3 * period) }}
	for name, tt := range map[string]struct {
		options        Options
		failing        []service.Family
		set            func(*Monitor)
		healthz, livez int
	}{
		"one waits":                     {Options{}, service.Families[:1], waits, 503, 200},
		"one waits, the other fails":    {Options{}, service.Families[:], waits, 503, 503},
		"one has waited and does rest":  {late, service.Families[:1], waits, 503, 503},
		"all is well":                   {Options{}, nil, node(), 200, 200},
		"a family fails":                {Options{}, service.Families[:1], node(), 503, 503},
		"the node stays":                {Options{NodeRequired: true}, nil, node(plain), 200, 200},
		"the autoscaler takes the node": {Options{}, nil, node(tainted), 503, 200},
		"and changes its mind":          {Options{}, nil, node(tainted, plain), 200, 200},
		"the node is being deleted":     {Options{}, nil, node(deleting), 503, 200},
		"the node was deleted":          {Options{}, nil, (*Monitor).DeleteNode, 503, 200},
		"the node is unknown":           {Options{NodeRequired: true}, nil, node(), 503, 200},
	} {
		t.Run(name, func(t *testing.T) {
			m := programmed(tt.options, tt.failing...)
			tt.set(m)
			for path, want := range map[string]int{"/healthz": tt.healthz, "/livez": tt.livez} {
				if got := ask(m.Handler(Observer{}), "GET", path, ""); got.Code != want {
					t.Errorf("%s = %d, want %d: %s", path, got.Code, want, got.Body)
				}
			}
		})
	}
}

func TestHealthBody(t *testing.T) {
	now := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	m := New(Options{Families: service.Families[:1], SyncPeriod: period, Now: func() time.Time { return now }})
	m.Result(service.IPv4, reconcile.Result{Generation: 5, Start: now.Add(-2 * time.Second), Took: time.Second})
	const rest = `"healthy":true,"status":{"IPv4":{"lastUpdated":"2026-07-01T11:59:59Z","healthy":true,"generation":5,"rounds":1,"failedPorts":0,"driftFound":0,"driftRepaired":0}}}` + "\n"
	const times = `{"lastUpdated":"2026-07-01T11:59:59Z","currentTime":"2026-07-01T12:00:00Z",`
	for path, want := range map[string]string{
		"/healthz": times + `"nodeEligible":true,` + rest,
		"/livez":   times + rest,
	} {
		w := ask(m.Handler(Observer{}), "GET", path, "")
		if diff := cmp.Diff(want, w.Body.String()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", path, diff)
		}
		if got := w.Header().Get("Content-Type") + " " + w.Header().Get("X-Content-Type-Options"); got != "application/json nosniff" {
			t.Errorf("%s: headers = %q", path, got)
		}
	}
}

func TestOneFamilyAsked(t *testing.T) {
	m := programmed(Options{}, service.IPv6)
	for path, want := range map[string]int{
		"/healthz":             503,
		"/healthz?family=IPv4": 200,
		"/livez?family=ipv4":   200,
		"/livez?family=IPv6":   503,
		"/livez?family=IPX":    404,
	} {
		if got := ask(m.Handler(Observer{}), "GET", path, ""); got.Code != want {
			t.Errorf("%s = %d, want %d", path, got.Code, want)
		}
	}
	var r Report
	body := ask(m.Handler(Observer{}), "GET", "/healthz?family=IPv4", "").Body.Bytes()
	if err := json.Unmarshal(body, &r); err != nil || len(r.Status) != 1 || !r.Healthy || r.LastUpdated.IsZero() {
		t.Errorf("body = %s, %v; want that of IPv4", body, err)
	}
	if w := ask(m.Handler(Observer{}), "POST", "/healthz", ""); w.Code != 405 {
		t.Errorf("POST = %d, want 405", w.Code)
	}
}

func TestObserverIsCalled(t *testing.T) {
	m := programmed(Options{}, service.IPv6)
	got := map[string]int{}
	l := Observer{
		Answered: func(path string, status int) { got[path] += status },
		Checked: func(path string, f service.Family, healthy bool) {
			if healthy {
				got[path+" "+f.String()]++
			} else {
				got[path+" "+f.String()]--
			}
		},
	}
	ask(m.Handler(l), "GET", "/healthz", "")
	ask(m.Handler(l), "GET", "/livez?family=IPv4", "")
	want := map[string]int{"/healthz": 503, "/livez": 200, "/healthz IPv4": 1, "/healthz IPv6": -1, "/livez IPv4": 1, "/livez IPv6": -1}
	if diff := cmp.Diff(want, maps.Clone(got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
