// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package beside plans and programs what stands beside virtual servers of IPVS,
// one family at a time: ipsets, which say what is special about the addresses and
// ports of Services, and iptables chains that ask them. They refuse, drop, mark
// for masquerading, and lead clients to another virtual server of the same Service.
// Only files ending in _linux.go talk to the kernel.
package beside

import (
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/ipset"
	"kubeproxy/platform/linux/iptables"
)

// Options are the choices that concern sets and chains.
type Options struct {
	// MasqueradeBit is the bit of the packet mark, 0 to 31, that tells to
	// masquerade.
	MasqueradeBit int
}

func (o Options) chains() iptables.Options {
	return iptables.Options{Role: iptables.IPVSCompanion, MasqueradeBit: o.MasqueradeBit}
}

// setNames lists the sets whose elements follow from a snapshot alone.
var setNames = []string{
	iptables.SetClusterIPs, iptables.SetVirtualIPs, iptables.SetRefused, iptables.SetDropped,
	iptables.SetExternal, iptables.SetLocal, iptables.SetInternalDropped, iptables.SetExternalDropped,
	iptables.SetInternalRedirect, iptables.SetExternalRedirect, iptables.SetRestricted, iptables.SetSources,
	iptables.SetHealthChecks,
}

// VirtualServerSet is the set of virtual servers, whosever they are. Chains refuse what
// goes to an address of a Service and is not in it, as they see packets before
// IPVS does. Who makes virtual servers keeps it.
func VirtualServerSet(f service.Family) ipset.Set { return setOf(f, iptables.SetVirtualServers) }

// NodeIPSet is the set of the node's own addresses, from when all virtual servers
// there are made. Who makes them keeps it.
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
