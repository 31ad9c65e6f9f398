// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeclient

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"kubeproxy/common/source"
)

// TestRemedies checks that the remedy is for the component at fault: an HTTP proxy on the
// way may be the one that refuses a connection.
func TestRemedies(t *testing.T) {
	refused := &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	o := &Options{Master: "192.0.2.1:6443"}
	for name, tc := range map[string]struct {
		err  error
		want string // empty for no remedy
	}{
		"nobody listens":       {refused, "nobody listens there: check --master"},
		"no proxy":             {fmt.Errorf("get: %w", &net.OpError{Op: "proxyconnect", Net: "tcp", Err: refused}), "HTTPS_PROXY"},
		"HTTP instead of TLS":  {apierrors.NewGenericServerResponse(400, "get", schema.GroupResource{}, "", "", 0, true), "--master begins with https://"},
		"login":                {apierrors.NewUnauthorized("no"), "credentials in the service account"},
		"HTML for a watch":     {runtime.NegotiateError{ContentType: "text/html", Stream: true}, "and of no API server: check --master"},
		"HTML for a list":      {errors.New("serializer for text/html doesn't exist"), "and of no API server: check --master"},
		"another server":       {&source.ReadError{Kind: "nodes", Err: apierrors.NewGenericServerResponse(404, "get", schema.GroupResource{}, "", "", 0, true)}, "it is no API server, or older"},
		"silence":              {fmt.Errorf("%w in 30s", source.ErrNoAnswer), "check --master, that its name is resolved"},
		"an end":               {&source.ReadError{Kind: "nodes", Err: source.ErrCutOff}, "speaks TLS"},
		"nothing can be known": {errors.New("a fault"), ""},
	} {
		got := o.Remedy(tc.err)
		if (got == "") != (tc.want == "") || !strings.Contains(got, tc.want) {
			t.Errorf("%s: remedy %q, want %q in it", name, got, tc.want)
		}
	}
}
