// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"kubeproxy/common/service"
	"kubeproxy/test/judge"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

// target is the port that endpoints listen on.
const target = 8080

// app is a Service in namespace shop with an address of each kind, in both families and
// over each of the protocols. Its addresses follow from its number, which goes up to 999.
type app struct {
	name     string
	number   int
	internal corev1.ServiceInternalTrafficPolicy
	external corev1.ServiceExternalTrafficPolicy
	sticky   int32 // seconds that ClientIP affinity lasts, 0 for none
	ranges   []string
	pods     []pod
	plain    bool // without SCTP, which mode userspace cannot forward
}

// pod is an endpoint: a host of the lab and its state.
type pod struct {
	host  *netlab.Host
	state state
}

type state uint8

const (
	ready       state = iota
	unready           // neither ready nor serving
	terminating       // but still serving
	ended             // terminating and no longer serving
)

// address returns the app's address of a kind and family, invalid for a NodePort.
func (a app) address(k service.Kind, f service.Family) netip.Addr {
	base := map[service.Kind][2]string{
		service.ClusterIP:      {"10.96.0.0", "fd00:10:96::"},
		service.ExternalIP:     {"198.51.0.0", "2001:db8:51::"},
		service.LoadBalancerIP: {"203.0.0.0", "2001:db8:203::"},
	}[k]
	if base[f] == "" {
		return netip.Addr{}
	}
	b := netip.MustParseAddr(base[f]).AsSlice()
	b[len(b)-2], b[len(b)-1] = byte(a.number>>8), byte(a.number)
	addr, _ := netip.AddrFromSlice(b)
	return addr
}

// at returns where clients dial a kind of address, that of node-a for a NodePort.
func (a app) at(k service.Kind, f service.Family) netip.AddrPort {
	if k == service.NodePort {
		node := [2]string{"192.0.2.10", "2001:db8:2::10"}[f]
		return netip.AddrPortFrom(netip.MustParseAddr(node), a.nodePort())
	}
	return netip.AddrPortFrom(a.address(k, f), 80)
}

func (a app) nodePort() uint16 { return uint16(30000 + a.number) }

// on returns a with ready endpoints on hosts instead of its own.
func (a app) on(hosts ...*netlab.Host) app {
	a.pods = nil
	for _, h := range hosts {
		a.pods = append(a.pods, pod{host: h})
	}
	return a
}

// with returns a with one more endpoint.
func (a app) with(h *netlab.Host, s state) app {
	a.pods = append(a.pods[:len(a.pods):len(a.pods)], pod{h, s})
	return a
}

// yaml returns a as a manifest: the Service and a slice for each family.
func (a app) yaml(t *testing.T) []byte {
	t.Helper()
	return program.Manifest[any](t, a.service(), a.slice(service.IPv4), a.slice(service.IPv6))
}

func (a app) service() *corev1.Service {
	s := &corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: a.name},
	}
	s.Spec.Type = corev1.ServiceTypeLoadBalancer
	s.Spec.ExternalTrafficPolicy = a.external
	if a.internal != "" {
		s.Spec.InternalTrafficPolicy = &a.internal
	}
	s.Spec.LoadBalancerSourceRanges = a.ranges
	for _, f := range service.Families {
		s.Spec.IPFamilies = append(s.Spec.IPFamilies, corev1.IPFamily(f.String()))
		s.Spec.ClusterIPs = append(s.Spec.ClusterIPs, a.address(service.ClusterIP, f).String())
		s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, a.address(service.ExternalIP, f).String())
		s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress,
			corev1.LoadBalancerIngress{IP: a.address(service.LoadBalancerIP, f).String()})
	}
	s.Spec.ClusterIP = s.Spec.ClusterIPs[0]
	for _, p := range a.protocols() {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{
			Name: portName(p), Protocol: apiName(p), Port: 80, TargetPort: intstr.FromInt32(target), NodePort: int32(a.nodePort()),
		})
	}
	if a.sticky > 0 {
		s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{
			ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &a.sticky},
		}
	}
	return s
}

// protocols are those that the kernel has sockets for.
func protocols() []service.Protocol {
	if netlab.SCTP() {
		return []service.Protocol{service.TCP, service.UDP, service.SCTP}
	}
	return []service.Protocol{service.TCP, service.UDP}
}

// protocols are those of a's ports.
func (a app) protocols() []service.Protocol {
	return slices.DeleteFunc(protocols(), func(p service.Protocol) bool { return a.plain && p == service.SCTP })
}

func apiName(p service.Protocol) corev1.Protocol {
	return corev1.Protocol(strings.ToUpper(p.String()))
}

func portName(p service.Protocol) string {
	return map[service.Protocol]string{service.TCP: "lines", service.UDP: "packets", service.SCTP: "messages"}[p]
}

func (a app) slice(f service.Family) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: fmt.Sprintf("%s-%s", a.name, []string{"v4", "v6"}[f]),
			Labels: map[string]string{discoveryv1.LabelServiceName: a.name},
		},
		AddressType: discoveryv1.AddressType(f.String()),
	}
	for _, p := range a.protocols() {
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: new(portName(p)), Protocol: new(apiName(p)), Port: new(int32(target))})
	}
	for _, p := range a.pods {
		s.Endpoints = append(s.Endpoints, p.endpoint(f))
	}
	return s
}

func (p pod) endpoint(f service.Family) discoveryv1.Endpoint {
	node := netlab.NodeName
	if !judge.OnNode(p.host.IPv4) {
		node = netlab.OtherName
	}
	addr := [2]netip.Addr{p.host.IPv4, p.host.IPv6}[f]
	e := discoveryv1.Endpoint{Addresses: []string{addr.String()}, NodeName: &node}
	e.Conditions.Ready = new(p.state == ready)
	e.Conditions.Serving = new(p.state == ready || p.state == terminating)
	e.Conditions.Terminating = new(p.state == terminating || p.state == ended)
	return e
}

// node is node-a as the API would return it.
func node() *corev1.Node {
	n := &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}}
	n.Name = netlab.NodeName
	n.Spec.PodCIDRs = []string{"10.244.1.0/24", "fd00:10:244:1::/64"}
	for _, a := range []string{"192.0.2.10", "2001:db8:2::10"} {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
	}
	return n
}
