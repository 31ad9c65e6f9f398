// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package outage

import (
	"testing"

	"kubeproxy/test/cluster"
)

// TestAnswers shares one healthy control plane. Each part has a node of its own, for
// which a fault proxy spoils the responses.
func TestAnswers(t *testing.T) {
	t.Parallel()
	parts := []struct {
		name string
		test func(*testing.T, *site)
	}{
		{"slow", testSlow},
		{"token", testWrongToken},
		{"expired", testExpired},
		{"no-nodes", testNoNodes},
		{"no-slices", testNoSlices},
		{"health", testHealthPort},
		{"metrics", testMetricsPort},
	}
	var names []string
	for _, x := range apiFaults() {
		names = append(names, x.name)
	}
	for _, p := range parts {
		names = append(names, p.name)
	}
	s := newSite(t, cluster.Options{Authorization: cluster.RBAC}, names...)
	if err := s.save(t.Context(), webOf(s)); err != nil {
		t.Fatal(err)
	}
	for i, x := range apiFaults() {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			x.test(t, s, 100+2*i)
		})
	}
	for _, p := range parts {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			p.test(t, s)
		})
	}
}

// webOf is a Service that always exists.
func webOf(s *site) app { return newApp("web", 1, s.webs()...) }
