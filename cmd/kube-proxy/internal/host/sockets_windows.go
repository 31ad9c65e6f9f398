// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"net/netip"

	"kubeproxy/common/track"
	"kubeproxy/platform/windows/listeners"
)

// listeningSockets knows of no program: a load balancer of HNS and a socket on one port
// exclude each other already.
func listeningSockets() ([]track.Socket, error) { return nil, nil }

// PortHolder says which process listens on the TCP port at, nothing if that is not
// known.
func PortHolder(at netip.AddrPort) string { return listeners.Holding(at) }
