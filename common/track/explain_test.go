// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package track

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubeproxy/common/service"
)

func TestChoice(t *testing.T) {
	tracker := New(Options{NodeName: "a"})
	port := int32(8080)
	tracker.SetService(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"},
		Spec: corev1.ServiceSpec{
			ClusterIP: "10.96.0.1", Ports: []corev1.ServicePort{{Port: 80}},
			InternalTrafficPolicy: new(corev1.ServiceInternalTrafficPolicyLocal),
		},
	})
	tracker.SetSlice(&discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "shop", Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: &port}},
		Endpoints: []discoveryv1.Endpoint{
			{Addresses: []string{"10.244.1.1"}, NodeName: new("A"), Zone: new("east")},
			{Addresses: []string{"10.244.2.1"}, NodeName: new("b"), Conditions: discoveryv1.EndpointConditions{Ready: new(false)}},
		},
	})
	tracker.Synced()
	tracker.Latest()
	got := tracker.Choice(service.IPv4, service.PortName{Namespace: "shop", Name: "web", Protocol: service.TCP}).Candidates
	want := []Candidate{
		{
			Listed: Listed{Address: "10.244.1.1:8080", Node: "A", Zone: "east", Local: true, State: "ready"}, Ready: true,
			Cluster: Use{Used: true, Why: "it is ready"}, ForLocal: &Use{Used: true, Why: "it is ready"},
		},
		{
			Listed:  Listed{Address: "10.244.2.1:8080", Node: "b", State: "not ready"},
			Cluster: Use{Why: "it is not ready"}, ForLocal: &Use{Why: "it is not on this node"},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
