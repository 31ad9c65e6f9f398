// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package winparity

import (
	"maps"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"kubeproxy/test/netlab"
)

// state holds the Services of the API server, by name.
type state map[string]*app

// with returns a state with apps in place of those of their names.
func (s state) with(apps ...app) state {
	next := maps.Clone(s)
	for _, a := range apps {
		next[a.name] = &a
	}
	return next
}

// without returns a state that lacks a Service.
func (s state) without(names ...string) state {
	next := maps.Clone(s)
	for _, name := range names {
		delete(next, name)
	}
	return next
}

func sorted(s state) []string { return slices.Sorted(maps.Keys(s)) }

func equal(a, b *app) bool { return a != nil && b != nil && reflect.DeepEqual(*a, *b) }

// app is a Service and its endpoints.
type app struct {
	name, clusterIP string
	spec            corev1.ServiceSpec // without addresses
	ingress         string
	target          int32
	annotations     map[string]string
	// pods are addresses: /t is terminating and serving, /d terminating and
	// not serving, /n not ready, /r on the other node though of this one's range, /h on the
	// network of this node, /o no pod, but outside of the cluster.
	pods []string
}

// on returns a with other endpoints.
func (a app) on(pods ...string) app {
	a.pods = pods
	return a
}

// withSpec returns a with a changed specification.
func (a app) withSpec(change func(*corev1.ServiceSpec)) app {
	a.spec = *a.spec.DeepCopy()
	change(&a.spec)
	return a
}

func (a app) service() *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: a.name}, Spec: *a.spec.DeepCopy()}
	s.Annotations = a.annotations
	s.Spec.ClusterIP, s.Spec.ClusterIPs = a.clusterIP, []string{a.clusterIP}
	s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol}
	if a.ingress != "" {
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: a.ingress}}
	}
	return s
}

func (a app) slice() *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: a.name + "-1"}}
	s.Labels = map[string]string{discoveryv1.LabelServiceName: a.name}
	s.AddressType = discoveryv1.AddressTypeIPv4
	for _, p := range a.spec.Ports {
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: new(p.Name), Protocol: new(p.Protocol), Port: new(a.target)})
	}
	s.Endpoints = []discoveryv1.Endpoint{}
	for _, pod := range a.pods {
		ip, how, _ := strings.Cut(pod, "/")
		e := discoveryv1.Endpoint{Addresses: []string{ip}, NodeName: new(netlab.OtherName)}
		switch {
		case how == "o":
			e.NodeName = nil
		case how == "h", how != "r" && strings.HasPrefix(ip, "10.244.1."):
			e.NodeName = new(netlab.NodeName)
		}
		ready := how == "" || strings.Contains("rho", how)
		e.Conditions = discoveryv1.EndpointConditions{
			Ready: &ready, Serving: new(ready || how == "t"), Terminating: new(how == "t" || how == "d"),
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	return s
}

func ports(names ...string) []corev1.ServicePort {
	var list []corev1.ServicePort
	for _, n := range names {
		p := corev1.ServicePort{Name: n, Protocol: corev1.ProtocolTCP, Port: 80, TargetPort: intstr.FromInt32(8080)}
		if strings.HasPrefix(n, "udp") {
			p.Protocol = corev1.ProtocolUDP
		}
		list = append(list, p)
	}
	return list
}

// web is a Service of type LoadBalancer with each kind of address.
func web() app {
	a := app{name: "web", clusterIP: "10.96.5.5", ingress: "203.0.113.5", target: 8080}
	a.spec = corev1.ServiceSpec{
		Type: corev1.ServiceTypeLoadBalancer, Ports: ports("web"), ExternalIPs: []string{"198.51.100.5"},
		ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyCluster, InternalTrafficPolicy: new(corev1.ServiceInternalTrafficPolicyCluster),
		SessionAffinity: corev1.ServiceAffinityNone,
	}
	a.spec.Ports[0].NodePort = 30080
	return a
}

func api() app {
	a := app{name: "api", clusterIP: "10.96.5.6", target: 8080}
	a.spec = corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Ports: ports("web")}
	a.spec.Ports[0].NodePort = 30081
	return a
}

func dns() app {
	a := app{name: "dns", clusterIP: "10.96.0.10", target: 53}
	a.spec = corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, Ports: ports("tcp", "udp")}
	return a
}

// marker is a Service whose change shows that a proxy has received all earlier changes.
const (
	marker    = "zz-marker"
	markerVIP = "6 10.96.9.9:"
)

func markerPort(round int) int { return 1000 + round }

func markerOf(round int) *app {
	a := &app{name: marker, clusterIP: "10.96.9.9", target: int32(markerPort(round)), pods: []string{"10.244.2.200"}}
	a.spec = corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, Ports: ports("web")}
	a.spec.Ports[0].Port = int32(markerPort(round))
	return a
}
