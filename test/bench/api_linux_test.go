// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// fetch decodes a response of the server.
func fetch[T any](t *testing.T, s *httptest.Server, path string) (into T, code int) {
	t.Helper()
	r, err := s.Client().Get(s.URL + path)
	if err != nil {
		t.Fatalf("GET %s: %v", path, err)
	}
	defer r.Body.Close()
	if err := json.NewDecoder(r.Body).Decode(&into); err != nil {
		t.Fatalf("GET %s: %v", path, err)
	}
	return into, r.StatusCode
}

func TestAPIServerLists(t *testing.T) {
	api := newAPIServer(3, func() time.Duration { return time.Second })
	s := httptest.NewServer(api)
	defer s.Close()
	services, _ := fetch[corev1.ServiceList](t, s, servicesPath)
	parts, _ := fetch[discoveryv1.EndpointSliceList](t, s, slicesPath)
	want := []*corev1.Service{newService(0), newService(1), newService(2)}
	for i := range services.Items {
		if diff := cmp.Diff(want[i], &services.Items[i]); diff != "" {
			t.Errorf("Service %d (-want +got):\n%s", i, diff)
		}
	}
	if len(services.Items) != 3 || len(parts.Items) != 3 || len(parts.Items[2].Endpoints) != perService {
		t.Errorf("%d Services and %d EndpointSlices, want 3 and 3", len(services.Items), len(parts.Items))
	}
	for path, want := range map[string]int{
		cidrsPath: 200, nodesPath: 200, nodesPath + "/" + ownNode: 200, nodesPath + "/other": 404, "/api/v1/pods": 404,
		servicesPath + "?watch=true&sendInitialEvents=true": 422,
	} {
		if _, code := fetch[map[string]any](t, s, path); code != want {
			t.Errorf("GET %s: status %d, want %d", path, code, want)
		}
	}
	if _, _, ok := api.whenDelivered(); ok {
		t.Error("everything is delivered before anybody watches")
	}
}

func TestAPIServerWatch(t *testing.T) {
	api := newAPIServer(1, func() time.Duration { return time.Second })
	s := httptest.NewServer(api)
	defer s.Close()
	var watches []*http.Response
	for _, path := range []string{servicesPath, slicesPath} {
		fetch[map[string]any](t, s, path)
		r, err := s.Client().Get(s.URL + path + "?watch=1")
		if err != nil {
			t.Fatalf("watch %s: %v", path, err)
		}
		defer r.Body.Close()
		watches = append(watches, r)
	}
	if _, cpu, ok := api.whenDelivered(); !ok || cpu != time.Second {
		t.Errorf("whenDelivered = %s, %v, want 1s, true", cpu, ok)
	}
	send, err := api.update(newSlice(0, []int{5}))
	if err != nil {
		t.Fatalf("update: %v", err)
	}
	send()
	line, err := bufio.NewReader(watches[1].Body).ReadBytes('\n')
	if err != nil {
		t.Fatalf("read an event: %v", err)
	}
	var got struct {
		Type   string
		Object discoveryv1.EndpointSlice
	}
	if err := json.Unmarshal(line, &got); err != nil {
		t.Fatalf("decode an event: %v", err)
	}
	want := newSlice(0, []int{5})
	want.ResourceVersion = "2"
	if diff := cmp.Diff(want, &got.Object); diff != "" || got.Type != "MODIFIED" {
		t.Errorf("event %s (-want +got):\n%s", got.Type, diff)
	}
	api.forget()
	if _, _, ok := api.whenDelivered(); ok {
		t.Error("a client that has yet to come has everything")
	}
}
