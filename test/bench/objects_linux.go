// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	perService  = 10     // endpoints of each Service
	maxServices = 100000 // as many as have addresses below
	servicePort = 80
	targetPort  = 8080
	clusterCIDR = "10.244.0.0/16" // of the clients, see netlab
	ownNode     = "node-7"        // one of the fifty that endpoints run on
)

var (
	// endpointPrefix contains the address of every endpoint: the first ones in its lower
	// half, their replacements in the upper.
	endpointPrefix = netip.MustParsePrefix("10.128.0.0/11")
	spareBase      = netip.MustParseAddr("10.144.0.0")
	clusterBase    = netip.MustParseAddr("10.96.0.1")
)

// plus returns the n-th address after a.
func plus(a netip.Addr, n int) netip.Addr {
	b := a.As4()
	sum := uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
	sum += uint32(n)
	return netip.AddrFrom4([4]byte{byte(sum >> 24), byte(sum >> 16), byte(sum >> 8), byte(sum)})
}

func clusterIP(i int) netip.Addr { return plus(clusterBase, i) }

// endpointIP returns the address of endpoint j of Service i. Numbers from perService on
// are replacements.
func endpointIP(i, j int) netip.Addr {
	if j >= perService {
		return plus(spareBase, i*perService+j-perService)
	}
	return plus(endpointPrefix.Addr(), i*perService+j)
}

func namespaceOf(i int) string { return fmt.Sprintf("ns-%d", i%100) }
func nameOf(i int) string      { return fmt.Sprintf("service-%d", i) }

// commentOf is the comment of Service i in a listing.
func commentOf(i int) string { return namespaceOf(i) + "/" + nameOf(i) + ":http" }

// newService returns Service i. Every object is a new one, as those of a watch are.
func newService(i int) *corev1.Service {
	return &corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespaceOf(i), Name: nameOf(i), ResourceVersion: "1"},
		Spec: corev1.ServiceSpec{
			Type:       corev1.ServiceTypeClusterIP,
			ClusterIP:  clusterIP(i).String(),
			ClusterIPs: []string{clusterIP(i).String()},
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Ports:      []corev1.ServicePort{{Name: strings.Clone("http"), Port: servicePort, Protocol: corev1.ProtocolTCP}},
		},
	}
}

// newSlice returns the EndpointSlice of Service i with the endpoints of the given
// numbers.
func newSlice(i int, numbers []int) *discoveryv1.EndpointSlice {
	name, port, proto := strings.Clone("http"), int32(targetPort), corev1.ProtocolTCP
	s := &discoveryv1.EndpointSlice{
		TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespaceOf(i), Name: nameOf(i) + "-x7k2p", ResourceVersion: "1",
			Labels: map[string]string{discoveryv1.LabelServiceName: nameOf(i)},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &proto}},
	}
	yes, no := true, false
	for _, j := range numbers {
		node, zone := fmt.Sprintf("node-%d", (i+j*7)%50), fmt.Sprintf("zone-%d", j%3)
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{endpointIP(i, j).String()},
			Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes, Terminating: &no},
			NodeName:   &node, Zone: &zone,
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: namespaceOf(i), Name: fmt.Sprintf("%s-%d", nameOf(i), j)},
		})
	}
	return s
}

// numbers returns 0 to n-1.
func numbers(n int) []int {
	var list []int
	for j := range n {
		list = append(list, j)
	}
	return list
}

// change is a kind of change between two lists of endpoints of a Service.
type change struct {
	metric string
	a, b   []int // the two lists, as numbers
}

// changes all begin and end with the first endpoints of a Service, except the one that
// would not cross a power of two then.
func changes() []change {
	all := numbers(perService)
	replaced := slices.Clone(all)
	replaced[perService-1] = perService
	return []change{
		{"replace", replaced, all},
		{"scale", numbers(perService - 1), all},
		{"cross", numbers(8), numbers(9)},
	}
}
