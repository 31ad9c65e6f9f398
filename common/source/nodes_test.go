// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// bigNode returns a Node as kubelets make them, with fifty images.
func bigNode(i int) corev1.Node {
	n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%d", i), Labels: map[string]string{"topology.kubernetes.io/zone": "a"}}}
	n.Status.Addresses = []corev1.NodeAddress{
		{Type: corev1.NodeHostName, Address: n.Name}, {Type: corev1.NodeExternalIP, Address: "192.0.2.1"},
		{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("10.0.%d.%d", i/256, i%256)}, {Type: corev1.NodeInternalIP, Address: fmt.Sprintf("fd00::%x", i)},
	}
	for j := range 50 {
		name := fmt.Sprintf("registry.example/team/image-%d", j)
		n.Status.Images = append(n.Status.Images, corev1.ContainerImage{Names: []string{name + "@sha256:" + fmt.Sprintf("%x", sha256.Sum256([]byte(name))), name + ":v1.2.3"}, SizeBytes: 1 << 28})
	}
	return n
}

// nodeServer is an API server with some Nodes. It counts requests and bytes.
type nodeServer struct {
	*httptest.Server
	requests, bytes atomic.Int64
	queries         []string
	answer          string // instead of a list, if set
}

// Write counts what is sent.
func (s *nodeServer) Write(b []byte) (int, error) {
	s.bytes.Add(int64(len(b)))
	return len(b), nil
}

func newNodeServer(t *testing.T, count int) *nodeServer {
	var all []corev1.Node
	for i := range count {
		all = append(all, bigNode(i))
	}
	s := &nodeServer{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		s.requests.Add(1)
		s.queries = append(s.queries, q.URL.RawQuery)
		list := corev1.NodeList{TypeMeta: metav1.TypeMeta{Kind: "NodeList", APIVersion: "v1"}, Items: all}
		if name, is := strings.CutPrefix(q.URL.Query().Get("fieldSelector"), "metadata.name="); is {
			list.Items = slices.DeleteFunc(slices.Clone(all), func(n corev1.Node) bool { return n.Name != name })
		}
		w.Header().Set("Content-Type", "application/json")
		var to io.Writer = io.MultiWriter(s, w)
		if len(list.Items) > 10 && strings.Contains(q.Header.Get("Accept-Encoding"), "gzip") { // as API servers do from 128 KiB
			w.Header().Set("Content-Encoding", "gzip")
			zip := gzip.NewWriter(to)
			defer zip.Close()
			to = zip
		}
		if s.answer != "" {
			_, _ = io.WriteString(to, s.answer)
			return
		}
		_ = json.NewEncoder(to).Encode(list)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *nodeServer) source() *APIServer {
	return &APIServer{Config: &rest.Config{Host: s.URL, QPS: -1}}
}

// Few Nodes are read one by one, and many by one list, of which only a Node at a time is in memory.
func TestNodes(t *testing.T) {
	s := newNodeServer(t, 1000)
	var names []string
	for i := range 1000 {
		names = append(names, fmt.Sprintf("node-%d", i))
	}
	for _, tc := range []struct {
		names    []string
		requests int64
		bytes    int64 // at most
	}{
		{names[:1], 1, 16 << 10},
		{append(names[:3:3], "none"), 4, 3 * 16 << 10},
		{names, 1, 2 << 20},
	} {
		t.Run(fmt.Sprint(len(tc.names)), func(t *testing.T) {
			s.requests.Store(0)
			s.bytes.Store(0)
			s.queries = nil
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			got := map[string][]netip.Addr{}
			err := s.source().Nodes(t.Context(), tc.names, func(name string, all []netip.Addr) { got[name] = all })
			runtime.ReadMemStats(&after)
			t.Logf("%d requests, %d bytes, %d allocated", s.requests.Load(), s.bytes.Load(), after.TotalAlloc-before.TotalAlloc)
			if err != nil || s.requests.Load() != tc.requests || s.bytes.Load() > tc.bytes {
				t.Errorf("%v, %d requests and %d bytes, want %d and at most %d", err, s.requests.Load(), s.bytes.Load(), tc.requests, tc.bytes)
			}
			for _, name := range tc.names {
				var want []netip.Addr
				if i := slices.Index(names, name); i >= 0 {
					want = []netip.Addr{netip.AddrFrom4([4]byte{10, 0, byte(i / 256), byte(i)}), netip.MustParseAddr(fmt.Sprintf("fd00::%x", i))}
				}
				if !slices.Equal(got[name], want) {
					t.Fatalf("%s: %v, want %v", name, got[name], want)
				}
			}
			for _, q := range s.queries {
				if !strings.Contains(q, "resourceVersion=0") {
					t.Errorf("asked %s, want what the API server has in memory", q)
				}
			}
		})
	}
}

func TestNodesFail(t *testing.T) {
	s := newNodeServer(t, 1)
	for answer, want := range map[string]string{
		`{"kind":"PodList","items":[{"metadata":{"name":"node-0"}}]}`: "want a NodeList",
		`{"kind":"NodeList","items":[{"metadata":{"name":"node-0"}}`:  "EOF",
		`{"kind":"NodeList","items":null}`:                            "",
		`<html>`:                                                      "invalid character",
	} {
		s.answer = answer
		err := s.source().Nodes(t.Context(), []string{"node-0"}, func(string, []netip.Addr) {})
		if text := fmt.Sprint(err); (err != nil) != (want != "") || !strings.Contains(text, want) {
			t.Errorf("%s: %v, want %q", answer, err, want)
		}
	}
}

func TestNodesOfManifests(t *testing.T) {
	path := filepath.Join(t.TempDir(), "nodes.yaml")
	var text strings.Builder
	for i := range 3 {
		n := bigNode(i)
		n.TypeMeta = metav1.TypeMeta{Kind: "Node", APIVersion: "v1"}
		b, err := json.Marshal(n)
		if err != nil {
			t.Fatal(err)
		}
		text.WriteString("---\n" + string(b) + "\n")
	}
	if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	m := &Manifests{Paths: []string{path}, NodeName: "node-1"}
	got := map[string][]netip.Addr{}
	err := m.Nodes(t.Context(), []string{"node-0", "node-2", "none"}, func(name string, all []netip.Addr) { got[name] = all })
	if names := slices.Sorted(maps.Keys(got)); err != nil || fmt.Sprint(names, got["node-2"]) != "[node-0 node-2] [10.0.0.2 fd00::2]" {
		t.Errorf("%v, %v", got, err)
	}
	if own, err := m.ReadNode(t.Context()); err != nil || own == nil || own.Name != "node-1" {
		t.Errorf("the own Node is %v, %v", own, err)
	}
}
