// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/kube-proxy/config/v1alpha1"

	"kubeproxy/common/source"
	"kubeproxy/config"
	"kubeproxy/platform/modes"
	"kubeproxy/test/kit"
)

// TestModeRequest reads the annotation of the Node if no mode is configured.
func TestModeRequest(t *testing.T) {
	node := func(mode string) string {
		return fmt.Sprintf(`{"kind": "NodeList", "apiVersion": "v1", "items": [{"metadata": {"name": "node-a", "annotations": {%q: %q}}}]}`, modeAnnotation, mode)
	}
	for situation, tt := range map[string]struct {
		mode      v1alpha1.ProxyMode // that is configured
		os        config.OS
		answer    string // empty: the API server fails
		annotated v1alpha1.ProxyMode
		logged    string
	}{
		"a mode":              {os: config.Linux, answer: node("iptables"), annotated: "iptables", logged: "The Node asks for a mode"},
		"a mode to come":      {os: config.Linux, answer: node("ipvs"), annotated: "ipvs", logged: "The Node asks for a mode"},
		"no such mode":        {os: config.Linux, answer: node("magic"), logged: "does not exist, which is ignored"},
		"one of Windows":      {os: config.Linux, answer: node("kernelspace"), logged: "does not exist, which is ignored"},
		"no annotation":       {os: config.Linux, answer: node("")},
		"no Node":             {os: config.Linux, answer: `{"kind": "NodeList", "apiVersion": "v1", "items": []}`},
		"no answer":           {os: config.Linux, logged: "cannot be read now"},
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
			logger, log := kit.NewLog(0)
			ctx := klog.NewContext(t.Context(), logger)
			got := newModeRequest(ctx, c, NewOptions(modes.All()), &source.APIServer{Config: &rest.Config{Host: server.URL}, NodeName: "node-a"})
			if want := (modeRequest{tt.mode, tt.annotated}); got != want || !strings.Contains(log.String(), tt.logged) || tt.logged == "" && log.Len() > 0 {
				t.Errorf("request %v, log %q; want %v, %q", got, log.String(), want, tt.logged)
			}
		})
	}
	c := &config.Config{OS: config.Linux}
	if got := newModeRequest(t.Context(), c, NewOptions(modes.All()), &source.Manifests{}); got != (modeRequest{}) {
		t.Errorf("with manifests, request %v", got)
	}
}

// TestModeRequestOfManifests finds the Node among other files, some of them unreadable.
func TestModeRequestOfManifests(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"a.yaml": "kind: Node: no",
		"b.yaml": "apiVersion: v1\nkind: Node\nmetadata: {name: node-b, annotations: {net.experimental.kubernetes.io/proxy-mode: ipvs}}\n",
		"c.yaml": "apiVersion: v1\nkind: Node\nmetadata: {name: node-a, annotations: {net.experimental.kubernetes.io/proxy-mode: userspace}}\n",
	} {
		kit.WriteFile(t, filepath.Join(dir, name), text)
	}
	c := &config.Config{OS: config.Linux}
	from := &source.Manifests{Paths: []string{filepath.Join(dir, "missing"), dir}, NodeName: "Node-A"}
	if got := newModeRequest(t.Context(), c, NewOptions(modes.All()), from); got != (modeRequest{annotated: "userspace"}) {
		t.Errorf("request %v", got)
	}
	c.Mode = "iptables"
	if got := newModeRequest(t.Context(), c, NewOptions(modes.All()), from); got.annotated != "" {
		t.Errorf("with a configured mode, request %v", got)
	}
}
