// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package nftables plans and programs one nftables table per IP family that
// forwards what a snapshot says. It decides nothing about Services: which
// endpoints serve is settled before. Only files ending in _linux.go talk to
// the kernel; everything else is ordinary code that builds and is tested on
// any system.
package nftables

import (
	"cmp"

	"kubeproxy/common/service"
)

// TableName is the name of the table in both families. A table of this name
// is ours whoever made it; nothing outside it is ever touched.
const TableName = "kube-services"

// TableOf returns the name of the table of the proxy that serves the Services
// labelled with name, TableName if name is empty.
func TableOf(name string) string {
	if name == "" {
		return TableName
	}
	return TableName + "-" + name
}

// Options are the choices that concern nftables alone.
type Options struct {
	// Table is the table's name, TableName if it is empty.
	Table string
	// MasqueradeBit is the bit of the packet mark, 0 to 31, that tells
	// postrouting to masquerade. It is cleared again there.
	MasqueradeBit int
	// DropInvalid drops forwarded packets of TCP that connection tracking cannot
	// place, as long as the kernel itself does not let them pass as valid
	// (net.netfilter.nf_conntrack_tcp_be_liberal).
	DropInvalid bool
}

func (o Options) table() string { return cmp.Or(o.Table, TableName) }

func (o Options) mark() uint32 { return 1 << o.MasqueradeBit }

// tableFamily is the name nft gives family f.
func tableFamily(f service.Family) string {
	if f == service.IPv6 {
		return "ip6"
	}
	return "ip"
}
