// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package statusview

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"kubeproxy/common/health"
	"kubeproxy/common/health/servicestate"
	"kubeproxy/common/track"
	"kubeproxy/test/kit"
)

// TestWidth prints the longest names that Kubernetes allows. Lines fit, and names are whole.
func TestWidth(t *testing.T) {
	name, node, zone := strings.Repeat("service-", 7)+"is-long", strings.Repeat("node-of-a-", 6)+"long.name.example.org", strings.Repeat("zone", 15)
	at := ago(time.Hour)
	s := servicestate.Service{
		Namespace: strings.Repeat("n", 63), Name: name, State: servicestate.Limited,
		Problems:    []servicestate.FieldError{{Field: "spec.loadBalancerSourceRanges[1]", Message: strings.Repeat("a reason ", 20), Since: at}},
		HealthCheck: &servicestate.HealthCheck{Port: 31000, Error: strings.Repeat("no answer ", 20)},
	}
	for _, family := range []string{"IPv4", "IPv6"} {
		s.Ports = append(s.Ports, servicestate.Port{
			Port: "port-fifteen-ch", Protocol: "sctp", Family: family, State: servicestate.Limited, Since: &at, Generation: 123456, Endpoints: 12345,
			LocalEndpoints: 1234, Error: strings.Repeat("the kernel refuses ", 9), Notes: []string{strings.Repeat("a note ", 30)},
			Frontends: []servicestate.Frontend{
				{Kind: "LoadBalancerIP", Address: "2001:db8:1111:2222:3333:4444:5555:6666", Port: 65535, Endpoints: 12345, Policy: "Cluster", Reason: servicestate.NoSources},
				{Kind: "NodePort", Port: 32767, Policy: "Local"},
			},
			EndpointList: []track.Candidate{{
				Listed:  track.Listed{Address: "[2001:db8:1111:2222:3333:4444:5555:7777]:65535", Node: node, Zone: zone, State: "terminating"},
				Cluster: track.Use{Why: "another endpoint is ready, and this one is not"}, ForLocal: &track.Use{Used: true, Why: "why"},
			}},
		})
	}
	r := failingReport()
	r.NodeReason, r.Blocked = strings.Repeat("gone and ", 20), []string{strings.Repeat("a-condition-", 10)}
	r.Healthy = true
	r.Conditions[r.Blocked[0]] = strings.Repeat("is wrong ", 20)
	a := &Answer{Response: servicestate.Response{ProxyInfo: servicestate.ProxyInfo{Mode: "nftables", Node: node, Version: "v1.0.0-alpha.1+0123456789abcdef", Started: at, Health: r}}}
	a.Services = []servicestate.Service{s}
	a.Summary.add(&s)
	for full, names := range map[bool][]string{true: {name, zone, node, "2001:db8:1111:2222:3333:4444:5555:7777"}, false: {name, node, r.Blocked[0]}} {
		var out bytes.Buffer
		if err := (&View{Format: Table, Full: full, Now: noon}).Print(&out, a); err != nil {
			t.Fatal(err)
		}
		kit.CheckWidth(t, out.String(), names...)
		t.Logf("\n%s", out.String())
	}
	var out bytes.Buffer
	b := *a
	b.Services = nil
	b.Health = health.Report{}
	x := &Watch{Query: &Query{}, View: View{Format: Table, Now: noon}}
	if err := x.write(&out, a, changes(&b, a, "gone")); err != nil {
		t.Fatal(err)
	}
	kit.CheckWidth(t, out.String(), name)
}
