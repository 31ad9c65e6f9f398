// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package dump writes a cluster as kubectl get -A -o yaml prints it: with UIDs, managed
// fields, long annotations and the state of Nodes, which hand-written manifests lack.
package dump

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"
)

// Endpoints is the number of endpoints of a Service.
const Endpoints = 4

// List returns a List of so many Services with an EndpointSlice each, of 50 Nodes and of
// ServiceCIDRs.
func List(services int) map[string]any {
	d := &draw{rand.New(rand.NewPCG(1, 2))}
	var items []any
	for i := range services {
		items = append(items, d.service(i))
	}
	for i := range services {
		items = append(items, d.slice(i))
	}
	for i := range 50 {
		items = append(items, d.node(i))
	}
	items = append(items, &networkingv1.ServiceCIDR{
		TypeMeta: metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "ServiceCIDR"}, ObjectMeta: d.meta("", "kubernetes"),
		Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/12"}},
	})
	return map[string]any{"apiVersion": "v1", "kind": "List", "items": items, "metadata": map[string]any{"resourceVersion": ""}}
}

// YAML returns the List as YAML.
func YAML(services int) []byte { return must(yaml.Marshal(List(services))) }

// JSON returns the List as JSON.
func JSON(services int) []byte { return must(json.MarshalIndent(List(services), "", "    ")) }

func must(text []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return text
}

type draw struct{ *rand.Rand }

func (d *draw) uid() types.UID {
	return types.UID(fmt.Sprintf("%08x-%04x-4%03x-%04x-%012x", d.Uint32(), d.IntN(1<<16), d.IntN(1<<12), 1<<15|d.IntN(1<<14), d.Uint64()>>16))
}

func (d *draw) meta(namespace, name string) metav1.ObjectMeta {
	at := metav1.NewTime(time.Date(2024, 5, 1, 12, d.IntN(60), d.IntN(60), 0, time.UTC))
	fields := `{"f:metadata":{"f:annotations":{".":{},"f:meta.helm.sh/release-name":{}},"f:labels":{".":{},"f:app":{}}},"f:spec":{"f:ports":{".":{},"k:{\"port\":80,\"protocol\":\"TCP\"}":{".":{},"f:name":{},"f:port":{},"f:protocol":{},"f:targetPort":{}}},"f:selector":{},"f:type":{}}}`
	return metav1.ObjectMeta{
		Namespace: namespace, Name: name, UID: d.uid(), CreationTimestamp: at,
		ResourceVersion: fmt.Sprint(d.IntN(1e9)), Generation: 1,
		ManagedFields: []metav1.ManagedFieldsEntry{{
			Manager: "helm", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", Time: &at, FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(fields),
		}},
	}
}

func namespaceOf(i int) string { return fmt.Sprintf("team-%d", i%40) }
func nameOf(i int) string      { return fmt.Sprintf("app-%d", i) }

// ClusterIP is the address of a Service.
func ClusterIP(i int) string { return fmt.Sprintf("10.%d.%d.%d", 96+i/62500, i/250%250, i%250+1) }

func (d *draw) service(i int) *corev1.Service {
	s := &corev1.Service{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}, ObjectMeta: d.meta(namespaceOf(i), nameOf(i))}
	s.Labels = map[string]string{"app": nameOf(i), "app.kubernetes.io/managed-by": "Helm", "helm.sh/chart": "app-1.2.3", "app.kubernetes.io/version": "1.20"}
	s.Annotations = map[string]string{
		"meta.helm.sh/release-name":                 nameOf(i),
		"description":                               "The public entry of the shop; it must not be changed without telling the team that owns it, see https://wiki.example.com/a?b=1&c=2.",
		"external-dns.alpha.kubernetes.io/hostname": "*." + nameOf(i) + ".example.com",
		"contact": "team: \"" + namespaceOf(i) + "\" & friends # always",
		"note":    "it's für 網路 " + strings.Repeat("and more ", i%20),
		"kubectl.kubernetes.io/last-applied-configuration": fmt.Sprintf(`{"apiVersion":"v1","kind":"Service","metadata":{"annotations":{},"name":%q,"namespace":%q},"spec":{"ports":[{"name":"http","port":80,"targetPort":8080}],"selector":{"app":%[1]q}}}`, nameOf(i), namespaceOf(i)) + "\n",
	}
	one, policy, internal := corev1.IPFamilyPolicySingleStack, corev1.ServiceExternalTrafficPolicyCluster, corev1.ServiceInternalTrafficPolicyCluster
	s.Spec = corev1.ServiceSpec{
		Type: corev1.ServiceTypeClusterIP, ClusterIP: ClusterIP(i), ClusterIPs: []string{ClusterIP(i)}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, IPFamilyPolicy: &one,
		InternalTrafficPolicy: &internal, SessionAffinity: corev1.ServiceAffinityNone, Selector: map[string]string{"app": nameOf(i)},
		Ports: []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}},
	}
	s.Spec.Ports[0].TargetPort.IntVal = 8080
	if i%20 == 0 && i < 40_000 {
		s.Spec.Type, s.Spec.ExternalTrafficPolicy, s.Spec.Ports[0].NodePort = corev1.ServiceTypeNodePort, policy, int32(30000+i/20)
	}
	return s
}

func (d *draw) slice(i int) *discoveryv1.EndpointSlice {
	yes, no, name, tcp, port := true, false, "http", corev1.ProtocolTCP, int32(8080)
	s := &discoveryv1.EndpointSlice{
		TypeMeta:   metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta: d.meta(namespaceOf(i), fmt.Sprintf("%s-%05x", nameOf(i), d.IntN(1<<20))), AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{{Name: &name, Protocol: &tcp, Port: &port}},
	}
	s.Labels = map[string]string{discoveryv1.LabelServiceName: nameOf(i), discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io", "app": nameOf(i)}
	s.Annotations = map[string]string{"endpoints.kubernetes.io/last-change-trigger-time": "2024-05-01T12:00:00Z"}
	s.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: nameOf(i), UID: d.uid(), Controller: &yes, BlockOwnerDeletion: &yes}}
	for n := range Endpoints {
		at := d.IntN(50)
		node, zone := fmt.Sprintf("node-%d", at), string("abc"[at%3])
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{fmt.Sprintf("10.%d.%d.%d", 128+i/12500, i/50%250, i%50*5+n)},
			Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes, Terminating: &no}, NodeName: &node, Zone: &zone,
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: namespaceOf(i), Name: fmt.Sprintf("%s-%x-%05d", nameOf(i), d.Uint32(), n), UID: d.uid()},
		})
	}
	return s
}

func (d *draw) node(i int) *corev1.Node {
	n := &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: d.meta("", fmt.Sprintf("node-%d", i))}
	n.Labels = map[string]string{"kubernetes.io/hostname": n.Name, "topology.kubernetes.io/zone": string("abc"[i%3])}
	n.Annotations = map[string]string{"csi.volume.kubernetes.io/nodeid": `{"ebs.csi.aws.com":"i-0123456789abcdef0"}`}
	n.Spec = corev1.NodeSpec{PodCIDR: fmt.Sprintf("10.244.%d.0/24", i), PodCIDRs: []string{fmt.Sprintf("10.244.%d.0/24", i)}, ProviderID: "aws:///eu-west-1a/i-0123456789abcdef0"}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("192.0.2.%d", i+1)}, {Type: corev1.NodeHostName, Address: n.Name}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", Message: "kubelet is posting ready status"}}
	n.Status.NodeInfo = corev1.NodeSystemInfo{MachineID: fmt.Sprintf("%016x%016x", d.Uint64(), d.Uint64()), SystemUUID: string(d.uid()), BootID: string(d.uid()), KernelVersion: "6.1.0-18-amd64", KubeletVersion: "v1.33.1"}
	for k := range 50 {
		digest := fmt.Sprintf("registry.example.com/team/app-%d@sha256:%016x%016x%016x%016x", k, d.Uint64(), d.Uint64(), d.Uint64(), d.Uint64())
		n.Status.Images = append(n.Status.Images, corev1.ContainerImage{Names: []string{digest, fmt.Sprintf("registry.example.com/team/app-%d:1.%d", k, i)}, SizeBytes: d.Int64N(1 << 30)})
	}
	return n
}
