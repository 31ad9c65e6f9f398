// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package nftables programs one nftables table per IP family. A service.Snapshot goes in.
// A plan comes out. Its transactions make the kernel's table match the snapshot. The
// package decides nothing about Services: the snapshot already names the endpoints of
// each frontend. It leaves conntrack entries and sysctls to other packages. Only files
// with the suffix _linux.go access the kernel. All other files build, and are tested, on
// any system.
package nftables

import "cmp"

// TableName is the name of the table in both families. A table with this name is ours,
// even if another process created it. The package changes nothing outside of it.
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
	// MasqueradeBit is the bit of the packet mark, 0 to 31, for which postrouting
	// masquerades. It is cleared again there.
	MasqueradeBit int
	// DropInvalid drops forwarded TCP packets in connection tracking state INVALID. It
	// has no effect while net.netfilter.nf_conntrack_tcp_be_liberal makes the kernel
	// accept packets outside of the window as valid, apart from resets, see
	// https://docs.kernel.org/networking/nf_conntrack-sysctl.html.
	DropInvalid bool
	// CountConnections counts connections, see Counters.
	CountConnections bool
}

func (o Options) table() string { return cmp.Or(o.Table, TableName) }

func (o Options) mark() uint32 { return 1 << o.MasqueradeBit }
