// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package nftables plans and programs one nftables table per IP family that
// forwards what a snapshot says. It decides nothing about Services: which
// endpoints serve is settled before. Only files ending in _linux.go talk to
// the kernel; everything else is ordinary code that builds and is tested on
// any system.
package nftables

import (
	"kubeproxy/common/service"
)

// TableName is the name of the table that forwards, in both families. A table of this name
// is ours whoever made it; nothing outside it is ever touched.
const TableName = "kube-services"

// Role is what a table is for.
type Role uint8

// The roles. Each has a table of its own name.
const (
	// Forwards sends connections to endpoints, all by itself.
	Forwards Role = iota
	// BesideIPVS leaves that to virtual servers of IPVS, and does for them
	// what they cannot: masquerade, refuse, drop, and tell clients apart. The
	// snapshot's Node.Addrs must be all addresses that the node has.
	BesideIPVS
)

// Table is the name of the role's table in both families.
func (r Role) Table() string {
	if r == BesideIPVS {
		return "kube-ipvs"
	}
	return TableName
}

// Options are the choices that concern nftables alone.
type Options struct {
	Role Role

	// MasqueradeBit is the bit of the packet mark, 0 to 31, that tells
	// postrouting to masquerade. It is cleared again there.
	MasqueradeBit int
}

func (o Options) mark() uint32 { return 1 << o.MasqueradeBit }

// tableFamily is the name nft gives family f.
func tableFamily(f service.Family) string {
	if f == service.IPv6 {
		return "ip6"
	}
	return "ip"
}
