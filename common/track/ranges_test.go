// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package track

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestServiceCIDRsApartFromPods has ranges that lie in one of pods, and ranges that
// hold endpoints, in any order. Nothing is dropped for them.
func TestServiceCIDRsApartFromPods(t *testing.T) {
	const ranges, gone = "ranges", "gone"
	inPods, endpoints := `"10.244.1.128/25" lies in the pods' range 10.244.1.0/24`, `"10.244.2.0/24" holds the addresses of endpoints`
	for name, tt := range map[string]struct {
		cluster string
		steps   []string // addresses of an endpoint, and the above
		want    []string // that count
		reasons []string
	}{
		"the endpoint is first":        {"", []string{"10.244.2.200", ranges}, []string{"10.96.0.0/16", "fd00::/112"}, []string{inPods, endpoints}},
		"the range is first":           {"", []string{ranges, "10.244.2.200"}, []string{"10.96.0.0/16", "fd00::/112"}, []string{inPods, endpoints}},
		"the endpoint is gone":         {"", []string{ranges, "10.244.2.200", gone}, []string{"10.96.0.0/16", "10.244.2.0/24", "fd00::/112"}, []string{inPods}},
		"the endpoint was gone before": {"", []string{"10.244.2.200", gone, ranges}, []string{"10.96.0.0/16", "10.244.2.0/24", "fd00::/112"}, []string{inPods}},
		"the endpoint moves": {
			"", []string{ranges, "10.244.2.200", "10.96.3.3"},
			[]string{"10.244.2.0/24", "fd00::/112"}, []string{`"10.96.0.0/16" holds the addresses of endpoints`, inPods},
		},
		"all pods": {
			"10.244.0.0/16", []string{ranges}, []string{"10.96.0.0/16", "fd00::/112"},
			[]string{`"10.244.1.128/25" lies in the pods' range 10.244.0.0/16`, `"10.244.2.0/24" lies in the pods' range 10.244.0.0/16`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			tracker := podsAndRanges(tt.cluster)
			for _, step := range tt.steps {
				switch s := plainSlice(1, 1); step {
				case ranges:
					tracker.SetServiceCIDR(&networkingv1.ServiceCIDR{Spec: networkingv1.ServiceCIDRSpec{
						CIDRs: []string{"10.96.0.0/16", "10.244.1.128/25", "10.244.2.0/24", "fd00::/112"},
					}})
				case gone:
					tracker.DeleteSlice(types.NamespacedName{Namespace: s.Namespace, Name: s.Name})
				default:
					s.Endpoints[0].Addresses = []string{step}
					tracker.SetSlice(s)
				}
				tracker.Latest()
			}
			checkRanges(t, tracker, tt.want, tt.reasons)
		})
	}
}

// podsAndRanges knows a node whose pods are in 10.244.1.0/24, and the pods of all nodes.
func podsAndRanges(cluster string) *Tracker {
	o := Options{NodeName: "a"}
	if cluster != "" {
		o.Pods.Prefixes = []netip.Prefix{netip.MustParsePrefix(cluster)}
	}
	tracker := New(o)
	node := &corev1.Node{Spec: corev1.NodeSpec{PodCIDRs: []string{"10.244.1.0/24"}}}
	node.Name = "a"
	tracker.SetNode(node)
	tracker.Synced()
	return tracker
}

func checkRanges(t *testing.T, tracker *Tracker, want, reasons []string) {
	t.Helper()
	var got, problems []string
	for _, p := range tracker.Latest().Node.ServiceCIDRs {
		got = append(got, p.String())
	}
	for _, p := range tracker.Problems() {
		why, known := strings.CutSuffix(p.Message, "; want a range for Services alone; nothing is dropped for it")
		if !known {
			t.Errorf("unknown problem: %s", p)
		}
		problems = append(problems, why)
	}
	if !slices.Equal(got, want) || !slices.Equal(problems, reasons) {
		t.Errorf("ranges %q for %q; want %q for %q", got, problems, want, reasons)
	}
}
