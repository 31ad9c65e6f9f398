// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package modes lists the proxy modes of every system. Only this package and the command
// import both the Linux and the Windows backends.
package modes

import (
	iptables "kubeproxy/platform/linux/iptables/descriptor"
	ipvs "kubeproxy/platform/linux/ipvs/descriptor"
	nftables "kubeproxy/platform/linux/nftables/descriptor"
	userspace "kubeproxy/platform/linux/userspace/descriptor"
	"kubeproxy/platform/mode"
	kernelspace "kubeproxy/platform/windows/hns/descriptor"
)

// All returns every mode that is built in. Leftovers are removed in this order: chains
// of iptables lead to the listeners of mode userspace and to the objects of mode ipvs.
func All() mode.Table {
	return mode.Table{iptables.Mode(), userspace.Mode(), ipvs.Mode(), nftables.Mode(), kernelspace.Mode()}
}
