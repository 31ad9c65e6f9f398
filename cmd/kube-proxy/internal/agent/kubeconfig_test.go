// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"kubeproxy/common/condition"
	"kubeproxy/common/service"
	"kubeproxy/common/statusview"
	"kubeproxy/config"
	"kubeproxy/platform/mode"
	"kubeproxy/test/kit"
	"kubeproxy/test/toymode"
)

// fakeCluster is an API server that has Services and nothing else, and knows one token.
type fakeCluster struct {
	*httptest.Server
	token    string
	services int
	watches  atomic.Int32
}

func newFakeCluster(t *testing.T, token string, services int) *fakeCluster {
	t.Helper()
	c := &fakeCluster{token: token, services: services}
	c.Server = httptest.NewTLSServer(c)
	t.Cleanup(func() {
		c.CloseClientConnections()
		c.Close()
	})
	return c
}

// ServeHTTP implements http.Handler. Watches say nothing.
func (c *fakeCluster) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	refuse := func(code int, reason string) {
		w.WriteHeader(code)
		fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":%d,"reason":%q}`, code, reason)
	}
	kind, version := map[string]string{"services": "ServiceList", "endpointslices": "EndpointSliceList", "nodes": "NodeList"}[path.Base(q.URL.Path)], "v1"
	if strings.Contains(q.URL.Path, "discovery") {
		version = "discovery.k8s.io/v1"
	}
	switch {
	case q.Header.Get("Authorization") != "Bearer "+c.token:
		refuse(http.StatusUnauthorized, "Unauthorized")
	case kind == "":
		refuse(http.StatusNotFound, "NotFound")
	case q.URL.Query().Get("sendInitialEvents") != "":
		refuse(http.StatusUnprocessableEntity, "Invalid")
	case q.URL.Query().Get("watch") != "":
		c.watches.Add(1)
		defer c.watches.Add(-1)
		w.(http.Flusher).Flush()
		<-q.Context().Done()
	default:
		items := []any{}
		for i := range c.services {
			items = append(items, map[string]any{
				"metadata": map[string]any{"namespace": "shop", "name": fmt.Sprint("web-", i), "resourceVersion": "7"},
				"spec":     map[string]any{"clusterIP": fmt.Sprint("10.96.0.", i+1), "ports": []any{map[string]any{"port": 80}}},
			})
		}
		if kind != "ServiceList" {
			items = items[:0]
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"kind": kind, "apiVersion": version, "metadata": map[string]any{"resourceVersion": "7"}, "items": items})
	}
}

// kubeconfig returns a kubeconfig for c.
func (c *fakeCluster) kubeconfig(token string) string {
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate().Raw})
	text, _ := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": "a",
		"clusters": []any{map[string]any{"name": "a", "cluster": map[string]any{"server": c.URL, "certificate-authority-data": ca}}},
		"users":    []any{map[string]any{"name": "a", "user": map[string]any{"token": token}}},
		"contexts": []any{map[string]any{"name": "a", "context": map[string]any{"cluster": "a", "user": "a"}}},
	})
	return string(text)
}

// TestKubeconfigFollowed moves a running proxy from one API server to another one by its kubeconfig, which is
// in a volume of a pod. Files that cannot be used are a condition, and change nothing.
func TestKubeconfigFollowed(t *testing.T) {
	first, second := newFakeCluster(t, "one", 1), newFakeCluster(t, "two", 2)
	volume := t.TempDir()
	file := filepath.Join(volume, "kubeconfig.conf")
	swap := 0
	put := func(text string) { // as kubelet does
		t.Helper()
		swap++
		data := fmt.Sprint("..data-", swap)
		err := os.Mkdir(filepath.Join(volume, data), 0o700)
		kit.WriteFile(t, filepath.Join(volume, data, "kubeconfig.conf"), text)
		next := filepath.Join(volume, "..next")
		if err := errors.Join(err, os.Symlink(data, next), os.Rename(next, filepath.Join(volume, "..data"))); err != nil {
			t.Fatal(err)
		}
	}
	if runtime.GOOS == "windows" { // Wine renames no symbolic links
		put = func(text string) { kit.WriteFile(t, file, text) }
	} else if err := os.Symlink(filepath.Join("..data", "kubeconfig.conf"), file); err != nil {
		t.Fatal(err)
	}
	put(first.kubeconfig("one"))
	toy := toymode.New("toy")
	p := startProxyOf(t, testSystem(), mode.Table{toy.Mode()}, func(o *Options, c *config.Config) { o.Manifests, c.ClientConnection.Kubeconfig = nil, file })
	latest := 0
	awaitPorts := func(n int) {
		t.Helper()
		kit.Until(t, fmt.Sprint(n, " ports"), func() bool {
			for len(toy.Programmed) > 0 {
				latest = (<-toy.Programmed).Len(service.IPv4)
			}
			return latest == n
		})
	}
	condition := func() string {
		answer, err := (&statusview.Query{Server: p.server}).Ask(t.Context())
		if err != nil {
			return err.Error()
		}
		return answer.Health.Conditions[string(condition.Kubeconfig)]
	}
	awaitPorts(1)
	for _, bad := range []struct{ text, want string }{
		{strings.Replace(first.kubeconfig("one"), first.URL, "", 1), "clusters[a].cluster.server is missing"},
		{"kind: [", "kubeconfig.conf: "},
		{second.kubeconfig("three"), second.URL + " does not work"},
	} {
		put(bad.text)
		kit.Until(t, "a condition with "+bad.want, func() bool { return strings.Contains(condition(), bad.want) })
	}
	if awaitPorts(1); first.watches.Load() != 3 || second.watches.Load() != 0 {
		t.Errorf("%d watches of the API server in use, %d of the other one", first.watches.Load(), second.watches.Load())
	}
	put(first.kubeconfig("one"))
	kit.Until(t, "no condition", func() bool { return condition() == "" })
	put(second.kubeconfig("two"))
	awaitPorts(2)
	kit.Until(t, "watches of the other API server alone", func() bool { return first.watches.Load() == 0 && second.watches.Load() == 3 })
	if text := condition(); text != "" || !strings.Contains(p.log.String(), "The kubeconfig changed and is in force") {
		t.Errorf("condition %q, log:\n%s", text, p.log.String())
	}
}
