// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package track

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubeproxy/common/service"
)

// wide returns a Service of many ports, and its slices. Each slice has at most 100 ports
// and as many endpoints, the limit of the API.
func wide(ports, endpoints int) (*corev1.Service, []*discoveryv1.EndpointSlice) {
	const most = 100
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "wide"},
		Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.1", IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}},
	}
	var all []*discoveryv1.EndpointSlice
	for first := 0; first < ports; first += most {
		var targets []discoveryv1.EndpointPort
		for i := first; i < min(first+most, ports); i++ {
			name, port, proto := fmt.Sprintf("port-%d", i), int32(8000+i), corev1.ProtocolTCP
			s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: name, Port: port, Protocol: proto})
			targets = append(targets, discoveryv1.EndpointPort{Name: &name, Port: &port, Protocol: &proto})
		}
		for i := 0; i < endpoints; i += most {
			e := plainSlice(0, min(most, endpoints-i))
			e.Name, e.Ports = fmt.Sprintf("wide-%d-%d", first, i), targets
			e.Namespace, e.Labels = "shop", map[string]string{discoveryv1.LabelServiceName: "wide"}
			for j := range e.Endpoints {
				e.Endpoints[j].Addresses = []string{fmt.Sprintf("10.128.%d.%d", (i+j)/250, (i+j)%250+1)}
				e.Endpoints[j].Hints = nil
			}
			all = append(all, e)
		}
	}
	return s, all
}

// flip sets the readiness of the first endpoint in some of the slices.
func flip(t *Tracker, all []*discoveryv1.EndpointSlice, to bool) {
	for _, s := range all {
		if s.Endpoints[0].Addresses[0] == "10.128.0.1" {
			s.Endpoints[0].Conditions.Ready = &to
			t.SetSlice(s)
		}
	}
}

func BenchmarkFlip(b *testing.B) {
	for _, ports := range []int{1, 500} {
		b.Run(fmt.Sprint(ports, " ports"), func(b *testing.B) { benchmarkFlip(b, ports) })
	}
}

func benchmarkFlip(b *testing.B, ports int) {
	t := New(Options{})
	s, all := wide(ports, 1000)
	t.SetService(s)
	for _, e := range all {
		t.SetSlice(e)
	}
	t.Synced()
	t.Latest()
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		flip(t, all, i%2 == 1)
		for p := range t.Latest().Ports(service.IPv4) {
			if n := len(p.Cluster); n != 999+i%2 {
				b.Fatalf("%d endpoints", n)
			}
		}
	}
}
