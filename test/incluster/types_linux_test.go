// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package incluster

import (
	"fmt"
	"net/http"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"kubeproxy/test/judge"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

// stage is a change of a Service and of the hosts that serve it.
type stage struct {
	name string
	edit func(*corev1.Service) // applied to the API server's version
	on   []int                 // numbers of the hosts that serve from now on; nil for no change
}

func typed(to corev1.ServiceType) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Spec.Type = to }
}

// balanced gives a Service of type LoadBalancer its addresses.
func balanced(s *corev1.Service) {
	s.Spec.Type = corev1.ServiceTypeLoadBalancer
	s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.10"}, {IP: "2001:db8:203::10"}}
}

func asName(s *corev1.Service) {
	s.Status = corev1.ServiceStatus{}
	s.Spec.Type, s.Spec.ExternalName = corev1.ServiceTypeExternalName, "shop.example"
	s.Spec.ClusterIP, s.Spec.ClusterIPs, s.Spec.IPFamilies, s.Spec.IPFamilyPolicy = "", nil, nil, nil
	s.Spec.InternalTrafficPolicy, s.Spec.SessionAffinity = nil, ""
	for i := range s.Spec.Ports {
		s.Spec.Ports[i].NodePort = 0
	}
}

// stages lead one Service through all types and settings of a Service.
var stages = []stage{
	{name: "a NodePort", edit: typed(corev1.ServiceTypeNodePort)},
	{name: "a load balancer", edit: balanced},
	{name: "external policy Local", edit: func(s *corev1.Service) {
		s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	}},
	{name: "no local endpoint", edit: func(*corev1.Service) {}, on: []int{3, 4}},
	{name: "a local endpoint again", edit: func(*corev1.Service) {}, on: []int{1, 2, 3}},
	{name: "source ranges", edit: func(s *corev1.Service) {
		s.Spec.LoadBalancerSourceRanges = []string{"192.0.2.100/32", "2001:db8:2::100/128"}
	}},
	{name: "other source ranges", edit: func(s *corev1.Service) {
		s.Spec.LoadBalancerSourceRanges = []string{"198.51.100.0/24", "2001:db8:77::/48"}
	}},
	{name: "external IPs", edit: func(s *corev1.Service) {
		s.Spec.LoadBalancerSourceRanges = nil
		s.Spec.ExternalIPs = []string{"198.51.100.7", "2001:db8:51::7"}
	}},
	{name: "policy Cluster again", edit: func(s *corev1.Service) {
		s.Spec.ExternalTrafficPolicy, s.Spec.HealthCheckNodePort = corev1.ServiceExternalTrafficPolicyCluster, 0
	}},
	{name: "a mere name", edit: asName},
	{name: "a ClusterIP again", edit: func(s *corev1.Service) {
		fresh := newService(s.Name)
		fresh.ResourceVersion = s.ResourceVersion
		*s = *fresh
	}},
	{name: "session affinity", edit: func(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP }},
	{name: "no affinity, internal policy Local", edit: func(s *corev1.Service) {
		local := corev1.ServiceInternalTrafficPolicyLocal
		s.Spec.SessionAffinity, s.Spec.SessionAffinityConfig, s.Spec.InternalTrafficPolicy = corev1.ServiceAffinityNone, nil, &local
	}},
	{name: "no selector, other ports", edit: func(s *corev1.Service) {
		s.Spec.Selector, s.Spec.InternalTrafficPolicy = nil, nil
		s.Spec.Ports[0].Port, s.Spec.Ports[1].Port = 81, 82
		again := s.Spec.Ports[0]
		again.Port = 83
		again.Name = "unserved"
		s.Spec.Ports = append(s.Spec.Ports, again)
	}},
	{name: "one family", edit: func(s *corev1.Service) {
		one := corev1.IPFamilyPolicySingleStack
		s.Spec.IPFamilyPolicy, s.Spec.IPFamilies, s.Spec.ClusterIPs = &one, s.Spec.IPFamilies[:1], s.Spec.ClusterIPs[:1]
	}},
	{name: "both families, a port less", edit: func(s *corev1.Service) {
		both := corev1.IPFamilyPolicyRequireDualStack
		s.Spec.IPFamilyPolicy, s.Spec.IPFamilies = &both, nil
		s.Spec.Ports = s.Spec.Ports[1:]
	}},
	{name: "a load balancer at once", edit: balanced},
}

// testTypes changes one Service in every way while another one carries traffic, of which
// nothing is lost.
func testTypes(t *testing.T, w *fixture) {
	steady := newService("steady", typed(corev1.ServiceTypeNodePort))
	changing := newService("changing")
	w.set(t, append(endpoints("steady", w.webs(4)...), steady)...)
	p := w.start(t)
	traffic := w.load(t, steady)

	w.set(t, append(endpoints("changing", w.webs(3)...), changing)...)
	past := w.calls(t, changing)
	w.awaitProgrammed(t).Check(t, past)
	for _, s := range stages {
		w.step(t, s, changing)
		now := w.calls(t, changing)
		w.awaitProgrammed(t).Check(t, join(past, now)) // former addresses must not answer
		if port := changing.Spec.HealthCheckNodePort; port != 0 {
			w.checkHealth(t, s, port)
		}
		past = now
	}
	w.remove(t, append(endpoints("changing"), changing)...)
	w.awaitProgrammed(t).Check(t, past)
	traffic.stop(t)
	p.Stop(t)
}

// step applies s at the API server.
func (w *fixture) step(t *testing.T, s stage, of *corev1.Service) {
	t.Helper()
	t.Logf("%s becomes %s", of.Name, s.name)
	s.edit(of)
	w.set(t, of)
	if len(s.on) == 0 {
		return
	}
	var hosts []*netlab.Host
	for _, i := range s.on {
		hosts = append(hosts, w.webs(i)[i-1])
	}
	w.set(t, endpoints(of.Name, hosts...)...)
}

// checkHealth sends health checks as a load balancer does. Only nodes with endpoints
// report success.
func (w *fixture) checkHealth(t *testing.T, s stage, port int32) {
	t.Helper()
	want := http.StatusOK
	if s.name == "no local endpoint" {
		want = http.StatusServiceUnavailable
	}
	for _, host := range []string{"192.0.2.10", "[2001:db8:2::10]"} {
		var got int
		kit.Until(t, fmt.Sprintf("%s: status %d of its health check at %s", s.name, want, host), func() bool {
			page, err := program.Fetch(t.Context(), w.Host("customer"), fmt.Sprintf("%s:%d", host, port), "/")
			got = page.Status
			return err == nil && got == want
		})
	}
}

// join returns a, and the calls of b that are not in a.
func join(a, b []judge.Call) []judge.Call {
	known := map[string]bool{}
	var all []judge.Call
	for _, x := range append(a[:len(a):len(a)], b...) {
		if !known[x.String()] {
			known[x.String()] = true
			all = append(all, x)
		}
	}
	return all
}
