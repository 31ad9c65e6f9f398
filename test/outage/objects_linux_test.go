// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package outage

import (
	"context"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubeproxy/test/netlab"
)

const (
	space  = metav1.NamespaceDefault
	target = 8080 // where servers listen
)

// app is a Service with a ClusterIP of its own in each family, and its endpoints.
type app struct {
	name   string
	number int // of its addresses
	// on holds the addresses of the endpoints, alternating between the families.
	on []netip.Addr
}

// newApp returns an app with endpoints on hosts.
func newApp(name string, number int, hosts ...*netlab.Host) app {
	a := app{name: name, number: number}
	return a.moved(hosts...)
}

func (a app) moved(hosts ...*netlab.Host) app {
	a.on = nil
	for _, h := range hosts {
		a.on = append(a.on, h.IPv4, h.IPv6)
	}
	return a
}

// addr is the ClusterIP for IPv4 with the Service's port.
func (a app) addr() netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, byte(100 + a.number>>8), byte(a.number)}), 80)
}

func (a app) addr6() netip.Addr {
	return netip.MustParseAddr(fmt.Sprintf("fd00:10:96::%x", 0x1000+a.number))
}

func (a app) service() *corev1.Service {
	both := corev1.IPFamilyPolicyRequireDualStack
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: space, Name: a.name},
		Spec: corev1.ServiceSpec{
			IPFamilyPolicy: &both, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol},
			ClusterIP: a.addr().Addr().String(), ClusterIPs: []string{a.addr().Addr().String(), a.addr6().String()},
			Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}},
		},
	}
}

// slices returns an EndpointSlice for each family.
func (a app) slices() []*discoveryv1.EndpointSlice {
	var all []*discoveryv1.EndpointSlice
	for _, kind := range []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6} {
		name, port, proto := "http", int32(target), corev1.ProtocolTCP
		s := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: space, Name: a.name + map[discoveryv1.AddressType]string{"IPv4": "-4", "IPv6": "-6"}[kind],
				Labels: map[string]string{discoveryv1.LabelServiceName: a.name},
			},
			AddressType: kind,
			Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &proto}},
		}
		for _, ip := range a.on {
			if ip.Is4() != (kind == discoveryv1.AddressTypeIPv4) {
				continue
			}
			yes := true
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
				Addresses: []string{ip.String()}, Conditions: discoveryv1.EndpointConditions{Ready: &yes},
			})
		}
		all = append(all, s)
	}
	return all
}

func (a app) objects() []metav1.Object {
	all := []metav1.Object{a.service()}
	for _, s := range a.slices() {
		all = append(all, s)
	}
	return all
}

// save writes apps to the API server.
func (s *site) save(ctx context.Context, apps ...app) error {
	var all []metav1.Object
	for _, a := range apps {
		all = append(all, a.objects()...)
	}
	s.saving.Lock()
	defer s.saving.Unlock()
	return s.Set(ctx, all...)
}

// remove deletes apps.
func (s *site) remove(ctx context.Context, apps ...app) error {
	var all []metav1.Object
	for _, a := range apps {
		all = append(all, a.objects()...)
	}
	s.saving.Lock()
	defer s.saving.Unlock()
	return s.Delete(ctx, all...)
}

// nodeObject is the Node of h.
func nodeObject(h *netlab.Host) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: h.Name},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: h.IPv4.String()},
			{Type: corev1.NodeInternalIP, Address: h.IPv6.String()},
		}},
	}
}
