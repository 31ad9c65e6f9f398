// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package companion programs the rules that mode ipvs needs in addition to virtual servers,
// one family per Backend. A service.Snapshot goes in. Ipsets come out, which contain the
// addresses and ports of Services that need special treatment, and iptables chains that
// match them. The chains reject, drop, mark for masquerading, and redirect clients to
// another virtual server of the same Service. Package ipvs makes the virtual servers and
// fills the sets VirtualServerSet and NodeIPSet. Only files with the suffix _linux.go use
// kernel interfaces.
package companion

import (
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/ipset"
	"kubeproxy/platform/linux/iptables"
)

// Options are the settings of sets and chains.
type Options struct {
	// MasqueradeBit is the bit of the packet mark, 0 to 31, that selects packets for
	// masquerading.
	MasqueradeBit int
}

func (o Options) chains() iptables.Options {
	return iptables.Options{Role: iptables.IPVSCompanion, MasqueradeBit: o.MasqueradeBit}
}

// setNames lists the sets whose elements depend only on a snapshot.
var setNames = []string{
	iptables.SetClusterIPs, iptables.SetVirtualIPs, iptables.SetRefused, iptables.SetDropped,
	iptables.SetExternal, iptables.SetLocal, iptables.SetInternalDropped, iptables.SetExternalDropped,
	iptables.SetInternalRedirect, iptables.SetExternalRedirect, iptables.SetRestricted, iptables.SetSources,
	iptables.SetHealthChecks,
}

// VirtualServerSet is the set of all virtual servers, including foreign ones. Chains see
// packets before IPVS does, and reject packets to an address of a Service that are not
// in this set. Package ipvs maintains its elements.
func VirtualServerSet(f service.Family) ipset.Set { return setOf(f, iptables.SetVirtualServers) }

// NodeIPSet is the set of the node's own addresses. Package ipvs adds an address after
// it has made all virtual servers there.
func NodeIPSet(f service.Family) ipset.Set { return setOf(f, iptables.SetNodeIPs) }

// allNames lists all sets.
func allNames() []string {
	return append(setNames[:len(setNames):len(setNames)], iptables.SetVirtualServers, iptables.SetNodeIPs)
}

func setOf(f service.Family, name string) ipset.Set {
	s := ipset.Set{Name: iptables.SetName(f, name), Type: ipset.HashIPPort, Family: f}
	switch name {
	case iptables.SetClusterIPs, iptables.SetVirtualIPs, iptables.SetNodeIPs:
		s.Type = ipset.HashIP
	case iptables.SetSources:
		s.Type = ipset.HashIPPortNet
	}
	return s
}
