// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"context"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The network plugin removes endpoints of pods and tells nobody. A Service that
// still leads to one of them is not out while everything is listed.
func TestPodsVanish(t *testing.T) {
	for name, tt := range map[string]struct {
		gone []string
		want []string // calls while the Service is out
		left string
	}{
		"one of two": {[]string{"10.244.1.12"}, []string{"create load balancer", "find endpoint", "find endpoint", "create load balancer"}, "[10.244.1.11]"},
		"none":       {nil, []string{"create load balancer"}, "[10.244.1.11 10.244.1.12]"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, v13, overlayN)
			b.pods("10.244.1.11", "10.244.1.12")
			b.converge(snapshot(1, clusterIP("web", "10.96.0.10", "10.244.1.11:80", "10.244.1.12:80", "10.244.2.11:80@b")))
			for id, e := range b.hns.endpoints {
				if slices.Contains(tt.gone, e.Addrs[0].String()) {
					delete(b.hns.endpoints, id)
				}
			}
			next := snapshot(2, clusterIP("web", "10.96.0.10", "10.244.1.11:80", "10.244.1.12:80"))
			p := b.plan(next)
			var calls []string
			b.hns.refuse = func(op string) error {
				if len(b.hns.balancers) == 0 {
					calls = append(calls, op)
				}
				return nil
			}
			err := p.Apply(context.Background())
			b.hns.refuse = nil
			if diff := cmp.Diff([]string{"tcp 10.96.0.10:80 " + tt.left}, b.holds()); diff != "" || (err != nil) != (len(tt.gone) > 0) {
				t.Errorf("Apply = %v (-want +got):\n%s", err, diff)
			}
			if diff := cmp.Diff(tt.want, calls); diff != "" {
				t.Errorf("calls while the Service has no load balancer (-want +got):\n%s", diff)
			}
			b.pods(tt.gone...)
			b.converge(next)
			if diff := cmp.Diff([]string{"tcp 10.96.0.10:80 [10.244.1.11 10.244.1.12]"}, b.holds()); diff != "" {
				t.Errorf("once the pod is back (-want +got):\n%s", diff)
			}
		})
	}
}
