// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package service

import (
	"net/netip"
	"slices"
	"strings"
)

// Node is what forwarding depends on besides Services: facts of the node and
// the operator's choices, resolved. It is read-only once in a Snapshot.
type Node struct {
	Name string
	// Addrs are the node's own IPs as the API or the operator gives them, each once,
	// the primary one of each family first.
	Addrs []netip.Addr
	// Pods tells the cluster's pods on this node from everybody else.
	Pods LocalPods
	// NodePorts are the prefixes in which an address of the node must lie to
	// answer NodePorts. A family without a prefix answers on no address, see
	// Everywhere. Loopback addresses have listeners, see LocalhostNodePorts.
	NodePorts []netip.Prefix
	// NodePortsPending means, by family, that NodePorts lacks addresses of the
	// node that are not known yet. What an earlier process let answer stays.
	NodePortsPending [2]bool
	// ServiceCIDRs are the ranges that ClusterIPs come from, sorted and apart,
	// as far as they are known. An address in them that no Service has leads
	// nowhere.
	ServiceCIDRs []netip.Prefix
	// MasqueradeAll masquerades all traffic to ClusterIPs.
	MasqueradeAll bool
}

// LocalPods detects traffic from pods, in one of three ways or, when it is
// the zero value, not at all.
type LocalPods struct {
	Prefixes        []netip.Prefix // the source lies in one of them
	Interface       string         // it comes in through this bridge
	InterfacePrefix string         // it comes in through an interface named so
}

// Known reports that p can tell pods from others in family f.
func (p LocalPods) Known(f Family) bool {
	return p.Interface != "" || p.InterfacePrefix != "" || len(InFamily(p.Prefixes, f)) > 0
}

// Contains reports that traffic from addr, coming in through the named
// interface ("" for the node's own), is a pod's. It is false where p cannot
// tell.
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

// localhost has the address of each family that programs of the node reach NodePorts
// on, where LocalhostNodePorts.
var localhost = [...]netip.Addr{IPv4: netip.AddrFrom4([4]byte{127, 0, 0, 1}), IPv6: netip.IPv6Loopback()}

// Localhost returns 127.0.0.1 or ::1.
func Localhost(f Family) netip.Addr { return localhost[f] }

// LocalhostNodePorts reports that the operator asks for NodePorts on Localhost(f): a
// prefix of loopback addresses alone has it. A wider one, such as 0.0.0.0/0, says
// nothing of loopback addresses, as in KEP-6032.
func (n *Node) LocalhostNodePorts(f Family) bool {
	return slices.ContainsFunc(n.NodePorts, func(p netip.Prefix) bool { return LoopbackOnly(p) && p.Contains(localhost[f]) })
}

// LoopbackOnly reports that all addresses in p are loopback ones.
func LoopbackOnly(p netip.Prefix) bool {
	if p.Addr().Is4() {
		return p.Addr().IsLoopback() && p.Bits() >= 8
	}
	return p.Masked() == netip.PrefixFrom(netip.IPv6Loopback(), 128)
}

// AnswersNodePorts reports that connections to addr, which must be one of the
// node's addresses, are led to NodePorts. Loopback addresses have a listener
// instead, see LocalhostNodePorts.
func (n *Node) AnswersNodePorts(addr netip.Addr) bool {
	if addr.IsLoopback() {
		return false
	}
	return slices.ContainsFunc(n.NodePorts, func(x netip.Prefix) bool { return x.Contains(addr) })
}

// NodePortPrefixes returns NodePorts of family f, a single one of length zero
// if every address answers, none if no address does.
func (n *Node) NodePortPrefixes(f Family) []netip.Prefix {
	in := InFamily(n.NodePorts, f)
	if i := slices.IndexFunc(in, func(x netip.Prefix) bool { return x.Bits() == 0 }); i >= 0 {
		return in[i : i+1]
	}
	return in
}

// AnyAddress returns the prefixes that hold every address.
func AnyAddress() []netip.Prefix { return OrAnyAddress(nil) }

// OrAnyAddress returns prefixes, and the one that holds every address for
// each family that has none in them.
func OrAnyAddress(prefixes []netip.Prefix) []netip.Prefix {
	all := slices.Clone(prefixes)
	for _, a := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		if len(InFamily(prefixes, FamilyOf(a))) == 0 {
			all = append(all, netip.PrefixFrom(a, 0))
		}
	}
	return all
}

// IsServiceAddr reports that ClusterIPs come from where addr is.
func (n *Node) IsServiceAddr(addr netip.Addr) bool {
	return slices.ContainsFunc(n.ServiceCIDRs, func(x netip.Prefix) bool { return x.Contains(addr) })
}
