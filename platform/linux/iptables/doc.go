// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package iptables plans and programs iptables chains that forward what a
// snapshot says, one family at a time, with iptables-legacy or iptables-nft,
// whichever the iptables command of the node is. It decides nothing about
// Services: which endpoints serve is settled before. Only files ending in
// _linux.go run programs or talk to the kernel; everything else is ordinary
// code that builds and is tested on any system.
package iptables

import "kubeproxy/common/service"

// Options are the choices that concern iptables alone.
type Options struct {
	// MasqueradeBit is the bit of the packet mark, 0 to 31, that tells
	// KUBE-POSTROUTING to masquerade. It is cleared again there.
	MasqueradeBit int
	// LocalhostNodePorts has NodePorts answer on IPv4 loopback addresses, too,
	// where the node's choice of addresses does not leave them out.
	LocalhostNodePorts bool
	// DropInvalid drops forwarded packets that connection tracking cannot
	// place, which would be reset by whoever gets them untranslated.
	DropInvalid bool
	// Dir is the folder of the iptables commands, empty for wherever PATH
	// says they are.
	Dir string
}

func (o Options) mark() uint32 { return 1 << o.MasqueradeBit }

// command is the name of iptables for family f.
func command(f service.Family) string {
	if f == service.IPv6 {
		return "ip6tables"
	}
	return "iptables"
}
