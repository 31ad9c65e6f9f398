// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"
	"k8s.io/kube-proxy/config/v1alpha1"

	"kubeproxy/common/source"
	"kubeproxy/config"
)

// TestModeWish reads what the Node asks for where nobody else does.
func TestModeWish(t *testing.T) {
	node := func(mode string) string {
		return fmt.Sprintf(`{"kind": "NodeList", "apiVersion": "v1", "items": [{"metadata": {"name": "node-a", "annotations": {%q: %q}}}]}`, modeAnnotation, mode)
	}
	for situation, tt := range map[string]struct {
		mode      v1alpha1.ProxyMode // that is configured
		os        config.OS
		answer    string // nothing: the API server is at a loss
		annotated v1alpha1.ProxyMode
		told      string
	}{
		"a mode":              {os: config.Linux, answer: node("iptables"), annotated: "iptables", told: "The Node asks for a mode"},
		"a mode to come":      {os: config.Linux, answer: node("ipvs"), annotated: "ipvs", told: "The Node asks for a mode"},
		"no such mode":        {os: config.Linux, answer: node("magic"), told: "does not exist, which is ignored"},
		"one of Windows":      {os: config.Linux, answer: node("kernelspace"), told: "does not exist, which is ignored"},
		"no annotation":       {os: config.Linux, answer: node("")},
		"no Node":             {os: config.Linux, answer: `{"kind": "NodeList", "apiVersion": "v1", "items": []}`},
		"no answer":           {os: config.Linux, told: "cannot be read now"},
		"something is chosen": {mode: "nftables", os: config.Linux, answer: node("iptables")},
		"on Windows":          {os: config.Windows, answer: node("iptables")},
	} {
		t.Run(situation, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				if got := r.URL.Query().Get("fieldSelector"); got != "metadata.name=node-a" {
					t.Errorf("asked for %q", got)
				}
				if tt.answer == "" {
					http.Error(w, "not now", http.StatusServiceUnavailable)
					return
				}
				w.Header().Set("Content-Type", "application/json")
				_, _ = io.WriteString(w, tt.answer)
			}))
			defer server.Close()
			c := &config.Config{OS: tt.os}
			c.Mode = tt.mode
			var log bytes.Buffer
			ctx := klog.NewContext(t.Context(), textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&log))))
			got := newModeWish(ctx, c, &source.APIServer{Config: &rest.Config{Host: server.URL}, NodeName: "node-a"})
			if want := (modeWish{tt.mode, tt.annotated}); got != want || !strings.Contains(log.String(), tt.told) || tt.told == "" && log.Len() > 0 {
				t.Errorf("wish %v, log %q; want %v, %q", got, log.String(), want, tt.told)
			}
		})
	}
	c := &config.Config{OS: config.Linux}
	if got := newModeWish(t.Context(), c, &source.Manifests{}); got != (modeWish{}) {
		t.Errorf("with manifests, wish %v", got)
	}
}
