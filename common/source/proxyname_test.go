// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// selecting records the label selectors of requests for Services.
type selecting struct{ labels chan string }

func (s selecting) RoundTrip(r *http.Request) (*http.Response, error) {
	if strings.HasSuffix(r.URL.Path, "/services") {
		select {
		case s.labels <- r.URL.Query().Get("labelSelector"):
		default:
		}
	}
	return nil, syscall.ECONNREFUSED
}

// TestServicesOfThisProxy checks that no other Services are requested.
func TestServicesOfThisProxy(t *testing.T) {
	for name, want := range map[string]string{
		"":     "!service.kubernetes.io/service-proxy-name",
		"mesh": "service.kubernetes.io/service-proxy-name=mesh",
	} {
		bubble(t, func(t *testing.T) {
			ctx, stop := context.WithTimeout(t.Context(), time.Second)
			defer stop()
			s := selecting{make(chan string, 1)}
			a := &APIServer{Config: &rest.Config{Host: "https://192.0.2.1", Transport: s, QPS: -1}, NodeName: "a", ProxyName: name}
			if err := a.Run(ctx, nil); err != nil {
				t.Fatal(err)
			}
			if got := <-s.labels; got != want {
				t.Errorf("proxy %q asks for %q, want %q", name, got, want)
			}
		})
	}
}
