// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package incluster

import (
	"cmp"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"kubeproxy/common/service"
	"kubeproxy/test/judge"
	"kubeproxy/test/netlab"
)

const (
	space  = metav1.NamespaceDefault
	target = 8080 // the port that endpoints listen on
)

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// newService returns a Service with ClusterIPs in both families, over TCP and UDP,
// changed by edits.
func newService(name string, edits ...func(*corev1.Service)) *corev1.Service {
	both := corev1.IPFamilyPolicyRequireDualStack
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: space, Name: name}}
	s.Spec.Selector = map[string]string{"app": name}
	s.Spec.IPFamilyPolicy = &both
	s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
	for _, p := range []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP} {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{
			Name: portName(p), Protocol: p, Port: 80, TargetPort: intstr.FromInt32(target),
		})
	}
	for _, edit := range edits {
		edit(s)
	}
	return s
}

func portName(p corev1.Protocol) string {
	return map[corev1.Protocol]string{"TCP": "web", "UDP": "dns"}[p]
}

// newSlice returns a slice of a Service in one family with ready endpoints on hosts.
func newSlice(of string, f service.Family, hosts ...*netlab.Host) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressType(f.String())}
	s.Namespace, s.Name = space, of+[2]string{"-v4", "-v6"}[f]
	s.Labels = map[string]string{discoveryv1.LabelServiceName: of}
	for _, p := range []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP} {
		name, number := portName(p), int32(target)
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &name, Protocol: &p, Port: &number})
	}
	for _, h := range hosts {
		ready, node := true, netlab.OtherName
		if judge.OnNode(h.IPv4) {
			node = netlab.NodeName
		}
		addr := [2]netip.Addr{h.IPv4, h.IPv6}[f].String()
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{addr}, NodeName: &node, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
		})
	}
	return s
}

// endpoints returns the slices of a Service in both families.
func endpoints(of string, hosts ...*netlab.Host) []metav1.Object {
	return []metav1.Object{newSlice(of, service.IPv4, hosts...), newSlice(of, service.IPv6, hosts...)}
}

// node is node-a as the API returns it at first.
func node() *corev1.Node {
	n := &corev1.Node{}
	n.Name = netlab.NodeName
	n.Spec.PodCIDRs = []string{"10.244.1.0/24", "fd00:10:244:1::/64"}
	n.Spec.PodCIDR = n.Spec.PodCIDRs[0]
	n.Status.Addresses = []corev1.NodeAddress{
		{Type: corev1.NodeInternalIP, Address: "192.0.2.10"}, {Type: corev1.NodeInternalIP, Address: "2001:db8:2::10"},
	}
	return n
}

// calls returns all addresses of s, as the API server has it, that a pod, a client
// outside and the node can dial.
func (w *fixture) calls(t *testing.T, s *corev1.Service) []judge.Call {
	t.Helper()
	stored, err := w.api.Client.CoreV1().Services(s.Namespace).Get(t.Context(), s.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	addrs := map[string][]string{"ClusterIP": stored.Spec.ClusterIPs, "external IP": stored.Spec.ExternalIPs}
	for _, in := range stored.Status.LoadBalancer.Ingress {
		addrs["load-balancer IP"] = append(addrs["load-balancer IP"], in.IP)
	}
	var all []judge.Call
	for _, p := range stored.Spec.Ports {
		for kind, list := range addrs {
			for _, a := range list {
				all = append(all, w.dial(judge.Call{Name: kind + " of " + s.Name}, a, p.Port, p.Protocol)...)
			}
		}
		if p.NodePort == 0 {
			continue
		}
		for _, a := range node().Status.Addresses {
			all = append(all, w.dial(judge.Call{Name: "NodePort of " + s.Name, ToNode: true}, a.Address, p.NodePort, p.Protocol)...)
		}
	}
	return all
}

// dial returns copies of like for each client, with the destination filled in.
func (w *fixture) dial(like judge.Call, to string, port int32, p corev1.Protocol) []judge.Call {
	addr, err := netip.ParseAddr(to)
	if err != nil { // "None"
		return nil
	}
	var all []judge.Call
	for _, h := range []*netlab.Host{w.Host("shopper"), w.Host("customer"), w.Node} {
		like.From, like.To = h, netip.AddrPortFrom(addr, uint16(port))
		like.Proto = map[corev1.Protocol]service.Protocol{corev1.ProtocolTCP: service.TCP, corev1.ProtocolUDP: service.UDP}[cmp.Or(p, corev1.ProtocolTCP)]
		all = append(all, like)
	}
	return all
}

// loads are connections that are made continuously.
type loads struct {
	calls []judge.Call
	run   []*netlab.Load
}

// load connects to all TCP addresses of s, until the test ends them.
func (w *fixture) load(t *testing.T, s *corev1.Service) *loads {
	t.Helper()
	l := &loads{}
	for _, x := range w.calls(t, s) {
		if x.Proto != service.TCP {
			continue
		}
		l.calls = append(l.calls, x)
		l.run = append(l.run, x.From.Load(t.Context(), netlab.LoadConfig{Query: x.Query(), Pause: 10 * time.Millisecond}))
	}
	return l
}

// stop ends the connections and requires that each of them was answered.
func (l *loads) stop(t *testing.T) {
	t.Helper()
	made := 0
	for i, one := range l.run {
		r := one.Stop()
		made += r.Connections
		if r.Lost() > 0 || r.Connections == 0 {
			t.Errorf("%s: %s", l.calls[i], r)
		}
	}
	t.Logf("%d connections were made meanwhile", made)
}
