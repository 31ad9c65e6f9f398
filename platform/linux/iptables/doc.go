// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package iptables plans and programs iptables chains that forward what a
// snapshot says, one family at a time, with iptables-legacy or iptables-nft,
// whichever the iptables command of the node is. It decides nothing about
// Services: which endpoints serve is settled before. Only files ending in
// _linux.go run programs or talk to the kernel; everything else is ordinary
// code that builds and is tested on any system.
package iptables

import (
	"fmt"
	"net/netip"

	"kubeproxy/common/service"
)

// Options are the choices that concern iptables alone.
type Options struct {
	// Role is what the chains are for.
	Role Role
	// MasqueradeBit is the bit of the packet mark, 0 to 31, that tells
	// KUBE-POSTROUTING to masquerade. It is cleared again there.
	MasqueradeBit int
	// LocalhostNodePorts has NodePorts answer on IPv4 loopback addresses, too,
	// where the node's choice of addresses does not leave them out.
	LocalhostNodePorts bool
	// DropInvalid drops forwarded packets that connection tracking cannot
	// place, which would be reset by whoever gets them untranslated, as long as the
	// kernel does not let those pass as valid that are outside of the TCP window
	// (net.netfilter.nf_conntrack_tcp_be_liberal).
	DropInvalid bool
	// Relay, by family, is the address of the node on which a relay listens. If
	// it is valid, the endpoints of snapshots are listeners there: connections
	// are led to them as they come, nothing is masqueraded, and nothing else
	// reaches that address. What a process of the node sends with the mark
	// itself is left alone.
	Relay [2]netip.Addr
	// Bypass is for a relay that is about to end: the endpoints of snapshots are
	// those behind it, and new connections go there, masqueraded as if the relay
	// had made them. It keeps those that it has.
	Bypass bool
	// Dir is the folder of the iptables commands, empty for wherever PATH
	// says they are.
	Dir string
}

func (o Options) mark() uint32 { return 1 << o.MasqueradeBit }

// marked is how rules match packets that carry the mark.
func (o Options) marked() string { return fmt.Sprintf("0x%x/0x%x", o.mark(), o.mark()) }

// unmark is how the target MARK flips the mark.
func (o Options) unmark() string { return fmt.Sprintf("0x%x/0x0", o.mark()) }

// command is the name of iptables for family f.
func command(f service.Family) string {
	if f == service.IPv6 {
		return "ip6tables"
	}
	return "iptables"
}
