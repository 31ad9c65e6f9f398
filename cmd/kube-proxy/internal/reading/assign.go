// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package reading

import (
	"fmt"
	"hash/fnv"
	"math"
	"net/netip"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"kubeproxy/common/service"
	"kubeproxy/common/source"
)

// The NodePorts that API servers assign by default. See
// https://kubernetes.io/docs/concepts/services-networking/service/#type-nodeport.
const firstNodePort, lastNodePort = 30000, 32767

// assigner is a Sink that does what an API server would do with Services that nobody has
// created yet, such as those of a chart. It looks at the NodePorts, and assigns ClusterIPs
// and NodePorts that are missing, if there are ranges for them. What a Service gets follows
// from its name, so that another one seldom changes it.
type assigner struct {
	source.Sink
	ranges   []netip.Prefix // one of a family at most
	services []*corev1.Service
	taken    map[string]bool // addresses and NodePorts
	problem  func(format string, args ...any)
}

func (a *assigner) SetService(s *corev1.Service) bool {
	a.services = append(a.services, s)
	return true
}

func (a *assigner) Synced() {
	a.taken = map[string]bool{}
	for _, s := range a.services {
		for _, ip := range append(s.Spec.ClusterIPs, s.Spec.ClusterIP) {
			if addr, err := netip.ParseAddr(ip); err == nil {
				a.taken[addr.String()] = true
			}
		}
		for i, p := range s.Spec.Ports {
			a.taken[portKey(p.NodePort)] = true
			if n := p.NodePort; s.UID == "" && n > 0 && n <= math.MaxUint16 && (n < firstNodePort || n > lastNodePort) {
				a.problem("service %s/%s: spec.ports[%d].nodePort: %d is not in %d-%d, which API servers take by default",
					s.Namespace, s.Name, i, n, firstNodePort, lastNodePort)
			}
		}
		a.taken[portKey(s.Spec.HealthCheckNodePort)] = true
	}
	a.Sink.Batch(func() {
		for _, s := range a.services {
			if len(a.ranges) > 0 && s.Spec.Type != corev1.ServiceTypeExternalName {
				s = s.DeepCopy()
				a.assignAddresses(s)
				a.assignNodePorts(s)
			}
			a.Sink.SetService(s)
		}
	})
	a.Sink.Synced()
}

func portKey(n int32) string { return "port " + strconv.Itoa(int(n)) }

func (a *assigner) assignAddresses(s *corev1.Service) {
	spec := &s.Spec
	if spec.ClusterIP != "" || len(spec.ClusterIPs) > 0 {
		return
	}
	families := spec.IPFamilies
	if len(families) == 0 {
		families = []corev1.IPFamily{corev1.IPFamily(service.FamilyOf(a.ranges[0].Addr()).String())}
	}
	if policy := spec.IPFamilyPolicy; policy != nil && *policy != corev1.IPFamilyPolicySingleStack && len(families) == 1 {
		other := corev1.IPv6Protocol
		if families[0] == other {
			other = corev1.IPv4Protocol
		}
		families = append(families, other)
	}
	for i, f := range families {
		ip := a.address(s, f)
		optional := i > 0 && *spec.IPFamilyPolicy == corev1.IPFamilyPolicyPreferDualStack
		switch {
		case ip == "" && !optional:
			a.problem("service %s/%s: there is no free %s address in the ranges of --assign-cluster-ips", s.Namespace, s.Name, f)
		case ip != "":
			spec.ClusterIPs = append(spec.ClusterIPs, ip)
		}
	}
	if len(spec.ClusterIPs) > 0 {
		spec.ClusterIP = spec.ClusterIPs[0]
	}
}

// address returns a free address of a family, or "".
func (a *assigner) address(s *corev1.Service, f corev1.IPFamily) string {
	for _, r := range a.ranges {
		if service.FamilyOf(r.Addr()).String() != string(f) {
			continue
		}
		// Neither the first address nor the last one, as an API server.
		n := 1<<min(r.Addr().BitLen()-r.Bits(), 16) - 2
		return pick(s, "", n, func(i int) (string, bool) {
			addr := r.Masked().Addr().As16()
			low := int(addr[14])<<8 + int(addr[15]) + i + 1
			addr[14], addr[15] = byte(low>>8), byte(low)
			ip := netip.AddrFrom16(addr).Unmap().String()
			return ip, !a.taken[ip]
		}, a.taken)
	}
	return ""
}

func (a *assigner) assignNodePorts(s *corev1.Service) {
	spec := &s.Spec
	port := func(n *int32, what string) {
		if *n == 0 {
			text := pick(s, what, lastNodePort-firstNodePort+1, func(i int) (string, bool) {
				key := portKey(int32(firstNodePort + i))
				return key, !a.taken[key]
			}, a.taken)
			_, _ = fmt.Sscanf(text, "port %d", n)
		}
	}
	balanced := spec.Type == corev1.ServiceTypeLoadBalancer
	if spec.Type == corev1.ServiceTypeNodePort || balanced && (spec.AllocateLoadBalancerNodePorts == nil || *spec.AllocateLoadBalancerNodePorts) {
		for i := range spec.Ports {
			port(&spec.Ports[i].NodePort, strconv.Itoa(i))
		}
	}
	if balanced && spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
		port(&spec.HealthCheckNodePort, "health")
	}
}

// pick takes the first free one of n values, from where the Service's name leads, if any.
func pick(s *corev1.Service, what string, n int, value func(int) (string, bool), taken map[string]bool) string {
	h := fnv.New32a()
	fmt.Fprintf(h, "%s/%s/%s", s.Namespace, s.Name, what)
	for i := range max(n, 0) {
		if v, free := value((int(h.Sum32()%uint32(n)) + i) % n); free {
			taken[v] = true
			return v
		}
	}
	return ""
}
