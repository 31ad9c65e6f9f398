// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/rest"
)

// TestAnotherServer moves from one API server to another one, whose versions are older or newer. What it lacks
// is deleted once it is known. Before, a server that refuses changes nothing.
func TestAnotherServer(t *testing.T) {
	for _, streams := range []bool{true, false} {
		for _, revision := range []int{10, 1000} {
			t.Run(fmt.Sprintf("streams %t, revision %d", streams, revision), func(t *testing.T) {
				bubble(t, func(t *testing.T) { testAnotherServer(t, streams, revision) })
			})
		}
	}
}

func testAnotherServer(t *testing.T, streams bool, revision int) {
	first, second := newFakeAPI(100), newFakeAPI(revision)
	first.streams, second.streams = streams, streams
	for s, names := range map[*fakeAPI][]string{first: {"gone", "kept"}, second: {"kept", "new"}} {
		for _, name := range names {
			s.set(kindServices, name, map[string]any{"spec": map[string]any{"clusterIP": "10.96.0.1"}})
		}
	}
	to := &rest.Config{Host: "https://192.0.2.2", Transport: second, QPS: -1}
	second.refuse = func(*http.Request) *http.Response {
		return statusAnswer(http.StatusUnauthorized, `"reason":"Unauthorized"`)
	}
	a, r := &APIServer{}, &recorder{open: true}
	first.follow(t, a, r, func() {
		r.take()
		if err := a.Use(t.Context(), to); err == nil || !strings.Contains(err.Error(), "services") {
			t.Errorf("a server that refuses is used: %v", err)
		}
		first.set(kindServices, "kept", map[string]any{"spec": map[string]any{"clusterIP": "10.96.0.2"}})
		synctest.Wait()
		if calls, _ := r.take(); !slices.Equal(calls, []string{"set service d/kept 10.96.0.2"}) {
			t.Errorf("with a server that refuses, the Sink got %q", calls)
		}

		second.refuse = nil
		if err := a.Use(t.Context(), to); err != nil {
			t.Fatal(err)
		}
		pass(2*maxRelistPause + time.Second)
		calls, _ := r.take()
		if diff := cmp.Diff([]string{"delete service d/gone", "set service d/kept 10.96.0.1", "set service d/new 10.96.0.1"}, sorted(calls)); diff != "" {
			t.Errorf("after the move (-want +got):\n%s", diff)
		}
		if len(first.watches) > 0 || len(second.watches) != len(apiKinds) {
			t.Errorf("%d watches of the server before, %d of the other one", len(first.watches), len(second.watches))
		}
		second.set(kindServices, "new", map[string]any{"spec": map[string]any{"clusterIP": "10.96.0.3"}})
		synctest.Wait()
		if calls, _ := r.take(); !slices.Equal(calls, []string{"set service d/new 10.96.0.3"}) {
			t.Errorf("later, the Sink got %q", calls)
		}
	})
}
