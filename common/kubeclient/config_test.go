// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeclient

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
)

// TestRedirectsAreRefused asks a server that sends its clients elsewhere.
func TestRedirectsAreRefused(t *testing.T) {
	followed := false
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { followed = true }))
	defer elsewhere.Close()
	for _, status := range []int{301, 302, 303, 307, 308} {
		server := httptest.NewServer(http.RedirectHandler(elsewhere.URL+"/secret", status))
		defer server.Close()
		to, err := (&Options{Master: server.URL}).Config()
		if err != nil {
			t.Fatal(err)
		}
		client, err := rest.HTTPClientFor(to)
		if err != nil {
			t.Fatal(err)
		}
		q, _ := http.NewRequestWithContext(context.Background(), "GET", server.URL, nil)
		if _, err := client.Do(q); err == nil || followed || !strings.Contains(err.Error(), "a redirect to") {
			t.Errorf("status %d: %v, followed: %t", status, err, followed)
		}
	}
}

// TestMaster checks that --master is validated with a kubeconfig and without, and that
// the error names the flag, not the field that it replaces.
func TestMaster(t *testing.T) {
	for master, good := range map[string]bool{
		"192.0.2.1:6443": true, "https://192.0.2.1:6443": true, "http://localhost:8080": true, "https://[2001:db8::1]": true, "api.example": true,
		":::bad": false, "ftp://192.0.2.1": false, "http://192.0.2.1:port": false, "192.0.2.1:66666": false, "https://": false, "https://:6443": false,
	} {
		_, err := (&Options{Master: master}).Config()
		switch {
		case good && err != nil:
			t.Errorf("--master %s: %v", master, err)
		case !good && (err == nil || !strings.Contains(err.Error(), "--master: ") || !strings.Contains(err.Error(), "want one like https://")):
			t.Errorf("--master %s: %v, want an error that names the flag and the form", master, err)
		}
	}
}
