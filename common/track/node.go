// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package track

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"kubeproxy/common/ipaddr"
	"kubeproxy/common/service"
)

// nodeInfo is what the Tracker keeps of the own Node.
type nodeInfo struct {
	zone  string
	addrs []netip.Addr
	pods  []netip.Prefix
	notes []note
}

func (f *nodeInfo) same(g *nodeInfo) bool {
	return f.zone == g.zone && slices.Equal(f.addrs, g.addrs) && slices.Equal(f.pods, g.pods) &&
		slices.Equal(f.notes, g.notes)
}

// readNode reads n. Addresses and prefixes keep the API's order, in which the primary one
// of a family comes first.
func readNode(n *corev1.Node) *nodeInfo {
	var notes notes
	f := &nodeInfo{zone: n.Labels[corev1.LabelTopologyZone]}
	var of [2][]netip.Addr // internal, external
	for i, a := range n.Status.Addresses {
		var to *[]netip.Addr
		switch a.Type {
		case corev1.NodeInternalIP:
			to = &of[0]
		case corev1.NodeExternalIP:
			to = &of[1]
		default:
			continue
		}
		addr, err := ipaddr.Parse(a.Address)
		if err != nil || addr.Zone() != "" || addr.IsUnspecified() {
			notes.add(at("status.addresses", i)+".address", "%.80q is not an IP address of a node", a.Address)
			continue
		}
		if !slices.Contains(*to, addr) {
			*to = append(*to, addr)
		}
	}
	for _, family := range service.Families {
		of[0] = fill(of[0], of[1], family)
	}
	f.addrs = of[0]
	cidrs := n.Spec.PodCIDRs
	if len(cidrs) == 0 && n.Spec.PodCIDR != "" {
		cidrs = []string{n.Spec.PodCIDR}
	}
	for i, s := range cidrs {
		p, err := parsePrefix(s)
		if err != nil {
			notes.add(at("spec.podCIDRs", i), "%v", err)
			continue
		}
		f.pods = append(f.pods, p)
	}
	f.notes = notes.all()
	return f
}

// fill returns addrs. If addrs has none of family f, it appends those from spare.
func fill(addrs, spare []netip.Addr, f service.Family) []netip.Addr {
	if firstOf(addrs, f).IsValid() {
		return addrs
	}
	for _, a := range spare {
		if service.FamilyOf(a) == f {
			addrs = append(addrs, a)
		}
	}
	return addrs
}

// Node returns the present state of the own Node, in the form that a Snapshot uses.
func (t *Tracker) Node() *service.Node {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.options.node(t.nodeInfo)
}

// node makes the Snapshot's Node from the operator's settings and the own Node.
func (o *Options) node(f *nodeInfo) *service.Node {
	n := &service.Node{
		Name:          normalize(o.NodeName),
		Addrs:         slices.Clone(o.NodeIPs),
		PodCIDRs:      f.pods,
		Pods:          o.Pods,
		NodePorts:     slices.Clone(o.NodePorts),
		MasqueradeAll: o.MasqueradeAll,
	}
	for _, family := range service.Families {
		n.Addrs = fill(n.Addrs, f.addrs, family)
	}
	if o.PodsFromNode {
		n.Pods = service.LocalPods{Prefixes: f.pods}
	}
	if !o.NodePortsPrimary {
		return n
	}
	for _, family := range service.Families {
		a := firstOf(n.Addrs, family)
		if a.IsValid() {
			n.NodePorts = append(n.NodePorts, netip.PrefixFrom(a, a.BitLen()))
		}
		n.NodePortsPending[family] = !a.IsValid() && len(f.addrs) == 0
	}
	return n
}

func sameNode(a, b *service.Node) bool {
	return a.Name == b.Name && a.MasqueradeAll == b.MasqueradeAll &&
		slices.Equal(a.Addrs, b.Addrs) && slices.Equal(a.NodePorts, b.NodePorts) && a.NodePortsPending == b.NodePortsPending &&
		slices.Equal(a.PodCIDRs, b.PodCIDRs) && slices.Equal(a.Pods.Prefixes, b.Pods.Prefixes) &&
		slices.Equal(a.ServiceCIDRs, b.ServiceCIDRs) && slices.Equal(a.EndpointsInServiceCIDRs, b.EndpointsInServiceCIDRs) &&
		a.Pods.Interface == b.Pods.Interface && a.Pods.InterfacePrefix == b.Pods.InterfacePrefix
}
