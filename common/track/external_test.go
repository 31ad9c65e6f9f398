// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package track

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"

	"kubeproxy/common/service"
)

// trackerWithListeners is a Tracker of a node with the address 192.0.2.1, and with
// 192.0.2.2, which the Node object does not list. sshd and kubelet listen there.
func trackerWithListeners() *recordingTracker {
	w := newRecordingTracker()
	w.options.NodePorts = service.AnyAddress()
	w.SetNode(nodeA("", "192.0.2.1"))
	w.SetHost(Host{
		Addrs: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24"), netip.MustParsePrefix("192.0.2.2/24")},
		Listening: []Socket{
			{service.TCP, netip.MustParseAddrPort("0.0.0.0:22")}, {service.TCP, netip.MustParseAddrPort("[::]:10250")},
			{service.TCP, netip.MustParseAddrPort("192.0.2.9:80")},
		},
	})
	w.Synced()
	return w
}

// externalService is Service i with a port and an address of the given kind.
func externalService(i int, kind service.Kind, addr string, port int32) *corev1.Service {
	s := plainService(i)
	s.Spec.Type = corev1.ServiceTypeLoadBalancer
	s.Spec.Ports[0].Port = port
	if kind == service.ExternalIP {
		s.Spec.ExternalIPs = []string{addr}
	} else {
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: addr}}
	}
	return s
}

// hasExternalAddress reports whether s holds its external address.
func hasExternalAddress(w *recordingTracker, s *corev1.Service) bool {
	for p := range w.Latest().Ports(service.IPv4) {
		if p.Name.Name == s.Name && slices.ContainsFunc(p.Frontends, func(f service.Frontend) bool { return isExternalAddress(f.Kind) }) {
			return true
		}
	}
	return false
}

// TestExternalAddresses claims addresses that belong to the node or to another Service.
func TestExternalAddresses(t *testing.T) {
	for name, tt := range map[string]struct {
		kind service.Kind
		addr string
		port int32
		why  string // empty if it gets the address
	}{
		"a port that nobody has":       {service.ExternalIP, "192.0.2.1", 80, ""},
		"likewise, of a load balancer": {service.LoadBalancerIP, "192.0.2.1", 443, ""},
		"sshd":                         {service.ExternalIP, "192.0.2.1", 22, "node a's, and a program of the node listens on 0.0.0.0:22/tcp"},
		"sshd, for a load balancer":    {service.LoadBalancerIP, "192.0.2.1", 22, "listens on 0.0.0.0:22/tcp"},
		"kubelet":                      {service.ExternalIP, "192.0.2.1", 10250, "listens on [::]:10250/tcp"},
		"sshd, on an address that the Node omits":     {service.ExternalIP, "192.0.2.2", 22, "listens on 0.0.0.0:22/tcp"},
		"a controller's address on an interface":      {service.LoadBalancerIP, "192.0.2.2", 22, ""},
		"an address elsewhere":                        {service.ExternalIP, "203.0.113.1", 22, ""},
		"another's NodePort":                          {service.ExternalIP, "192.0.2.1", 30080, "NodePort or healthCheckNodePort of service ns-0/victim"},
		"another's health check":                      {service.ExternalIP, "192.0.2.1", 30090, "NodePort or healthCheckNodePort of service ns-0/victim"},
		"another's health check, for a load balancer": {service.LoadBalancerIP, "192.0.2.1", 30090, "healthCheckNodePort of service"},
		"the same number elsewhere":                   {service.ExternalIP, "203.0.113.1", 30080, ""},
		"a port of another's ClusterIP":               {service.ExternalIP, "10.96.9.9", 80, "belongs to service ns-0/victim"},
		"another port of it":                          {service.ExternalIP, "10.96.9.9", 81, "the address is the ClusterIP of service ns-0/victim"},
		"another port of it, for a load balancer":     {service.LoadBalancerIP, "10.96.9.9", 81, "the address is the ClusterIP of service ns-0/victim"},
	} {
		t.Run(name, func(t *testing.T) {
			victim := plainService(5)
			victim.Namespace, victim.Name = "ns-0", "victim"
			victim.Spec.ClusterIP, victim.Spec.ClusterIPs = "10.96.9.9", nil
			victim.Spec.Type, victim.Spec.ExternalTrafficPolicy, victim.Spec.HealthCheckNodePort = corev1.ServiceTypeLoadBalancer, "Local", 30090
			victim.Spec.Ports = []corev1.ServicePort{{Port: 80, NodePort: 30080}}
			thief := externalService(1, tt.kind, tt.addr, tt.port)
			for _, order := range [][]*corev1.Service{{victim, thief}, {thief, victim}} {
				w := trackerWithListeners()
				for _, s := range order {
					w.SetService(s)
					w.Latest()
				}
				if got := hasExternalAddress(w, thief); got != (tt.why == "") {
					t.Errorf("it gets the address: %v; problems %s", got, w.Problems())
				}
				problems := w.Problems()
				if tt.why == "" && len(problems) > 0 || tt.why != "" && (len(problems) != 1 || !refers(problems[0].Message, tt.why)) {
					t.Errorf("problems %s, want %q", problems, tt.why)
				}
				w.DeleteService(types.NamespacedName{Namespace: victim.Namespace, Name: victim.Name})
				w.SetHost(Host{})
				if !hasExternalAddress(w, thief) || len(w.Problems()) > 0 {
					t.Errorf("it does not get the address that nobody has any more: %s", w.Problems())
				}
			}
		})
	}
}

// refers reports whether a message gives the reason why. If two reasons apply, either may
// be reported.
func refers(message, why string) bool {
	return strings.Contains(message, why) || strings.Contains(message, "ClusterIP of service ns-0/victim") && strings.Contains(why, "belongs to")
}

// TestOneHealthCheckPort has two Services with the same port. The older one keeps it. The
// other one gets it afterwards.
func TestOneHealthCheckPort(t *testing.T) {
	check := func(i int) *corev1.Service {
		s := externalService(i, service.LoadBalancerIP, "203.0.113.1", int32(80+i))
		s.Spec.ExternalTrafficPolicy, s.Spec.HealthCheckNodePort = "Local", 30090
		return s
	}
	held := func(w *recordingTracker) map[string]uint16 {
		all := map[string]uint16{}
		for p := range w.Latest().Ports(service.IPv4) {
			all[p.Name.Name] = p.HealthCheck
		}
		return all
	}
	older, newer := check(1), check(2)
	newer.CreationTimestamp.Time = older.CreationTimestamp.Add(1e9)
	for _, order := range [][]*corev1.Service{{older, newer}, {newer, older}} {
		w := trackerWithListeners()
		for _, s := range order {
			w.SetService(s)
			w.Latest()
		}
		if diff := cmp.Diff(map[string]uint16{older.Name: 30090, newer.Name: 0}, held(w)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if p := w.Problems(); len(p) != 1 || p[0].Service.Name != newer.Name || p[0].Field != "spec.healthCheckNodePort" || !strings.Contains(p[0].Message, older.Name) {
			t.Errorf("problems %s", p)
		}
		w.DeleteService(types.NamespacedName{Namespace: older.Namespace, Name: older.Name})
		if diff := cmp.Diff(map[string]uint16{newer.Name: 30090}, held(w)); diff != "" || len(w.Problems()) > 0 {
			t.Errorf("the first one left: %s (-want +got):\n%s", w.Problems(), diff)
		}
	}
}

// TestServiceCIDRsOfOthers uses ranges that contain addresses of the node and its pods.
func TestServiceCIDRsOfOthers(t *testing.T) {
	w := trackerWithListeners()
	w.options.Pods.Prefixes = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}
	set := func(name string, cidrs ...string) {
		r := &networkingv1.ServiceCIDR{Spec: networkingv1.ServiceCIDRSpec{CIDRs: cidrs}}
		r.Name = name
		w.SetServiceCIDR(r)
	}
	set("services", "10.96.0.0/12")
	set("halves", "0.0.0.0/1", "128.0.0.0/1")
	set("node", "192.0.0.0/8")
	set("pods", "172.16.0.0/12", "10.244.0.0/15")
	var got []string
	for _, p := range w.Latest().Node.ServiceCIDRs {
		got = append(got, p.String())
	}
	if diff := cmp.Diff([]string{"10.96.0.0/12", "172.16.0.0/12"}, got); diff != "" {
		t.Errorf("ranges (-want +got):\n%s", diff)
	}
	got = nil
	for _, p := range w.Problems() {
		got = append(got, p.Field+": "+p.Message)
	}
	want := []string{
		`servicecidr halves spec.cidrs[0]: "0.0.0.0/1" is too wide to be a range for Services alone; want /8 or longer`,
		`servicecidr halves spec.cidrs[1]: "128.0.0.0/1" is too wide to be a range for Services alone; want /8 or longer`,
		`servicecidr node spec.cidrs[0]: "192.0.0.0/8" holds the node's address 192.0.2.1; want a range for Services alone; nothing is dropped for it`,
		`servicecidr pods spec.cidrs[1]: "10.244.0.0/15" holds the pods' range 10.244.0.0/16; want a range for Services alone; nothing is dropped for it`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
	w.SetNode(nodeA("", "172.16.0.1"))
	if s := w.Latest().Node.ServiceCIDRs; len(s) != 1 {
		t.Errorf("the node has moved into a range that counts all the same: %s", s)
	}
}

// TestProxyName checks that each proxy gets the Services whose label names it.
func TestProxyName(t *testing.T) {
	for name, want := range map[string][]string{"": {plainService(1).Name}, "mesh": {plainService(2).Name}} {
		w := trackerWithListeners()
		w.options.ProxyName = name
		w.SetService(plainService(1))
		w.SetServiceCIDR(&networkingv1.ServiceCIDR{Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/12"}}})
		for i, label := range map[int]string{2: "mesh", 3: "other", 4: ""} {
			s := plainService(i)
			s.Labels = map[string]string{LabelProxyName: label}
			w.SetService(s)
		}
		var got []string
		for p := range w.Latest().Ports(service.IPv4) {
			got = append(got, p.Name.Name)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("proxy %q (-want +got):\n%s", name, diff)
		}
		if ranges := w.Latest().Node.ServiceCIDRs; (len(ranges) > 0) != (name == "") {
			t.Errorf("proxy %q drops what goes to nobody's address in %s, of which others serve some", name, ranges)
		}
	}
}
