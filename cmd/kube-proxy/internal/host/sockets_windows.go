// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"net/netip"

	"kubeproxy/common/track"
	"kubeproxy/platform/windows/listeners"
)

// listeningSockets returns nothing: HNS itself prevents a load balancer and a socket on
// one port.
func listeningSockets() ([]track.Socket, error) { return nil, nil }

// PortHolder names the process that listens on the TCP port at, empty if that is unknown.
func PortHolder(at netip.AddrPort) string { return listeners.Holding(at) }
