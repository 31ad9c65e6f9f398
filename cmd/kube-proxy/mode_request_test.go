// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"
	"k8s.io/kube-proxy/config/v1alpha1"

	"kubeproxy/common/source"
	"kubeproxy/config"
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
			var log bytes.Buffer
			ctx := klog.NewContext(t.Context(), textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&log))))
			got := newModeRequest(ctx, c, &source.APIServer{Config: &rest.Config{Host: server.URL}, NodeName: "node-a"})
			if want := (modeRequest{tt.mode, tt.annotated}); got != want || !strings.Contains(log.String(), tt.logged) || tt.logged == "" && log.Len() > 0 {
				t.Errorf("wish %v, log %q; want %v, %q", got, log.String(), want, tt.logged)
			}
		})
	}
	c := &config.Config{OS: config.Linux}
	if got := newModeRequest(t.Context(), c, &source.Manifests{}); got != (modeRequest{}) {
		t.Errorf("with manifests, wish %v", got)
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
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c := &config.Config{OS: config.Linux}
	from := &source.Manifests{Paths: []string{filepath.Join(dir, "missing"), dir}, NodeName: "Node-A"}
	if got := newModeRequest(t.Context(), c, from); got != (modeRequest{annotated: "userspace"}) {
		t.Errorf("wish %v", got)
	}
	c.Mode = "iptables"
	if got := newModeRequest(t.Context(), c, from); got.annotated != "" {
		t.Errorf("with a configured mode, wish %v", got)
	}
}

// TestAnnotationChanges changes the annotation of the Node several times.
func TestAnnotationChanges(t *testing.T) {
	for situation, tt := range map[string]struct {
		annotations []string
		selected    map[v1alpha1.ProxyMode]string // by annotation, empty for an error
		ends        bool
		logged      string
	}{
		"as before":            {annotations: []string{"ipvs", "ipvs"}},
		"another mode":         {annotations: []string{"iptables"}, selected: map[v1alpha1.ProxyMode]string{"iptables": "iptables"}, ends: true, logged: `next="iptables"`},
		"none any more":        {annotations: []string{""}, selected: map[v1alpha1.ProxyMode]string{"": "userspace"}, ends: true, logged: `next="userspace"`},
		"removed and set":      {annotations: []string{"", "ipvs"}},
		"one that cannot work": {annotations: []string{"userspace"}, selected: map[v1alpha1.ProxyMode]string{"userspace": "nftables"}, logged: "the present one stays"},
		"no such mode":         {annotations: []string{"ipvs", "magic", "magic"}, selected: map[v1alpha1.ProxyMode]string{"": "nftables"}, logged: "does not exist"},
		"nothing would start":  {annotations: []string{"iptables"}, logged: "could not start"},
		"one is configured":    {annotations: []string{"iptables"}, selected: map[v1alpha1.ProxyMode]string{"iptables": ""}, logged: "since one is configured"},
	} {
		t.Run(situation, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				log, logText := newLog(2)
				f := &annotationWatcher{os: config.Linux, mode: "nftables", log: log, kick: make(chan struct{}, 1), annotated: "ipvs", evaluated: "ipvs"}
				f.selectMode = func(_ context.Context, m v1alpha1.ProxyMode) (string, error) {
					if next, ok := tt.selected[m]; ok {
						return next, nil
					}
					return "", errors.New("the kernel is out of order")
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				for _, mode := range tt.annotations {
					n := &corev1.Node{}
					n.Annotations = map[string]string{modeAnnotation: mode}
					f.nodeChanged(n)
				}
				if err := f.run(ctx); errors.Is(err, errRestart) != tt.ends {
					t.Errorf("run = %v, want an end: %t", err, tt.ends)
				}
				if n := strings.Count(logText.String(), "does not exist"); n > 1 {
					t.Errorf("the same is said %d times", n)
				}
				if !strings.Contains(logText.String(), tt.logged) || tt.logged == "" && logText.Len() > 0 {
					t.Errorf("the log says %q, want %q", logText, tt.logged)
				}
			})
		})
	}
	var disabled *annotationWatcher // if the annotation does not count
	disabled.nodeChanged(&corev1.Node{})
	if err := disabled.run(t.Context()); err != nil {
		t.Errorf("nobody: %v", err)
	}
}
