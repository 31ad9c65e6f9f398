// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"kubeproxy/config"
)

// TestRemedies checks that the remedy is for the component at fault: an HTTP proxy on the
// way may be the one that refuses a connection.
func TestRemedies(t *testing.T) {
	refused := &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	remedy := remedies(&config.Config{Master: "192.0.2.1:6443"})
	for name, tc := range map[string]struct {
		err  error
		want string // empty for no remedy
	}{
		"nobody listens":       {refused, "nobody listens there: check --master"},
		"no proxy":             {fmt.Errorf("get: %w", &net.OpError{Op: "proxyconnect", Net: "tcp", Err: refused}), "HTTPS_PROXY"},
		"HTTP instead of TLS":  {apierrors.NewGenericServerResponse(400, "get", schema.GroupResource{}, "", "", 0, true), "--master begins with https://"},
		"login":                {apierrors.NewUnauthorized("no"), "credentials in the service account"},
		"nothing can be known": {errors.New("trouble"), ""},
	} {
		got := remedy(tc.err)
		if (got == "") != (tc.want == "") || !strings.Contains(got, tc.want) {
			t.Errorf("%s: remedy %q, want %q in it", name, got, tc.want)
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
		_, err := apiConfig(&config.Config{Master: master})
		switch {
		case good && err != nil:
			t.Errorf("--master %s: %v", master, err)
		case !good && (err == nil || !strings.Contains(err.Error(), "--master: ") || !strings.Contains(err.Error(), "want one like https://")):
			t.Errorf("--master %s: %v, want an error that names the flag and the form", master, err)
		}
	}
}
