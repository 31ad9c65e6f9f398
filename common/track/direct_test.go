// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package track

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"kubeproxy/common/service"
)

// TestDirectReturn reads the annotation beside the operator's choice, selection and what excludes it.
func TestDirectReturn(t *testing.T) {
	for _, tt := range []struct {
		annotation, selection string
		byDefault             bool
		change                func(*corev1.Service)
		direct                bool
		problem               string
	}{
		{},
		{annotation: "on", direct: true},
		{byDefault: true, direct: true},
		{annotation: "off", byDefault: true},
		{annotation: "yes", byDefault: true, direct: true, problem: `"yes" is not on or off`},
		{annotation: "on", selection: "consistent-all", direct: true},
		{annotation: "on", selection: "random", problem: "needs consistent selection"},
		{annotation: "on", change: func(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP }, problem: "without session affinity"},
		{annotation: "on", change: func(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal }},
		{annotation: "on", change: func(s *corev1.Service) { s.Spec.ExternalIPs = nil }},
	} {
		w := New(Options{NodeName: "node-7", DirectReturn: tt.byDefault, SelectionSlots: 211})
		s := plainService(1)
		s.Spec.ExternalIPs, s.Spec.Type = []string{"198.51.100.7"}, corev1.ServiceTypeNodePort
		s.Annotations = map[string]string{}
		for name, value := range map[string]string{AnnotationDirectReturn: tt.annotation, AnnotationSelection: tt.selection} {
			if value != "" {
				s.Annotations[name] = value
			}
		}
		if tt.change != nil {
			tt.change(s)
		}
		w.SetService(s)
		x := plainSlice(1, 3)
		for i, node := range []string{"node-7", "node-8", "node-8"} {
			x.Endpoints[i].NodeName = &node
		}
		w.SetSlice(x)
		w.Synced()
		nodes := func() []string {
			if d := w.Latest().Port(service.IPv4, portName(1)).Direct; d != nil {
				return d.Nodes
			}
			return nil
		}
		if p := w.Latest().Port(service.IPv4, portName(1)); p.Affinity > 0 && p.Consistent.Slots > 0 {
			t.Errorf("%+v: a new client with affinity is not drawn an endpoint", tt)
		}
		var want []string
		if tt.direct {
			want = []string{"node-7", "node-8", "node-8"}
		}
		if got := nodes(); !slices.Equal(got, want) {
			t.Errorf("%+v: nodes %q, want %q", tt, got, want)
		}
		if problems := fmt.Sprint(w.Problems()); !strings.Contains(problems, tt.problem) || tt.problem == "" && strings.Contains(problems, "direct") {
			t.Errorf("%+v: problems %s", tt, problems)
		}
		moved := x.DeepCopy()
		moved.Endpoints[2].NodeName = new("node-9")
		if w.SetSlice(moved); tt.direct && nodes()[2] != "node-9" {
			t.Errorf("%+v: an endpoint on another node has %q", tt, nodes())
		}
	}
}
