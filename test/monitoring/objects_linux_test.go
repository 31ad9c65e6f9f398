// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubeproxy/test/netlab"
)

const target = 8080 // where pods serve

// webAddr is where Service web is reached.
var webAddr = netip.MustParseAddrPort("10.96.0.20:80")

// objects returns the cluster after its change i: Nodes; Services web, whose endpoints
// change, and chat; Service empty, which has no endpoints.
func (s *site) objects(i int) []metav1.Object {
	all := []metav1.Object{
		newService("web", webAddr.Addr().String(), corev1.ProtocolTCP), newSlice("web", i, corev1.ProtocolTCP, s.webs()[:1+i%2]...),
		newService("chat", "10.96.0.22", corev1.ProtocolTCP), newSlice("chat", i, corev1.ProtocolTCP, s.webs()...),
		newService("empty", "10.96.0.23", corev1.ProtocolTCP),
	}
	for _, n := range s.nodes {
		all = append(all, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: n.Name},
			Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
				{Type: corev1.NodeInternalIP, Address: n.IPv4.String()}, {Type: corev1.NodeInternalIP, Address: n.IPv6.String()},
			}},
		})
	}
	for _, o := range all {
		if o.GetAnnotations() == nil {
			o.SetAnnotations(map[string]string{"change": fmt.Sprint(i)})
		}
	}
	return all
}

// signal is a Service with SCTP, which mode userspace cannot forward.
func (s *site) signal(i int) []metav1.Object {
	return []metav1.Object{newService("signal", "10.96.0.21", corev1.ProtocolSCTP), newSlice("signal", i, corev1.ProtocolSCTP, s.webs()...)}
}

func newService(name, address string, protocol corev1.Protocol) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name},
		Spec:       corev1.ServiceSpec{ClusterIP: address, Ports: []corev1.ServicePort{{Port: 80, Protocol: protocol}}},
	}
}

// newSlice returns the endpoints of a Service. The time of the change is what the
// endpoint controller writes.
func newSlice(name string, i int, protocol corev1.Protocol, on ...*netlab.Host) *discoveryv1.EndpointSlice {
	port, unnamed, yes := int32(target), "", true
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceDefault, Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name},
			Annotations: map[string]string{corev1.EndpointsLastChangeTriggerTime: time.Now().Format(time.RFC3339Nano), "change": fmt.Sprint(i)},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &unnamed, Port: &port, Protocol: &protocol}},
	}
	for _, h := range on {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{h.IPv4.String()}, Conditions: discoveryv1.EndpointConditions{Ready: &yes},
		})
	}
	return s
}
