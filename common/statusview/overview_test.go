// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package statusview

import (
	"testing"

	"kubeproxy/common/health"
	"kubeproxy/common/health/servicestate"
)

// TestOverview has the worst Service first. It is good only if the exit code of kube-proxy status is 0.
func TestOverview(t *testing.T) {
	port := servicestate.Port{Frontends: []servicestate.Frontend{{Kind: "ClusterIP", Address: "10.96.0.1", Port: 80}}, Protocol: "TCP", Endpoints: 2}
	empty := port
	empty.Frontends = []servicestate.Frontend{{Kind: "ClusterIP", Address: "10.96.0.2", Port: 80, Reason: servicestate.NoEndpoints}}
	web := servicestate.Service{Namespace: "shop", Name: "web", State: servicestate.Programmed, Ports: []servicestate.Port{port}}
	none := servicestate.Service{Namespace: "shop", Name: "none", State: servicestate.Programmed, Ports: []servicestate.Port{empty}}
	part := web
	part.Name, part.Problems = "part", []servicestate.FieldError{{Field: "spec.ports[1]", Message: "is no port"}}
	failed := web
	failed.Name, failed.State = "failed", servicestate.Failed
	for _, tt := range []struct {
		what     string
		services []servicestate.Service
		first    string
		mark     Mark
	}{
		{"all is well", []servicestate.Service{web}, "web", Good},
		{"no endpoints", []servicestate.Service{web, none}, "none", Good}, // as the exit code
		{"a part", []servicestate.Service{web, part}, "part", Warning},
		{"one failed", []servicestate.Service{web, part, failed}, "failed", Bad},
	} {
		r := &servicestate.Response{Services: tt.services}
		r.Health = health.Report{Healthy: true, Status: map[string]health.FamilyReport{"IPv4": {Healthy: true}}}
		o := NewOverview(r)
		if o.Mark != tt.mark || o.OK != (tt.mark == Good) || len(o.Lines) != len(tt.services) || o.Lines[0].Name != tt.first {
			t.Errorf("%s: mark %s, ok %v, %+v", tt.what, o.Mark, o.OK, o.Lines)
		}
	}
}
