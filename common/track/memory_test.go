// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package track

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// fill10x gives t n Services with ten endpoints each. It creates every object again, like
// a watch, and keeps none.
func fill10x(t *Tracker, n int) {
	for i := range n {
		t.SetService(plainService(i))
		t.SetSlice(plainSlice(i, 10))
	}
	t.Synced()
}

func plainService(i int) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: fmt.Sprintf("ns-%d", i%100), Name: fmt.Sprintf("service-%d", i)},
		Spec: corev1.ServiceSpec{
			ClusterIP:  fmt.Sprintf("10.96.%d.%d", i/250, i%250+1),
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Ports:      []corev1.ServicePort{{Name: strings.Clone("http"), Port: 80, Protocol: corev1.ProtocolTCP}},
		},
	}
}

func plainSlice(i, endpoints int) *discoveryv1.EndpointSlice {
	name, port, proto := strings.Clone("http"), int32(8080), corev1.ProtocolTCP
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: fmt.Sprintf("ns-%d", i%100),
			Name:      fmt.Sprintf("service-%d-x7k2p", i),
			Labels:    map[string]string{discoveryv1.LabelServiceName: fmt.Sprintf("service-%d", i)},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &proto}},
	}
	yes, no := true, false
	for j := range endpoints {
		node, zone, k := fmt.Sprintf("node-%d", j*7%50), fmt.Sprintf("zone-%d", j%3), i*endpoints+j
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{fmt.Sprintf("10.%d.%d.%d", 128+k/65536, k/256%256, k%256)},
			Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes, Terminating: &no},
			NodeName:   &node, Zone: &zone,
			Hints: &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: zone}}},
		})
	}
	return s
}

func heapInUse() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// bytesPerEndpoint measures the memory of a Tracker and its snapshot.
func bytesPerEndpoint(services int) float64 {
	before := heapInUse()
	t := New(Options{NodeName: "node-1"})
	fill10x(t, services)
	s := t.Latest()
	used := heapInUse() - before
	runtime.KeepAlive(s)
	runtime.KeepAlive(t)
	return float64(used) / float64(services*10)
}

func TestMemory(t *testing.T) {
	const services, limit = 10_000, 150
	got := bytesPerEndpoint(services)
	t.Logf("%.0f bytes of heap per endpoint at %d Services of 10", got, services)
	if got > limit {
		t.Errorf("bytes per endpoint = %.0f, want at most %d", got, limit)
	}
}
