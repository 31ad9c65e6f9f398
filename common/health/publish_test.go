// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package health

import (
	"errors"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

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
		if strings.Contains(body, "vault") || strings.Contains(body, "10.1.2.3") {
			t.Errorf("%s names somebody: %s", path, body)
		}
		for _, want := range []string{"clients are refused", "kube-proxy status"} {
			if !strings.Contains(body, want) {
				t.Errorf("%s does not say %q: %s", path, want, body)
			}
		}
	}
	if r := m.Report(); !strings.Contains(r.Conditions["relay"], "vault") || !strings.Contains(r.Status["IPv4"].LastError, "vault") || !strings.Contains(r.Sources[0].Error, "vault") {
		t.Errorf("status has %+v", r)
	}
}
