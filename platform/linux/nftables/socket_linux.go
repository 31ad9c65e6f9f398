// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"fmt"

	"golang.org/x/sys/unix"

	"kubeproxy/platform/linux/netlink"
)

// socketOptions allow for transactions of 100,000 elements. Smaller datagrams would cost
// time when a table is read, see README.md.
var socketOptions = netlink.Options{Buffer: 64 << 20, Datagram: 64 << 10}

func dial() (*netlink.Socket, error) {
	s, err := netlink.Dial(unix.NETLINK_NETFILTER, socketOptions)
	if err != nil {
		return nil, fmt.Errorf("netfilter: %w", err)
	}
	return s, nil
}
