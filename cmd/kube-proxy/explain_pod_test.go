// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"kubeproxy/common/explain"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/common/source"
	"kubeproxy/common/track"
	"kubeproxy/test/kit"
)

// runningProxy serves what a proxy of the example Services answers. It knows the pods of
// EndpointSlices alone.
func runningProxy(t *testing.T) string {
	t.Helper()
	tracker := track.New(track.Options{NodeName: "node-a", Pods: service.LocalPods{Prefixes: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}}})
	pods := explain.NewPods(tracker)
	files := source.Manifests{Paths: []string{"../../docs/examples/shop"}, NodeName: "node-a"}
	if err := files.Load(t.Context(), pods); err != nil {
		t.Fatal(err)
	}
	s := &explain.Server{
		Tracker: tracker, Local: func(netip.Addr) bool { return false },
		Trace: func(context.Context, *service.Snapshot, route.Conn) (*explain.Walk, error) { return nil, nil },
		Pod:   func(_ context.Context, id types.NamespacedName) ([]netip.Addr, string, error) { return pods.Find(id) },
	}
	mux := http.NewServeMux()
	mux.Handle("/explain", s.Handler())
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

// podServer is an API server that has the pod shop/batch-1, and forbids namespace secret.
// It returns a kubeconfig for it.
func podServer(t *testing.T) string {
	t.Helper()
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch q.URL.Path {
		case "/api/v1/namespaces/shop/pods/batch-1":
			fmt.Fprint(w, `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"batch-1","namespace":"shop"},"spec":{"nodeName":"node-b"},"status":{"phase":"Running","podIPs":[{"ip":"10.244.2.77"}]}}`)
		case "/api/v1/namespaces/secret/pods/batch-1":
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","message":"pods \"batch-1\" is forbidden: User \"eve\" cannot get resource \"pods\" in the namespace \"secret\"","code":403}`)
		default:
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","message":"pods not found","code":404}`)
		}
	}))
	t.Cleanup(api.Close)
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\nclusters:\n- name: c\n  cluster: {server: %s}\nusers:\n- name: u\n  user: {token: t}\ncontexts:\n- name: x\n  context: {cluster: c, user: u}\ncurrent-context: x\n", api.URL)
	kit.WriteFile(t, path, text)
	return path
}

// TestExplainPods asks a running proxy about pods that it knows, and about others.
func TestExplainPods(t *testing.T) {
	server, kubeconfig := runningProxy(t), podServer(t)
	for _, tc := range []struct {
		pod, kubeconfig, env string
		flags                string
		out, err             string
	}{
		{"shop/batch-1", kubeconfig, "", "", "10.244.2.77 -> 10.96.0.10:80/tcp", ""},
		{"shop/batch-1", kubeconfig, "", "", "pod shop/batch-1 runs on node node-b", ""},
		{"shop/batch-1", "", kubeconfig, "", "10.244.2.77 -> 10.96.0.10:80/tcp", ""},
		{"shop/none", kubeconfig, "", "", "", "has no pod shop/none"},
		{"shop/none", kubeconfig, "", "", "", "no EndpointSlice refers to pod shop/none by targetRef"},
		{"secret/batch-1", kubeconfig, "", "", "", `User "eve" cannot get resource "pods"`},
		{"secret/batch-1", kubeconfig, "", "", "", "want the right to get pods in namespace secret"},
		{"shop/batch-1", "", "", "--pod-address=10.244.2.78 --pod-address=fd00::78 --pod-node=node-c", "10.244.2.78 -> 10.96.0.10:80/tcp", ""},
		{"shop/batch-1", "", "", "--pod-address=fd00::78,10.244.2.78 --pod-node=node-c", "pod shop/batch-1 runs on node node-c", ""},
		{"shop/batch-1", "", "", "--pod-address=x", "", "invalid"},
		{"shop/batch-1", "", "", "--pod-address=10.244.2.78 --manifests=x", "", "want it without --manifests"},
		{"shop/batch-1", "", "", "", "", "want --kubeconfig FILE, $KUBECONFIG or ~/.kube/config"},
	} {
		t.Setenv("KUBECONFIG", tc.env)
		t.Setenv("HOME", t.TempDir())
		args := []string{"explain", "--server", server, "pod/" + tc.pod, "10.96.0.10:80"}
		args = append(args, strings.Fields(tc.flags)...)
		if tc.kubeconfig != "" {
			args = append(args, "--kubeconfig", tc.kubeconfig)
		}
		got := call(t, "", args...)
		if got.Code != exitUnknown || !strings.Contains(strings.Join(strings.Fields(got.Out), " "), tc.out) || !strings.Contains(got.Err, tc.err) || tc.err == "" && got.Err != "" {
			t.Errorf("%+v: code %d, stdout %q, stderr %q", tc, got.Code, got.Out, got.Err)
		}
	}
}
