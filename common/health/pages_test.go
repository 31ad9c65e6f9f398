// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package health

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2/textlogger"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/test/kit"
)

func everything() Admin {
	begin := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	return Admin{
		Mode:     "nftables",
		Metrics:  hello("metrics"),
		SLIs:     hello("slis"),
		Services: hello("services"),
		Config:   func() any { return map[string]string{"mode": "nftables", "clusterCIDR": "<none>"} },
		Flags:    func() map[string]string { return map[string]string{"v": "2", "config": "/etc/kube-proxy.conf"} },
		Status: &Status{
			Started: begin, Version: "v1.37.0", GoVersion: "go1.26.8",
			More: func() map[string]string { return map[string]string{"Node": "n1", "Mode": "nftables"} },
			Now:  func() time.Time { return begin.Add(90 * time.Minute) },
		},
		Profiling: true,
		Verbosity: textlogger.NewConfig().Verbosity(),
	}
}

func TestAdminPages(t *testing.T) {
	a := everything()
	for path, want := range map[string]string{
		"/healthz":       "ok",
		"/proxyMode":     "nftables",
		"/metrics":       "metrics",
		"/metrics/slis":  "slis",
		"/services":      "services",
		"/services/a/b":  "services",
		"/configz":       `{"kubeproxy.config.k8s.io":{"clusterCIDR":"<none>","mode":"nftables"}}` + "\n",
		"/flagz":         "kube-proxy flagz\n" + formatNotice + "\n\nconfig=/etc/kube-proxy.conf\nv=2\n",
		"/debug/flags/v": "0\n",
		"/statusz": "kube-proxy statusz\n" + formatNotice + "\n\nStarted: Wed Jul  1 12:00:00 UTC 2026\nUp: 1h30m0s\n" +
			"Go version: go1.26.8\nBinary version: v1.37.0\nMode: nftables\nNode: n1\n" +
			"Paths: /healthz /proxyMode /configz /debug/flags/v /debug/pprof/ /flagz /metrics /metrics/slis /services /statusz\n",
	} {
		w := ask(a.Handler(), "GET", path, "")
		diff := cmp.Diff(want, w.Body.String())
		kit.Check(t, diff == "" && w.Code == 200, "%s = %d (-want +got):\n%s", path, w.Code, diff)
	}
	for _, path := range []string{"/debug/pprof/", "/debug/pprof/goroutine?debug=1", "/debug/pprof/cmdline", "/debug/pprof/symbol"} {
		if w := ask(a.Handler(), "GET", path, ""); w.Code != 200 || w.Body.Len() == 0 {
			t.Errorf("%s = %d, %d bytes", path, w.Code, w.Body.Len())
		}
	}
}

// TestAdminPagesAreInternal checks that only metrics are for clients beyond loopback, also
// right after a client on loopback has asked.
func TestAdminPagesAreInternal(t *testing.T) {
	internal := everything()
	exposed := internal
	exposed.Exposed = true
	closed, open := internal.Handler(), exposed.Handler()
	for path, public := range map[string]bool{
		"/healthz": true, "/proxyMode": true, "/metrics": true, "/metrics/slis": true,
		"/services": false, "/services/a/b": false, "/configz": false, "/flagz": false, "/statusz": false,
		"/debug/pprof/": false, "/debug/pprof/heap": false, "/debug/flags/v": false,
	} {
		for _, client := range []string{"127.0.0.1:9", "[::1]:9", "[::ffff:127.0.0.2]:9", "192.0.2.1:9", "[2001:db8::1]:9", "pipe"} {
			want := http.StatusForbidden
			if public || strings.Contains(client, "127.") || strings.Contains(client, "::1]:9") && !strings.Contains(client, "db8") {
				want = http.StatusOK
			}
			w := askFrom(client, closed, httptest.NewRequest("GET", "http://127.0.0.1:10249"+path, nil))
			kit.Check(t, w.Code == want, "%s for %s = %d, want %d: %s", path, client, w.Code, want, w.Body)
			if w := askFrom(client, open, httptest.NewRequest("GET", "http://127.0.0.1:10249"+path, nil)); w.Code != http.StatusOK {
				t.Errorf("%s for %s = %d although it is exposed", path, client, w.Code)
			}
		}
	}
}

// TestAdminPagesByName asks under names that somebody else may resolve to a loopback address.
// Monitoring goes on under every name.
func TestAdminPagesByName(t *testing.T) {
	internal := everything()
	exposed := internal
	exposed.Exposed = true
	for host, known := range map[string]bool{
		"": true, "127.0.0.1": true, "127.0.0.1:10249": true, "[::1]:10249": true, "[::1]": true, "10.0.0.7:10249": true,
		"localhost": true, "LocalHost:8080": true,
		"evil.example": false, "evil.example:10249": false, "127.0.0.1.evil.example": false, "localhost.evil.example:80": false,
		"localhost:80:80": false, "127.1": false, "[::1]evil": false, "kubeproxy.kube-system.svc:10249": false,
	} {
		for path, public := range map[string]bool{
			"/healthz": true, "/proxyMode": true, "/metrics": true, "/metrics/slis": true,
			"/services": false, "/services/a/b": false, "/configz": false, "/flagz": false, "/statusz": false,
			"/debug/pprof/": false, "/debug/flags/v": false,
		} {
			want := http.StatusForbidden
			if public || known {
				want = http.StatusOK
			}
			q := httptest.NewRequest("GET", path, nil)
			q.Host = host
			w := askFrom("127.0.0.1:9", internal.Handler(), q)
			kit.Check(t, w.Code == want, "%s for Host %q = %d, want %d: %s", path, host, w.Code, want, w.Body)
			if w := askFrom("192.0.2.1:9", exposed.Handler(), q); w.Code != http.StatusOK {
				t.Errorf("%s for Host %q = %d although it is exposed", path, host, w.Code)
			}
		}
	}
}

// TestVerbosityByPages changes the verbosity as web pages of others would.
func TestVerbosityByPages(t *testing.T) {
	for _, tt := range []struct {
		host, origin, site string
		want               int
	}{
		{"127.0.0.1:10249", "", "", http.StatusOK},
		{"localhost:10249", "http://localhost:10249", "same-origin", http.StatusOK},
		{"evil.example:10249", "http://evil.example:10249", "", http.StatusForbidden},
		{"evil.example:10249", "", "", http.StatusForbidden},
		{"127.0.0.1:10249", "https://evil.example", "", http.StatusForbidden},
		{"127.0.0.1:10249", "null", "", http.StatusForbidden},
		{"127.0.0.1:10249", "", "cross-site", http.StatusForbidden},
	} {
		for _, exposed := range []bool{false, true} {
			a := everything()
			a.Exposed = exposed
			q := httptest.NewRequest("PUT", "/debug/flags/v", strings.NewReader("3"))
			q.Host, q.Header = tt.host, http.Header{"Origin": {tt.origin}, "Sec-Fetch-Site": {tt.site}}
			if w := askFrom("127.0.0.1:9", a.Handler(), q); w.Code != tt.want || (a.Verbosity.String() == "3") != (tt.want == http.StatusOK) {
				t.Errorf("exposed %t, %+v = %d, verbosity %s: %s", exposed, tt, w.Code, a.Verbosity, w.Body)
			}
		}
	}
}

// Disabled parts are not served.
func TestAdminLeavesOut(t *testing.T) {
	off := everything()
	off.Profiling = false
	if w := ask((Admin{Mode: "nftables"}).Handler(), "GET", "/", ""); w.Code != 200 || w.Body.String() != "kube-proxy serves here:\n/healthz\n/proxyMode\n" {
		t.Errorf("the index: %d, %s", w.Code, w.Body)
	}
	for name, tt := range map[string]struct {
		admin Admin
		paths []string
	}{
		"nothing enabled": {Admin{Mode: "nftables"}, []string{"/metrics", "/metrics/slis", "/configz", "/flagz", "/statusz", "/services", "/debug/pprof/", "/debug/flags/v"}},
		"no profiling":    {off, []string{"/debug/pprof/", "/debug/pprof/heap", "/debug/flags/v"}},
		"always":          {everything(), []string{"/x", "/livez", "/proxymode"}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, path := range tt.paths {
				w := ask(tt.admin.Handler(), "GET", path, "")
				kit.Check(t, w.Code == 404, "%s = %d, want 404", path, w.Code)
			}
		})
	}
	if w := ask(off.Handler(), "GET", "/statusz", ""); strings.Contains(w.Body.String(), "/debug/") {
		t.Errorf("/statusz = %s, want no path of profiling", w.Body)
	}
	w := ask(Admin{Mode: "x", Status: &Status{}}.Handler(), "GET", "/statusz", "")
	kit.Check(t, strings.HasSuffix(w.Body.String(), "Paths: /healthz /proxyMode /statusz\n"),
		"/statusz = %s, want only the paths that are served", w.Body)
}

func TestVerbosity(t *testing.T) {
	for name, tt := range map[string]struct {
		method, body string
		code         int
		want         string // afterwards
	}{
		"set":         {"PUT", "4", 200, "4"},
		"with a line": {"PUT", " 6\n", 200, "6"},
		"a word":      {"PUT", "high", 400, "0"},
		"nothing":     {"PUT", "", 400, "0"},
		"far too big": {"PUT", "4" + strings.Repeat(" ", 1<<20), 400, "0"},
		"not by POST": {"POST", "4", 405, "0"},
		"a GET only":  {"GET", "4", 200, "0"},
	} {
		t.Run(name, func(t *testing.T) {
			a := everything()
			w := ask(a.Handler(), tt.method, "/debug/flags/v", tt.body)
			kit.Check(t, w.Code == tt.code, "answer = %d %s, want %d", w.Code, w.Body, tt.code)
			kit.Equal(t, a.Verbosity.String(), tt.want, "verbosity")
		})
	}
}

func TestUnprintableAnswer(t *testing.T) {
	a := Admin{Config: func() any { return math.NaN() }}
	w := ask(a.Handler(), "GET", "/configz", "")
	kit.Check(t, w.Code == 500 && strings.HasPrefix(w.Body.String(), "encode the answer: "), "answer = %d %s", w.Code, w.Body)
}

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
	blocked := func(families ...service.Family) func(*Monitor) {
		return func(m *Monitor) { m.SetBlockingCondition("forwarding", "off", "off", families...) }
	}
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
		"a family does not flow":        {Options{}, nil, blocked(service.IPv6), 503, 200},
		"and fails":                     {Options{}, service.Families[1:], blocked(service.IPv6), 503, 503},
		"an unanswered check":           {Options{}, nil, blocked(), 200, 200},
	} {
		t.Run(name, func(t *testing.T) {
			m := programmed(tt.options, tt.failing...)
			tt.set(m)
			for path, want := range map[string]int{"/healthz": tt.healthz, "/livez": tt.livez} {
				got := ask(m.Handler(Observer{}), "GET", path, "")
				kit.Check(t, got.Code == want, "%s = %d, want %d: %s", path, got.Code, want, got.Body)
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
		kit.Same(t, fmt.Sprintf("%s (-want +got)", path), want, w.Body.String())
		got := w.Header().Get("Content-Type") + " " + w.Header().Get("X-Content-Type-Options")
		kit.Check(t, got == "application/json nosniff", "%s: headers = %q", path, got)
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
		got := ask(m.Handler(Observer{}), "GET", path, "")
		kit.Check(t, got.Code == want, "%s = %d, want %d", path, got.Code, want)
	}
	var r Report
	body := ask(m.Handler(Observer{}), "GET", "/healthz?family=IPv4", "").Body.Bytes()
	err := json.Unmarshal(body, &r)
	kit.Check(t, err == nil && len(r.Status) == 1 && r.Healthy && !r.LastUpdated.IsZero(), "body = %s, %v; want that of IPv4", body, err)
	w := ask(m.Handler(Observer{}), "POST", "/healthz", "")
	kit.Check(t, w.Code == 405, "POST = %d, want 405", w.Code)
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
	kit.Same(t, "(-want +got)", want, maps.Clone(got))
}

// TestRedact checks answers of the health server, whose clients may be other tenants.
func TestRedact(t *testing.T) {
	named := errors.New("service secret/vault: 10.1.2.3")
	m := New(Options{Families: service.Families[:], SyncPeriod: time.Minute, Sources: func() []Source {
		return []Source{{Name: "manifests", Synced: true, Err: named.Error()}}
	}})
	m.Result(service.IPv4, reconcile.Result{Start: time.Now(), Outcome: reconcile.Outcome{Err: named}})
	m.Result(service.IPv6, reconcile.Result{Start: time.Now(), Outcome: reconcile.Outcome{Err: &reconcile.PortError{Name: service.PortName{Namespace: "secret", Name: "vault"}, Err: named}}})
	m.SetDetailedCondition("relay", "clients are refused", named.Error())
	for _, path := range []string{"/healthz", "/livez", "/healthz?family=IPv4"} {
		w := httptest.NewRecorder()
		m.Handler(Observer{}).ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		body := w.Body.String()
		kit.Check(t, !strings.Contains(body, "vault") && !strings.Contains(body, "10.1.2.3"),
			"%s names somebody: %s", path, body)
		for _, want := range []string{"clients are refused", "kube-proxy status"} {
			kit.Check(t, strings.Contains(body, want), "%s does not say %q: %s", path, want, body)
		}
	}
	if r := m.Report(); !strings.Contains(r.Conditions["relay"], "vault") || !strings.Contains(r.Status["IPv4"].LastError, "vault") || !strings.Contains(r.Sources[0].Error, "vault") {
		t.Errorf("status has %+v", r)
	}
}
