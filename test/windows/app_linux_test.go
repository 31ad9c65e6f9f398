// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubeproxy/test/netlab"
)

// app is a Service in namespace shop and its endpoints. Its ClusterIP and its node port
// follow from its number, 1 to 250.
type app struct {
	name   string
	number int
	pods   []string // addresses; those in 10.244.1.0/24 are on the Windows node
}

func (a app) clusterIP() string { return fmt.Sprintf("10.96.0.%d", a.number) }
func (a app) nodePort() int32   { return int32(30000 + a.number) }

// on returns a with other endpoints.
func (a app) on(pods ...string) app {
	a.pods = pods
	return a
}

const target = 8080

// adds adds the expected load balancers of a to want, their endpoints by their frontends.
func (a app) adds(want map[string]string) {
	if len(a.pods) == 0 {
		return
	}
	pods := slices.Sorted(slices.Values(a.pods))
	leads := fmt.Sprintf("%d on %s", target, strings.Join(pods, " "))
	want[fmt.Sprintf("6 %s:80", a.clusterIP())] = leads
	want[fmt.Sprintf("6 node:%d", a.nodePort())] = leads
}

func (a app) service() *corev1.Service {
	s := &corev1.Service{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}}
	s.Namespace, s.Name = "shop", a.name
	s.Spec.Type = corev1.ServiceTypeNodePort
	s.Spec.ClusterIP, s.Spec.ClusterIPs = a.clusterIP(), []string{a.clusterIP()}
	s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol}
	s.Spec.Ports = []corev1.ServicePort{{Name: "web", Protocol: corev1.ProtocolTCP, Port: 80, NodePort: a.nodePort()}}
	return s
}

func (a app) slice() *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"}}
	s.Namespace, s.Name = "shop", a.name
	s.Labels = map[string]string{discoveryv1.LabelServiceName: a.name}
	s.AddressType = discoveryv1.AddressTypeIPv4
	s.Ports = []discoveryv1.EndpointPort{{Name: new("web"), Protocol: new(corev1.ProtocolTCP), Port: new(int32(target))}}
	for _, ip := range a.pods {
		node := netlab.OtherName
		if strings.HasPrefix(ip, "10.244.1.") {
			node = netlab.NodeName
		}
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{ip}, NodeName: &node, Conditions: discoveryv1.EndpointConditions{Ready: new(true)},
		})
	}
	return s
}

// nodes are both nodes of the lab: the first one runs Windows.
func nodes() []*corev1.Node {
	var list []*corev1.Node
	for i, name := range []string{netlab.NodeName, netlab.OtherName} {
		n := &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}}
		n.Name = name
		n.Spec.PodCIDR = fmt.Sprintf("10.244.%d.0/24", i+1)
		n.Spec.PodCIDRs = []string{n.Spec.PodCIDR}
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("192.0.2.%d", 10+i)}}
		list = append(list, n)
	}
	return list
}
