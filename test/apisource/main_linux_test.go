// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package apisource

import (
	"fmt"
	"net/netip"
	"os"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubeproxy/test/cluster"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

var kubeProxy program.Program

func TestMain(m *testing.M) { os.Exit(program.Main(m, &kubeProxy)) }

// fixture is a node and an API server beside it.
type fixture struct {
	*cluster.Cluster
	lab *netlab.Lab
}

func newFixture(t testing.TB, o cluster.Options) fixture {
	t.Helper()
	lab := netlab.Start(t, netlab.Config{Clients: []string{"control"}})
	o.Host = lab.Host("control")
	return fixture{cluster.Start(t, o), lab}
}

// newLab is a fixture without an API server.
func newLab(t testing.TB) fixture {
	t.Helper()
	return fixture{lab: netlab.Start(t, netlab.Config{Clients: []string{"control"}})}
}

// start starts the proxy with the login l.
func (w fixture) start(t testing.TB, l cluster.Login, args ...string) *program.Proxy {
	t.Helper()
	return kubeProxy.Start(t, w.lab.Node, append([]string{"--kubeconfig=" + w.kubeconfig(t, l), "--cluster-cidr=" + netlab.ClusterCIDR}, args...)...)
}

func (w fixture) kubeconfig(t testing.TB, l cluster.Login) string {
	t.Helper()
	path, err := w.Kubeconfig(l)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func (w fixture) set(t testing.TB, objects ...metav1.Object) {
	t.Helper()
	if err := w.Set(t.Context(), objects...); err != nil {
		t.Fatal(err)
	}
}

// namespace is where the tests have their Services.
const namespace = "default"

func newService(name string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: map[string]string{"example.com/owner": "somebody at " + name}},
		Spec:       corev1.ServiceSpec{Selector: map[string]string{"app": name}, Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
	}
}

// newSlice has n endpoints for a Service, the first of them at base.
func newSlice(name string, base netip.Addr, n int) *discoveryv1.EndpointSlice {
	port, portName, proto, yes := int32(8080), "http", corev1.ProtocolTCP, true
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name + "-1",
			Labels: map[string]string{discoveryv1.LabelServiceName: name, discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io", "app": name},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &portName, Port: &port, Protocol: &proto}},
	}
	for i := range n {
		node, zone := fmt.Sprintf("node-%d", i), "zone-1"
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{base.String()}, NodeName: &node, Zone: &zone,
			Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes},
			TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: namespace, Name: fmt.Sprintf("%s-7d4b9c6f5-%05d", name, i), UID: "c0ffee00-0000-4000-8000-000000000000"},
		})
		base = base.Next()
	}
	return s
}

func newNode() *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: netlab.NodeName},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: "192.0.2.10"}, {Type: corev1.NodeInternalIP, Address: "2001:db8:2::10"},
		}},
	}
}
