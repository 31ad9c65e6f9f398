// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

//lint:file-ignore SA1019 People still write Endpoints, so they are read here.

// endpoints is the older API for the endpoints of a Service.
type endpoints = corev1.Endpoints

// slicesOf mirrors Endpoints like the EndpointSliceMirroring controller: one slice for
// each subset and family. The names contain a slash, so they differ from those of all
// real slices. See
// https://kubernetes.io/docs/concepts/services-networking/endpoint-slices/.
func slicesOf(e *endpoints) []*discoveryv1.EndpointSlice {
	if e.Labels[discoveryv1.LabelSkipMirror] == "true" {
		return nil
	}
	var all []*discoveryv1.EndpointSlice
	for i := range e.Subsets {
		for _, family := range []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6} {
			s := subsetSlice(e, &e.Subsets[i], family)
			if len(s.Endpoints) > 0 {
				s.Name = e.Name + "/" + strconv.Itoa(i) + "/" + string(family)
				all = append(all, s)
			}
		}
	}
	return all
}

func subsetSlice(e *endpoints, from *corev1.EndpointSubset, family discoveryv1.AddressType) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{AddressType: family}
	s.Namespace = e.Namespace
	s.Labels = map[string]string{discoveryv1.LabelServiceName: e.Name}
	if v, ok := e.Labels[corev1.IsHeadlessService]; ok {
		s.Labels[corev1.IsHeadlessService] = v
	}
	for _, p := range from.Ports {
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &p.Name, Port: &p.Port, Protocol: &p.Protocol})
		if p.Protocol == "" {
			s.Ports[len(s.Ports)-1].Protocol = nil
		}
	}
	add := func(addrs []corev1.EndpointAddress, ready bool) {
		for _, a := range addrs {
			if addressType(a.IP) == family {
				s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
					Addresses:  []string{a.IP},
					Conditions: discoveryv1.EndpointConditions{Ready: &ready},
					NodeName:   a.NodeName,
				})
			}
		}
	}
	add(from.Addresses, true)
	add(from.NotReadyAddresses, false)
	return s
}

// addressType only looks at the notation. The sink rejects what is not an address.
func addressType(ip string) discoveryv1.AddressType {
	for _, c := range ip {
		if c == ':' {
			return discoveryv1.AddressTypeIPv6
		}
	}
	return discoveryv1.AddressTypeIPv4
}
