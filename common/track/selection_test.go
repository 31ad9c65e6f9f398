// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package track

import (
	"fmt"
	"strings"
	"testing"

	"kubeproxy/common/service"
	"kubeproxy/test/kit"
)

// TestSelection reads the annotation beside the operator's choice, and changes of both.
func TestSelection(t *testing.T) {
	const slots = 211
	external, all := service.Consistent{Slots: slots}, service.Consistent{Slots: slots, ClusterIPs: true}
	for _, tt := range []struct {
		annotation string
		byDefault  Selection
		want       service.Consistent
		problem    bool
	}{
		{"", "", service.Consistent{}, false},
		{"", SelectConsistent, external, false},
		{"", SelectConsistentAll, all, false},
		{"random", SelectConsistentAll, service.Consistent{}, false},
		{"consistent", "", external, false},
		{"consistent", SelectConsistentAll, external, false},
		{"consistent-all", SelectRandom, all, false},
		{"maglev", "", service.Consistent{}, true},
		{"Consistent", SelectConsistent, external, true},
	} {
		w := New(Options{NodeName: "node-7", Selection: SelectRandom, SelectionSlots: slots})
		s := plainService(1)
		s.Annotations = map[string]string{}
		w.SetService(s)
		w.Synced()
		if tt.annotation != "" {
			s = s.DeepCopy()
			s.Annotations[AnnotationSelection] = tt.annotation
			w.SetService(s)
		}
		w.Reconfigure(Options{Selection: tt.byDefault, SelectionSlots: slots})
		for p := range w.Latest().Ports(service.IPv4) {
			kit.Check(t, p.Consistent == tt.want,
				"%q, by default %q: %+v, want %+v", tt.annotation, tt.byDefault, p.Consistent, tt.want)
		}
		problems := fmt.Sprint(w.Problems())
		says := strings.Contains(problems, AnnotationSelection) && strings.Contains(problems, "is not random, consistent or consistent-all")
		kit.Check(t, says == tt.problem, "%q: problems %s", tt.annotation, problems)
	}
}

// TestSelectionOfMany has a Service get more endpoints than its table is for.
func TestSelectionOfMany(t *testing.T) {
	w := New(Options{NodeName: "node-7", Selection: SelectConsistent, SelectionSlots: 211})
	w.SetService(plainService(1))
	w.Synced()
	for _, n := range []int{21, 22, 21} {
		w.SetSlice(plainSlice(1, n))
		many := n > 21
		p := w.Latest().Port(service.IPv4, portName(1))
		kit.Check(t, p.Consistent.Slots == 0 == many, "%d endpoints: %+v", n, p.Consistent)
		if says := strings.Contains(fmt.Sprint(w.Problems()), "has 22 endpoints, and consistent selection with 211 slots is for 21 at most"); says != many {
			t.Errorf("%d endpoints: %v", n, w.Problems())
		}
	}
}
