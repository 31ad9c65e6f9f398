// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package service

import (
	"net/netip"
	"slices"
	"strings"
)

// Node is what forwarding depends on besides Services: properties of the node and the
// operator's resolved settings. It is read-only once it is in a Snapshot.
type Node struct {
	Name string
	// Addrs are the node's own IPs from the API or the operator, without duplicates. The
	// primary one of each family comes first.
	Addrs []netip.Addr
	// PodCIDRs are the ranges that the Node object has for its pods.
	PodCIDRs []netip.Prefix
	// Pods distinguishes traffic of this node's pods from other traffic.
	Pods LocalPods
	// NodePorts are prefixes. Addresses of the node within them serve NodePorts. A family
	// without a prefix serves no NodePorts, see AnyAddress. Loopback addresses have
	// listeners instead, see LocalhostNodePorts.
	NodePorts []netip.Prefix
	// NodePortsPending means, by family, that some addresses of the node are not known
	// yet and that NodePorts lacks them. Backends keep the addresses that an earlier
	// process programmed.
	NodePortsPending [2]bool
	// ServiceCIDRs are the known ranges that ClusterIPs come from, sorted and disjoint.
	// Traffic to an address in them that belongs to no Service is dropped.
	ServiceCIDRs []netip.Prefix
	// EndpointsInServiceCIDRs are addresses in ServiceCIDRs that EndpointSlices list,
	// sorted. Somebody may use them for pods, so traffic to them is not dropped.
	EndpointsInServiceCIDRs []netip.Addr
	// MasqueradeAll masquerades all traffic to ClusterIPs.
	MasqueradeAll bool
}

// LocalPods detects traffic of pods, in one of three ways. The zero value detects none.
type LocalPods struct {
	Prefixes        []netip.Prefix // the source address is in one of them
	Interface       string         // the traffic enters through this bridge
	InterfacePrefix string         // the traffic enters through an interface with this name prefix
}

// Known reports whether p can detect pods of family f.
func (p LocalPods) Known(f Family) bool {
	return p.Interface != "" || p.InterfacePrefix != "" || len(InFamily(p.Prefixes, f)) > 0
}

// Contains reports whether traffic from addr that enters through the interface iface
// comes from a pod. iface is "" for traffic of the node itself. Contains returns false
// where p detects nothing.
func (p LocalPods) Contains(addr netip.Addr, iface string) bool {
	switch {
	case p.Interface != "":
		return iface == p.Interface
	case p.InterfacePrefix != "":
		return strings.HasPrefix(iface, p.InterfacePrefix)
	}
	return slices.ContainsFunc(p.Prefixes, func(x netip.Prefix) bool { return x.Contains(addr) })
}

// InFamily returns the prefixes of family f, in their order.
func InFamily(prefixes []netip.Prefix, f Family) []netip.Prefix {
	var in []netip.Prefix
	for _, p := range prefixes {
		if FamilyOf(p.Addr()) == f {
			in = append(in, p)
		}
	}
	return in
}

// localhost is the address of each family on which local programs reach NodePorts, where
// LocalhostNodePorts is true.
var localhost = [...]netip.Addr{IPv4: netip.AddrFrom4([4]byte{127, 0, 0, 1}), IPv6: netip.IPv6Loopback()}

// Localhost returns 127.0.0.1 or ::1.
func Localhost(f Family) netip.Addr { return localhost[f] }

// LocalhostNodePorts reports whether the operator enabled NodePorts on Localhost(f). That
// takes a prefix of loopback addresses only. A wider one, such as 0.0.0.0/0, does not
// include loopback addresses, as in KEP-6032 (kubernetes/enhancements#6032).
func (n *Node) LocalhostNodePorts(f Family) bool {
	return slices.ContainsFunc(n.NodePorts, func(p netip.Prefix) bool { return LoopbackOnly(p) && p.Contains(localhost[f]) })
}

// LoopbackOnly reports whether all addresses in p are loopback addresses.
func LoopbackOnly(p netip.Prefix) bool {
	if p.Addr().Is4() {
		return p.Addr().IsLoopback() && p.Bits() >= 8
	}
	return p.Masked() == netip.PrefixFrom(netip.IPv6Loopback(), 128)
}

// AnswersNodePorts reports whether addr serves NodePorts. addr must be an address of the
// node. It is false for loopback addresses, which have a listener instead, see
// LocalhostNodePorts.
func (n *Node) AnswersNodePorts(addr netip.Addr) bool {
	if addr.IsLoopback() {
		return false
	}
	return slices.ContainsFunc(n.NodePorts, func(x netip.Prefix) bool { return x.Contains(addr) })
}

// NodePortPrefixes returns the NodePorts of family f. The result is a single prefix of
// length zero if every address serves NodePorts, and empty if none does.
func (n *Node) NodePortPrefixes(f Family) []netip.Prefix {
	in := InFamily(n.NodePorts, f)
	if i := slices.IndexFunc(in, func(x netip.Prefix) bool { return x.Bits() == 0 }); i >= 0 {
		return in[i : i+1]
	}
	return in
}

// AnyAddress returns the prefixes 0.0.0.0/0 and ::/0.
func AnyAddress() []netip.Prefix { return OrAnyAddress(nil) }

// OrAnyAddress returns prefixes. For each family without a prefix it adds the prefix of
// length zero.
func OrAnyAddress(prefixes []netip.Prefix) []netip.Prefix {
	all := slices.Clone(prefixes)
	for _, a := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		if len(InFamily(prefixes, FamilyOf(a))) == 0 {
			all = append(all, netip.PrefixFrom(a, 0))
		}
	}
	return all
}

// IsServiceAddr reports whether addr is in a range that ClusterIPs come from, and no
// endpoint.
func (n *Node) IsServiceAddr(addr netip.Addr) bool {
	if _, listed := slices.BinarySearchFunc(n.EndpointsInServiceCIDRs, addr, netip.Addr.Compare); listed {
		return false
	}
	return slices.ContainsFunc(n.ServiceCIDRs, func(x netip.Prefix) bool { return x.Contains(addr) })
}
