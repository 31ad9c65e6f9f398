// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package view

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"kubeproxy/common/statusview"
)

func TestHandler(t *testing.T) {
	h := Handler(func() *statusview.Overview { return &statusview.Overview{Verdict: "fine"} })
	for _, tt := range []struct {
		path, kind, has string
		status          int
	}{
		{"/view/", "text/html; charset=utf-8", `src="page.js"`, http.StatusOK},
		{"/view/page.css", "text/css; charset=utf-8", "prefers-color-scheme", http.StatusOK},
		{"/view/page.js", "text/javascript; charset=utf-8", "use strict", http.StatusOK},
		{"/view/overview", "application/json", `"verdict":"fine"`, http.StatusOK},
		{"/view/view.go", "", "", http.StatusNotFound},
		{"/view/..%2fview.go", "", "", http.StatusNotFound},
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, tt.path, nil))
		if w.Code != tt.status || tt.status == http.StatusOK && (w.Header().Get("Content-Type") != tt.kind || !strings.Contains(w.Body.String(), tt.has)) {
			t.Errorf("%s: status %d, type %q, want %d, %q with %q", tt.path, w.Code, w.Header().Get("Content-Type"), tt.status, tt.kind, tt.has)
		}
		if tt.path == "/view/" && w.Header().Get("Content-Security-Policy") != policy {
			t.Errorf("%s: policy %q", tt.path, w.Header().Get("Content-Security-Policy"))
		}
	}
}

// TestMarkup reads the script: text of a cluster, or of a proxy that lies, must not become markup.
func TestMarkup(t *testing.T) {
	script, err := files.ReadFile("page.js")
	if err != nil {
		t.Fatal(err)
	}
	for _, way := range []string{"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "DOMParser", "eval(", "Function(", "://"} {
		if strings.Contains(string(script), way) {
			t.Errorf("page.js has %s", way)
		}
	}
}
