// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package track

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"

	"kubeproxy/common/service"
)

// addresses reads every address of the Service and the source ranges of its load
// balancer.
func (b *builder) addresses() {
	spec := &b.service.Spec
	b.nodePorts = spec.Type == corev1.ServiceTypeNodePort || spec.Type == corev1.ServiceTypeLoadBalancer
	b.clusterIPs()
	if !b.ignoreExternal {
		for i, s := range spec.ExternalIPs {
			a, err := parseAddr(s)
			b.addExternal(&b.external, at("spec.externalIPs", i), a, err)
		}
	}
	if spec.Type != corev1.ServiceTypeLoadBalancer {
		return
	}
	for i := range b.service.Status.LoadBalancer.Ingress {
		b.ingress(at("status.loadBalancer.ingress", i), &b.service.Status.LoadBalancer.Ingress[i])
	}
	if len(spec.LoadBalancerSourceRanges) > 0 {
		b.sourceRanges()
	}
}

// clusterIPs determines the families of the Service. If a ClusterIP cannot be parsed, its
// family still has the other frontends.
func (b *builder) clusterIPs() {
	spec := &b.service.Spec
	list, one := spec.ClusterIPs, [1]string{spec.ClusterIP}
	if len(list) == 0 {
		list = one[:]
	}
	for i, s := range list {
		a, err := parseAssigned(s)
		if err != nil {
			b.notes.add(at("spec.clusterIPs", i), "%v", err)
			if i < len(spec.IPFamilies) {
				b.serves[familyOf(spec.IPFamilies[i])] = true
			}
			continue
		}
		f := service.FamilyOf(a)
		if b.cluster[f].IsValid() {
			b.notes.add(at("spec.clusterIPs", i), "%.80q is a second %s address; want one of each family", s, f)
			continue
		}
		b.serves[f], b.cluster[f] = true, a
	}
}

func familyOf(f corev1.IPFamily) service.Family {
	if f == corev1.IPv6Protocol {
		return service.IPv6
	}
	return service.IPv4
}

// addExternal adds an address other than a ClusterIP to its family's list.
func (b *builder) addExternal(to *[2][]netip.Addr, field string, a netip.Addr, err error) {
	if err != nil {
		b.notes.add(field, "%v", err)
		return
	}
	f := service.FamilyOf(a)
	if !b.serves[f] {
		b.notes.add(field, "%q is %s, which the Service does not have", a, f)
		return
	}
	to[f] = append(to[f], a)
}

func (b *builder) ingress(field string, in *corev1.LoadBalancerIngress) {
	if in.IP == "" {
		return // a host name, which is not ours to resolve
	}
	if mode := in.IPMode; mode != nil && *mode != corev1.LoadBalancerIPModeVIP {
		if *mode != corev1.LoadBalancerIPModeProxy {
			b.notes.add(field+".ipMode", "%.80q is not VIP or Proxy; the address is left out", *mode)
		}
		return
	}
	a, err := parseAssigned(in.IP)
	b.addExternal(&b.balancer, field+".ip", a, err)
}

// sourceRanges reads which clients may use the load balancer. Ranges express a limit. So
// a family without a usable range admits no client, whether its ranges cannot be parsed
// or are all of the other family. Only a range of length zero opens it. The annotation
// service.beta.kubernetes.io/load-balancer-source-ranges is for cloud providers and has
// no effect here.
func (b *builder) sourceRanges() {
	var ranges [2][]netip.Prefix
	var open [2]bool
	for i, s := range b.service.Spec.LoadBalancerSourceRanges {
		p, err := parsePrefix(s)
		if err != nil {
			b.notes.add(at("spec.loadBalancerSourceRanges", i), "%v", err)
			continue
		}
		f := service.FamilyOf(p.Addr())
		ranges[f] = append(ranges[f], p)
		open[f] = open[f] || p.Bits() == 0
	}
	for _, f := range service.Families {
		switch {
		case open[f]:
		case len(ranges[f]) > 0:
			b.sources[f] = collapse(ranges[f])
		case open[1-f]:
		default:
			b.sources[f] = []netip.Prefix{}
			if len(b.balancer[f]) > 0 {
				b.notes.add("spec.loadBalancerSourceRanges",
					"no usable %s range, so no %s client may connect to the load balancer", f, f)
			}
		}
	}
}
